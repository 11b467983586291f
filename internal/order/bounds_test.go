package order_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestRejectionNamesOpenOrders has a customer place an order in each state, and then one of more units than are left.
// The rejection names the orders that are open: those that are pending, and not due yet. The contract has the members
// of the problem. TestDecide has the rejections by the bounds.
func TestRejectionNamesOpenOrders(t *testing.T) {
	t.Parallel()
	s := newHTTPShop(t)
	customer, product := s.Customer(t), s.Product(t, 20)
	s.MustPlace(t, s.Customer(t), line(product, 1))     // another customer's order is not named
	place := func(states ...string) (ids []uuid.UUID) { // see [ordertest.Shop.Do]
		for _, steps := range states {
			id := s.MustPlace(t, customer, line(product, 1)).ID
			s.Do(t, steps, customer, id)
			ids = append(ids, id)
		}
		return ids
	}
	place("pay", "cancel", "pass 31m, time out", "hold, pay held")
	place("pass 31m", "extend, pass 41m", "hold, pass 36m", "hold, pass 31m, release")
	open := place("", "pass 29m", "extend, pass 31m", "hold", "hold, pass 31m", "extend, hold, pass 44m")
	want := testenv.QueryAll[uuid.UUID](t, s.DB,
		`SELECT id FROM orders WHERE id = ANY ($1) ORDER BY created_at DESC, id DESC`, open)

	a := s.rejects(t, order.OutOfStock, "POST /api/orders", orderBody(product, 20),
		"Authorization: Bearer "+s.token(t, customer))
	got := decode[struct {
		Open []uuid.UUID `json:"open_orders"`
	}](t, a).Open
	if !slices.Equal(got, want) {
		t.Errorf("20 units are answered with %s, want the open orders %v", a.Body, want)
	}
	s.CheckInvariants(t, time.Hour)
}

// TestOrderEndsWhilePlacementWaits has a placement wait for the lock of its product while the due time of another
// order of its customer passes. The placement must decide by the time after its wait.
func TestOrderEndsWhilePlacementWaits(t *testing.T) {
	t.Parallel()
	s := newShop(t, bounds{orders: 1}.set)
	customer, product := s.Customer(t), s.Product(t, 5)
	first := s.MustPlace(t, customer, line(product, 1))
	release := testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, product)
	placed := async(func() error { return s.try(t, customer, line(product, 1)) })
	testenv.AwaitLockWait(t, s.DB)
	s.Exec(t, `UPDATE orders SET expires_at = clock_timestamp() WHERE id = $1`, first.ID)
	release()
	if err := <-placed; err != nil {
		t.Errorf("Place returns %v, want an order", err)
	}
	s.CheckInvariants(t, timeout)
}

// TestParallelPlacementsKeepBounds has one customer place 50 orders at the same time, at one or two services with the
// same database. In some of the tests each order wants a different product, so that no lock of a product protects the
// bound.
func TestParallelPlacementsKeepBounds(t *testing.T) {
	for name, test := range map[string]struct {
		bounds   bounds
		services int
		products int
		quantity int64
		want     int64
	}{
		"orders of one product":                  {bounds{10, 0}, 1, 1, 1, 10},
		"orders of many products":                {bounds{10, 0}, 1, 50, 1, 10},
		"orders of many products, two services":  {bounds{10, 0}, 2, 50, 1, 10},
		"units":                                  {bounds{0, 20}, 1, 1, 3, 6},
		"units, two services":                    {bounds{0, 20}, 2, 1, 3, 6},
		"units of two products, two services":    {bounds{0, 20}, 2, 2, 3, 12},
		"orders and units, the units are bound":  {bounds{10, 4}, 2, 1, 1, 4},
		"orders and units, the orders are bound": {bounds{5, 20}, 2, 3, 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			services := []*shop{newShop(t, test.bounds.set)}
			s := services[0]
			for len(services) < test.services {
				services = append(services, newShopAt(t, s.URL, test.bounds.set))
			}
			customer := s.Customer(t)
			var products []uuid.UUID
			for range test.products {
				products = append(products, s.Product(t, 1000))
			}
			var placed, rejected atomic.Int64
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					_, _, err := services[i%len(services)].Place(t.Context(), customer,
						order.Placement{Lines: []order.Line{line(products[i%len(products)], test.quantity)}})
					switch parttest.ClassOf(err) {
					case rest.Class{}:
						placed.Add(1)
					case order.TooManyOpen:
						rejected.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := testenv.Query[int64](t, s.DB, `SELECT count(*) FROM orders WHERE customer_id = $1`,
				customer); n != test.want || placed.Load() != n || rejected.Load() != 50-n {
				t.Errorf("%d placed, %d rejected, %d orders in the database; want %d placed, and all others rejected",
					placed.Load(), rejected.Load(), n, test.want)
			}
			s.CheckInvariants(t, 0)
		})
	}
}
