package order_test

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// remove removes the orders that ended longer ago than keep, and fails the test if their number is not the expected one.
func (s *shop) remove(t testing.TB, keep time.Duration, want int64) {
	t.Helper()
	remover := order.NewRemover(s.Service, keep, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if n, err := remover.Remove(t.Context()); n != want || err != nil {
		t.Fatalf("Remove returns %d, %v; want %d", n, err, want)
	}
}

// wantRows checks how many orders, items and events there are.
func (s *shop) wantRows(t testing.TB, want [3]int) {
	t.Helper()
	var got [3]int
	for i, table := range []string{"orders", "order_items", "order_events"} {
		got[i] = testenv.Query[int](t, s.DB, `SELECT count(*) FROM `+table)
	}
	if got != want {
		t.Errorf("there are %v orders, items and events, want %v", got, want)
	}
}

// TestRemove removes old orders. Those that are pending, not booked or too young stay, and so does one that another package
// keeps or another session has locked.
func TestRemove(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.endedOrders(t)
	s.remove(t, time.Microsecond, 0) // none is booked
	s.book(t, 3)
	s.remove(t, time.Hour, 0)
	s.wantRows(t, [3]int{4, 4, 7})

	paid := testenv.Query[uuid.UUID](t, s.DB, `SELECT id FROM orders WHERE status = 'paid' ORDER BY id LIMIT 1`)
	var asked []uuid.UUID
	s.BeforeRemoval(func(_ *gorm.DB, ids []uuid.UUID) ([]uuid.UUID, error) {
		asked = append(asked, ids...)
		return ids[:1], nil
	})
	s.remove(t, time.Microsecond, 2)
	if len(asked) != 3 || asked[0] != paid || !slices.IsSortedFunc(asked, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }) {
		t.Errorf("the hook was asked about %v, want the three ended orders in order, the first of them %s", asked, paid)
	}
	s.wantRows(t, [3]int{2, 2, 3})
	s.CheckInvariants(t, 0)

	s.BeforeRemoval(func(*gorm.DB, []uuid.UUID) ([]uuid.UUID, error) { return nil, nil })
	unlock := testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, paid)
	s.remove(t, time.Microsecond, 0)
	unlock()
	s.remove(t, time.Microsecond, 1)
	s.wantRows(t, [3]int{1, 1, 1})
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)

	// The books go on: what is sold later adds to them.
	s.Do(t, "pay", customer, product, s.place(t, customer, line(product, 2)).ID)
	s.book(t, 1)
	s.wantSold(t, product, 6)
	s.CheckInvariants(t, 0)
}

// TestRemoveInBatches removes more orders than fit into one batch, while two removers and a booker run.
func TestRemoveInBatches(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.paidOrders(t, 1_200)
	errs := make(chan error, 3)
	go func() {
		_, err := s.booker().Book(t.Context())
		errs <- err
	}()
	for range 2 {
		go func() {
			_, err := order.NewRemover(s.Service, time.Microsecond, slog.New(slog.DiscardHandler), prometheus.NewRegistry()).Remove(t.Context())
			errs <- err
		}()
	}
	for range 3 {
		testenv.Must(t, <-errs)
	}
	s.CheckInvariants(t, 0)
	s.remove(t, time.Microsecond, testenv.Query[int64](t, s.DB, `SELECT count(*) FROM orders`))
	s.wantRows(t, [3]int{})
	s.CheckInvariants(t, 0)
}
