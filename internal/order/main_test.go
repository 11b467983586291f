package order_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// shop is a [ordertest.Shop] whose tests decide which placements make up a batch.
type shop struct {
	*ordertest.Shop
	lanes *order.Lanes // of the placements
}

// The names that most tests use.
const (
	timeout   = ordertest.Timeout
	extension = ordertest.Extension
	holdTime  = ordertest.HoldTime
)

// newShop returns a shop. Each change changes its configuration.
func newShop(t testing.TB, changes ...func(*order.Config)) *shop {
	t.Helper()
	return withLanes(ordertest.New(t, changes...))
}

// newShopAt returns a shop with the database at a URL.
func newShopAt(t testing.TB, url string, changes ...func(*order.Config)) *shop {
	t.Helper()
	return withLanes(ordertest.NewAt(t, url, changes...))
}

func withLanes(s *ordertest.Shop) *shop {
	return &shop{Shop: s, lanes: order.LanesOf(s.Service)}
}

// awaitPublished waits until as many messages are published as there are orders, and returns them: a placement is
// answered before its task is published.
func (s *shop) awaitPublished(t testing.TB) []delay.Message {
	t.Helper()
	orders := testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders`)
	testenv.Eventually(t, fmt.Sprintf("%d published messages", orders),
		func() bool { return len(s.Published.All()) >= orders })
	return s.Published.All()
}

// try places an order, and returns the error.
func (s *shop) try(t testing.TB, customer uuid.UUID, lines ...order.Line) error {
	t.Helper()
	_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: lines})
	return err
}

// pending places an order of a new customer for the only unit of a new product.
func (s *shop) pending(t testing.TB) (customer, id uuid.UUID) {
	t.Helper()
	customer = s.Customer(t)
	return customer, s.MustPlace(t, customer, line(s.Product(t, 1), 1)).ID
}

// async calls a function in another goroutine, and returns a channel for its error.
func async(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

func line(product uuid.UUID, quantity int64) order.Line { return ordertest.Line(product, quantity) }

// timeOut times out a page of the overdue orders, as the reconciler does, and returns the number of cancelled orders.
func (s *shop) timeOut(ctx context.Context, grace time.Duration, limit int) (int, error) {
	page, _, err := s.Pending(ctx, keyset.Cursor{}, -grace-time.Microsecond, limit)
	if err != nil {
		return 0, err
	}
	ids := make([]string, len(page))
	for i, m := range page {
		ids[i] = m.ID
	}
	done, _, err := s.TimeOut(ctx, ids)
	return done, err
}
