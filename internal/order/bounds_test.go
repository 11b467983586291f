package order_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// checkTooManyOpen checks that an error is the rejection of a placement by a bound, with the pointers of its field
// errors and the ids of the open orders, the newest first.
func checkTooManyOpen(t *testing.T, err error, pointers []string, open ...*order.Order) {
	t.Helper()
	checkNamesOrders(t, err, order.TooManyOpen, pointers, open...)
}

// checkNamesOrders checks that an error is the rejection of a placement, with the pointers of its field errors and the
// ids of open orders, the newest first.
func checkNamesOrders(t *testing.T, err error, class rest.Class, pointers []string, open ...*order.Order) {
	t.Helper()
	if parttest.ClassOf(err) != class {
		t.Errorf("Place returns %v, want code %s", err, class.Code)
		return
	}
	rejection := err.(*rest.Error)
	var got []string
	for _, f := range rejection.Fields {
		got = append(got, f.Pointer)
	}
	if !slices.Equal(got, pointers) {
		t.Errorf("field errors are at %v, want %v", got, pointers)
	}
	want := []uuid.UUID{}
	for _, o := range open {
		want = append(want, o.ID)
	}
	if ids, ok := rejection.Extensions["open_orders"].([]uuid.UUID); !ok || !slices.Equal(ids, want) {
		t.Errorf("open_orders is %v, want %v", rejection.Extensions["open_orders"], want)
	}
}

// try places an order, and returns the error.
func (s *shop) try(t testing.TB, customer uuid.UUID, lines ...order.Line) error {
	t.Helper()
	_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: lines})
	return err
}

func TestMaxOpenOrders(t *testing.T) {
	aloneAndInBatchWith(t, bounds{orders: 3}.set, testMaxOpenOrders)
}

func testMaxOpenOrders(t *testing.T, s *shop) {
	customer, a, b := s.Customer(t), s.Product(t, 100), s.Product(t, 100)
	first, second, third := s.place(t, customer, line(a, 1)), s.place(t, customer, line(a, 20), line(b, 1)), s.place(t,
		customer, line(b, 1))
	checkTooManyOpen(t, s.try(t, customer, line(b, 1)), nil, third, second, first)
	if n := s.Available(t, b); n != 98 {
		t.Errorf("%d available after the rejection, want 98", n)
	}
	s.place(t, s.Customer(t), line(b, 1)) // the bound is for each customer

	// A held order counts, also after its deadline.
	s.Hold(t, second.ID)
	s.Pass(t, second.ID, timeout)
	checkTooManyOpen(t, s.try(t, customer, line(b, 1)), nil, third, first, second)

	if _, err := s.Pay(t.Context(), customer, first.ID); err != nil {
		t.Fatal(err)
	}
	fourth := s.place(t, customer, line(b, 1))
	checkTooManyOpen(t, s.try(t, customer, line(b, 1)), nil, fourth, third, second)
	if _, err := s.Cancel(t.Context(), customer, third.ID); err != nil {
		t.Fatal(err)
	}
	fifth := s.place(t, customer, line(b, 1))
	checkTooManyOpen(t, s.try(t, customer, line(b, 1)), nil, fifth, fourth, second)
	s.PayHeld(t, second.ID)
	sixth := s.place(t, customer, line(b, 1))
	checkTooManyOpen(t, s.try(t, customer, line(b, 1)), nil, sixth, fifth, fourth)
	s.Expire(t, fourth.ID)
	s.Deliver(t, fourth.ID)
	s.place(t, customer, line(b, 1))
	s.CheckInvariants(t, 0)
}

func TestMaxOpenUnits(t *testing.T) {
	s := newShop(t, bounds{units: 5}.set)
	customer, a, b := s.Customer(t), s.Product(t, 100), s.Product(t, 100)
	checkTooManyOpen(t, s.try(t, customer, line(b, 5), line(a, 6)), []string{"/items/1/quantity"})
	first := s.place(t, customer, line(a, 3), line(b, 1))
	onlyB := s.place(t, customer, line(b, 1))
	second := s.place(t, customer, line(a, 2))
	checkTooManyOpen(t, s.try(t, customer, line(b, 1), line(a, 1)), []string{"/items/1/quantity"}, second, first)
	checkTooManyOpen(t, s.try(t, customer, line(b, 4), line(a, 1)), []string{"/items/0/quantity", "/items/1/quantity"},
		second, onlyB, first)
	s.place(t, customer, line(b, 3))
	s.place(t, s.Customer(t), line(a, 5))

	_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(a, 4)}})
	name := "product " + a.String()[:4]
	if want := name +
		": 4 wanted, 5 in your open orders, at most 5 of both together"; parttest.ClassOf(err) != order.TooManyOpen ||
		err.(*rest.Error).Fields[0].Detail != want {
		t.Errorf("the error is %v, with fields %v; want the detail %q", err, rest.AsError(err).Fields, want)
	}

	if _, err := s.Pay(t.Context(), customer, second.ID); err != nil {
		t.Fatal(err)
	}
	s.place(t, customer, line(a, 2))
	s.Expire(t, first.ID)
	s.Deliver(t, first.ID)
	s.place(t, customer, line(a, 3))
	checkTooManyOpen(t, s.try(t, customer, line(a, 1)), []string{"/items/0/quantity"}, s.open(t, customer, a)...)
	s.CheckInvariants(t, 0)
}

// open returns the open orders of a customer with a product, the newest first.
func (s *shop) open(t *testing.T, customer, product uuid.UUID) (open []*order.Order) {
	t.Helper()
	all, _, err := s.List(t.Context(), customer, nil, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.Status == order.Pending && slices.ContainsFunc(o.Items,
			func(i order.Item) bool { return i.ProductID == product }) {
			open = append(open, &o)
		}
	}
	return open
}

// TestRejectionNamesOrdersOfSameBatch checks that a rejection names the orders of its own batch first, because they
// are the newest.
func TestRejectionNamesOrdersOfSameBatch(t *testing.T) {
	s := newShop(t, bounds{orders: 3}.set)
	customer, product := s.Customer(t), s.Product(t, 50)
	first := s.place(t, customer, line(product, 1))
	results := s.placeInOneBatch(t, wants(customer, line(product, 1)), wants(customer, line(product, 2)),
		wants(customer, line(product, 3)))
	if got, want := fmt.Sprint(results), "[placed placed too-many-open-orders]"; got != want {
		t.Fatalf("answers are %s, want %s", got, want)
	}
	checkTooManyOpen(t, results[2].err, nil, results[1].order, results[0].order, first)
}

// TestOverdueOrdersAreNotOpen checks that an order counts towards the bounds, and is named, until its due time. A
// customer was told to pay or cancel an overdue order that no sweep had reached yet, and both were answered
// deadline-passed.
func TestOverdueOrdersAreNotOpen(t *testing.T) {
	for name, test := range map[string]struct {
		steps string // see [ordertest.Shop.Do]
		open  bool
	}{
		"pending":                      {"", true},
		"near the deadline":            {"pass 29m", true},
		"overdue":                      {"pass 31m", false},
		"extended beyond its deadline": {"extend, pass 31m", true},
		"overdue after an extension":   {"extend, pass 41m", false},
		"held":                         {"hold", true},
		"held past the deadline":       {"hold, pass 31m", true},
		"hold ended":                   {"hold, pass 36m", false},
		"released past the deadline":   {"hold, pass 31m, release", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("orders", func(t *testing.T) {
				aloneAndInBatchWith(t, bounds{orders: 2}.set, func(t *testing.T, s *shop) {
					testOverdueOrderIsNotOpen(t, s, test.steps, 1, test.open, order.TooManyOpen)
				})
			})
			t.Run("units", func(t *testing.T) {
				aloneAndInBatchWith(t, bounds{units: 4}.set, func(t *testing.T, s *shop) {
					testOverdueOrderIsNotOpen(t, s, test.steps, 1, test.open, order.TooManyOpen)
				})
			})
			t.Run("stock", func(t *testing.T) {
				aloneAndInBatch(t, func(t *testing.T, s *shop) {
					testOverdueOrderIsNotOpen(t, s, test.steps, 17, test.open, order.OutOfStock)
				})
			})
		})
	}
}

// testOverdueOrderIsNotOpen has a customer place an order of 2 of 20 units, does the steps to it, and has the customer
// place another one of 2 and one of quantity. With an open first order, the bounds reject the last one. The stock
// rejects 17 in any case.
func testOverdueOrderIsNotOpen(t *testing.T, s *shop, steps string, quantity int64, open bool, class rest.Class) {
	customer, product := s.Customer(t), s.Product(t, 20)
	first := s.place(t, customer, line(product, 2))
	s.Do(t, steps, customer, first.ID)
	second := s.place(t, customer, line(product, 2))
	err := s.try(t, customer, line(product, quantity))
	var pointers []string
	if err != nil && len(rest.AsError(err).Fields) > 0 { // none if there are too many orders
		pointers = []string{"/items/0/quantity"}
	}
	switch {
	case open:
		checkNamesOrders(t, err, class, pointers, second, first)
	case class == order.OutOfStock:
		checkNamesOrders(t, err, class, pointers, second)
	case err != nil:
		t.Errorf("Place returns %v, want an order", err)
	}
}

// TestOrderEndsWhilePlacementWaits has a placement wait for the lock of its product while the due time of another
// order of its customer passes. The placement must decide by the time after its wait.
func TestOrderEndsWhilePlacementWaits(t *testing.T) {
	t.Parallel()
	aloneAndInBatchWith(t, bounds{orders: 1}.set, func(t *testing.T, s *shop) {
		customer, product := s.Customer(t), s.Product(t, 5)
		first := s.place(t, customer, line(product, 1))
		release := testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, product)
		placed := make(chan error, 1)
		go func() { placed <- s.try(t, customer, line(product, 1)) }()
		testenv.AwaitLockWait(t, s.DB)
		s.Exec(t, `UPDATE orders SET expires_at = clock_timestamp() WHERE id = $1`, first.ID)
		release()
		if err := <-placed; err != nil {
			t.Errorf("Place returns %v, want an order", err)
		}
		s.CheckInvariants(t, timeout)
	})
}

// TestOutOfStockNamesOpenOrders has a customer want units that their own open orders hold. A customer was told that
// there is not enough stock, and could not know that cancelling one of these orders would help.
func TestOutOfStockNamesOpenOrders(t *testing.T) {
	t.Run("no bounds", func(t *testing.T) { aloneAndInBatch(t, testOutOfStockNamesOpenOrders) })
	t.Run("bounds", func(t *testing.T) { aloneAndInBatchWith(t, bounds{10, 20}.set, testOutOfStockNamesOpenOrders) })
}

func testOutOfStockNamesOpenOrders(t *testing.T, s *shop) {
	customer, few, plenty := s.Customer(t), s.Product(t, 5), s.Product(t, 100)
	wants := func(customer uuid.UUID, quantity int64, open ...*order.Order) {
		t.Helper()
		err := s.try(t, customer, line(plenty, 1), line(few, quantity))
		if len(open) > 0 {
			checkNamesOrders(t, err, order.OutOfStock, []string{"/items/1/quantity"}, open...)
			return
		}
		rejection := rest.AsError(err)
		if rejection.Class != order.OutOfStock || len(rejection.Extensions) > 0 ||
			strings.Contains(err.Error(), "cancel") {
			t.Errorf("Place returns %v with %v, want out-of-stock that names no orders", err, rejection.Extensions)
		}
	}
	wants(customer, 6)
	first := s.place(t, customer, line(few, 1), line(plenty, 1))
	s.place(t, customer, line(plenty, 1)) // holds nothing that is short
	s.place(t, s.Customer(t), line(few, 1))
	second := s.place(t, customer, line(few, 2))
	wants(s.Customer(t), 2)
	wants(customer, 2, second, first)

	err := s.try(t, customer, line(few, 2))
	detail := "product " + few.String()[:4] + ": 2 wanted, 1 available, 3 in your open orders"
	if got := rest.AsError(err); !strings.Contains(got.Detail, "cancel") || got.Fields[0].Detail != detail {
		t.Errorf("Place returns %v with the fields %v, want advice to cancel, and %q", err, got.Fields, detail)
	}

	s.Hold(t, first.ID) // a held order can be cancelled, too
	wants(customer, 2, second, first)
	if _, err := s.Pay(t.Context(), customer, second.ID); err != nil {
		t.Fatal(err)
	}
	wants(customer, 2, first)
	s.Release(t, first.ID)
	if _, err := s.Cancel(t.Context(), customer, first.ID); err != nil {
		t.Fatal(err)
	}
	wants(customer, 3)
	third := s.place(t, customer, line(few, 2))
	wants(customer, 1, third)
	s.CheckInvariants(t, 0)
}

// TestOutOfStockNamesOrdersOfSameBatch checks that a rejection also names the orders of its own batch, and only those
// of its customer.
func TestOutOfStockNamesOrdersOfSameBatch(t *testing.T) {
	s := newShop(t)
	customer, few, plenty := s.Customer(t), s.Product(t, 4), s.Product(t, 50)
	first := s.place(t, customer, line(few, 1))
	results := s.placeInOneBatch(t,
		wants(customer, line(few, 1)), wants(s.Customer(t), line(few, 1)), wants(customer, line(plenty, 1)),
		wants(customer, line(few, 2)), wants(s.Customer(t), line(few, 2)), wants(customer, line(few, 1)))
	if got, want := fmt.Sprint(results), "[placed placed placed out-of-stock out-of-stock placed]"; got != want {
		t.Fatalf("answers are %s, want %s", got, want)
	}
	// The placement was rejected in the transaction that places the first order of the batch. The last one was decided
	// later, because it might have been too many.
	err := results[3].err
	checkNamesOrders(t, err, order.OutOfStock, []string{"/items/0/quantity"}, results[0].order, first)
	if extensions := rest.AsError(results[4].err).Extensions; len(extensions) > 0 {
		t.Errorf("the rejection of another customer has %v, want no orders", extensions)
	}
}

// TestReasonsHaveAnOrder checks which reason is reported if a placement is rejected for several reasons. It is the
// first of: unknown product, mixed currencies, out of stock, too many orders, too many units.
func TestReasonsHaveAnOrder(t *testing.T) {
	aloneAndInBatchWith(t, bounds{2, 5}.set, func(t *testing.T, s *shop) {
		customer := s.Customer(t)
		euros, few, dollars := s.Product(t, 100), s.Product(t, 1), s.ProductWithCurrency(t, 100, "USD")
		s.place(t, customer, line(euros, 1))
		s.place(t, customer, line(euros, 1))
		for _, test := range []struct {
			lines []order.Line
			want  rest.Class
		}{
			{[]order.Line{line(uuid.New(), 1), line(dollars, 6), line(few, 2)}, order.UnknownProduct},
			{[]order.Line{line(dollars, 6), line(few, 2)}, order.MixedCurrencies},
			{[]order.Line{line(few, 6)}, order.OutOfStock},
			{[]order.Line{line(euros, 6)}, order.TooManyOpen},
		} {
			if err := s.try(t, customer, test.lines...); parttest.ClassOf(err) != test.want {
				t.Errorf("lines %v: %v, want code %s", test.lines, err, test.want.Code)
			}
		}
		checkTooManyOpen(t, s.try(t, customer, line(euros, 6)), nil, s.open(t, customer, euros)...)
	})
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

// TestOpenOrdersProblem checks the problems of placements that the customer's own open orders prevent. The contract
// has their members.
func TestOpenOrdersProblem(t *testing.T) {
	for name, test := range map[string]struct {
		bounds   bounds
		quantity int
		class    rest.Class
	}{
		"a bound":      {bounds{2, 5}, 2, order.TooManyOpen},
		"out of stock": {bounds{}, 42, order.OutOfStock},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHTTPShop(t, test.bounds.set)
			customer, product := s.Customer(t), s.Product(t, 50)
			first := s.place(t, customer, line(product, 4))
			s.place(t, s.Customer(t), line(product, 5)) // another customer's order is neither counted nor named
			body, authorization := orderBody(product, test.quantity), "Authorization: Bearer "+s.token(t, customer)
			a := s.send(t, "POST", "/api/orders", body, authorization)
			p := a.problem(t)
			open := decode[struct {
				Open []uuid.UUID `json:"open_orders"`
			}](t, a).Open
			if a.status != http.StatusConflict || p.Type != "/problems/"+test.class.Code ||
				p.Title != test.class.Title ||
				!slices.Equal(open, []uuid.UUID{first.ID}) || len(p.Errors) != 1 ||
				p.Errors[0].Pointer != "/items/0/quantity" {
				t.Errorf("%d units are answered with %d %s, want 409, the open order %s and a field error at "+
					"/items/0/quantity",
					test.quantity, a.status, a.body, first.ID)
			}
		})
	}
}
