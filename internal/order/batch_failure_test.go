package order_test

import (
	"bytes"
	"fmt"
	"net/url"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
)

// checkPlacedOnce checks that the answers are new orders, and that the database has exactly these orders, each with
// all its rows. The tasks may be left to the relay.
func (s *shop) checkPlacedOnce(t *testing.T, requests []request, results []result) {
	t.Helper()
	for i, r := range results {
		if r.err != nil || r.replayed || r.order.CustomerID != requests[i].customer ||
			len(r.order.Items) != len(requests[i].Lines) {
			t.Errorf("placement %d: order %+v, replayed %v, error %v; want a new order", i, r.order, r.replayed, r.err)
			continue
		}
		if rows := testenv.Query[string](t, s.DB, `SELECT concat((SELECT count(*) FROM orders WHERE customer_id = $1),
			(SELECT count(*) FROM order_items WHERE order_id = $2), (SELECT count(*) FROM outbox WHERE task_id = $3))`,
			r.order.CustomerID, r.order.ID, r.order.ID.String()); rows != fmt.Sprintf("1%d1", len(requests[i].Lines)) {
			t.Errorf("placement %d: orders of the customer, items and outbox rows are %s, want 1%d1", i, rows,
				len(requests[i].Lines))
		}
	}
	s.CheckInvariants(t, 0)
}

// newCustomers returns n requests of new customers for one unit of a product, with idempotency keys.
func (s *shop) newCustomers(n int, product uuid.UUID) (requests []request) {
	for i := range n {
		requests = append(requests, wantsWithKey(keyset.NewID(), fmt.Sprint("key ", i), line(product, 1)))
	}
	return requests
}

// newProxiedShop returns a shop, and another one that reaches the database of the first one through a proxy.
func newProxiedShop(t *testing.T) (direct, proxied *shop, proxy *faulttest.Proxy) {
	t.Helper()
	direct = newShop(t)
	u, err := url.Parse(direct.URL)
	testenv.Must(t, err)
	proxy = faulttest.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	return direct, newShopAt(t, u.String()), proxy
}

// cutNext resets the next connection over which PostgreSQL tells that it has committed a batch. It calls onCut before.
func cutNext(proxy *faulttest.Proxy, onCut func()) {
	proxy.CutAt(func(answer []byte) bool {
		committed := bytes.Contains(answer, []byte("COMMIT\x00")) &&
			bytes.HasSuffix(answer, []byte("Z\x00\x00\x00\x05I"))
		if committed {
			onCut()
		}
		return committed
	})
}

// TestBatchWhoseAnswerIsLost cuts the connection after PostgreSQL has committed a batch. The orders are placed once,
// and the callers get them as new ones.
func TestBatchWhoseAnswerIsLost(t *testing.T) {
	direct, s, proxy := newProxiedShop(t)
	product := direct.Product(t, 10)
	for _, n := range []int{1, 6} {
		orders := testenv.Query[int](t, direct.DB, `SELECT count(*) FROM orders`)
		committed := -1
		cutNext(proxy, func() { committed = testenv.Query[int](t, direct.DB, `SELECT count(*) FROM orders`) - orders })
		requests := s.newCustomers(n, product)
		requests[n-1].IdempotencyKey = ""
		s.checkPlacedOnce(t, requests, s.placeInOneBatch(t, requests...))
		if committed != n {
			t.Errorf("%d orders were committed before the connection was cut, want %d", committed, n)
		}
	}

	// The lost transaction has also rejected an order, and replayed one.
	before := testenv.Query[uuid.UUID](t, direct.DB,
		`SELECT customer_id FROM orders WHERE idempotency_key IS NOT NULL ORDER BY id LIMIT 1`)
	cutNext(proxy, func() {})
	results := s.placeInOneBatch(t, wants(s.Customer(t), line(product, 2)), wants(s.Customer(t), line(product, 2)),
		wantsWithKey(before, "key 0", line(product, 1)), wants(s.Customer(t), line(product, 1)))
	if got, want := fmt.Sprint(results), "[placed out-of-stock replayed placed]"; got != want {
		t.Errorf("answers are %s, want %s", got, want)
	}
	s.CheckInvariants(t, 0)
}

// TestAnswerIsLostBeforeLongLock cuts the connection after PostgreSQL has committed an order of the last unit, and has
// another session lock the product for longer than a batch waits. The placement finds its order nevertheless.
func TestAnswerIsLostBeforeLongLock(t *testing.T) {
	direct, s, proxy := newProxiedShop(t)
	product := direct.Product(t, 1)
	release := func() {}
	cutNext(proxy, func() {
		release = testenv.HoldLock(t, direct.DB, `UPDATE products SET name = 'locked' WHERE id = $1`, product)
	})
	results := s.placeInOneBatch(t, wants(s.Customer(t), line(product, 1)))
	release()
	if got := fmt.Sprint(results); got != "[placed]" {
		t.Errorf("the answer is %s, want [placed]", got)
	}
	s.CheckInvariants(t, 0)
}

// TestLockedProductDelaysNoNeighbours locks two products for long. The other placements of a batch are placed
// meanwhile, and so is a later one. Those of the locked products are placed when the lock is released.
func TestLockedProductDelaysNoNeighbours(t *testing.T) {
	s := newShop(t)
	locked, other, free := s.Product(t, 100), s.Product(t, 100), s.Product(t, 100)
	release := testenv.HoldLock(t, s.DB, `UPDATE products SET name = 'locked' WHERE id = ANY ($1)`,
		[]uuid.UUID{locked, other})
	requests := []request{
		wants(s.Customer(t), line(free, 1)), wants(s.Customer(t), line(free, 3)), wants(s.Customer(t), line(locked, 1)),
		wants(s.Customer(t), line(free, 2), line(other, 1)), wants(s.Customer(t), line(other, 2)),
		wants(s.Customer(t), line(free, 4)),
	}
	b := s.startBatch(t, t.Context(), requests...)
	for _, i := range []int{0, 1, 5} {
		<-b.done[i]
		if err := b.results[i].err; err != nil {
			t.Errorf("placement %d of the free product returns error %v, want an order", i, err)
		}
	}
	s.MustPlace(t, s.Customer(t), line(free, 1))
	for _, i := range []int{2, 3, 4} {
		select {
		case <-b.done[i]:
			t.Errorf("placement %d of a locked product returns %v before the lock is released", i, b.results[i])
		default:
		}
	}
	release()
	s.checkPlacedOnce(t, requests, b.wait())
}
