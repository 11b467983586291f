package order_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
)

func TestPlace(t *testing.T) {
	s := newShop(t)
	customer, a, b := s.customer(t), s.product(t, 10), s.product(t, 5)

	o := s.place(t, customer, line(a, 3), line(b, 5))

	if o.Status != order.Pending || o.TotalCents != 800 || o.Currency != "EUR" || o.PaidAt != nil || o.CancelledAt != nil {
		t.Errorf("placed %+v", o)
	}
	if got := o.ExpiresAt.Sub(o.CreatedAt); got != timeout {
		t.Errorf("time to pay is %v, want %v", got, timeout)
	}
	if len(o.Items) != 2 || o.Items[0].UnitPriceCents != 100 || o.Items[0].Name == "" {
		t.Errorf("items are %+v", o.Items)
	}
	if s.available(t, a) != 7 || s.available(t, b) != 0 {
		t.Errorf("available are %d and %d, want 7 and 0", s.available(t, a), s.available(t, b))
	}
	if !query[bool](t, s, `SELECT due_at = $2 FROM outbox WHERE kind = $1 AND task_id = $3`, order.CancelKind, o.ExpiresAt, o.ID) {
		t.Error("outbox row is not due at the deadline")
	}
	msgs := s.published.all()
	if len(msgs) != 1 || msgs[0].ID != o.ID.String() {
		t.Fatalf("published %v", msgs)
	}
	if left := msgs[0].Left(); left > timeout || left < timeout-10*time.Second {
		t.Errorf("published with %v left", left)
	}

	got, err := s.Get(t.Context(), customer, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	got.ServerTime = o.ServerTime
	if !slices.Equal(got.Items, o.Items) || got.ExpiresAt != o.ExpiresAt || got.TotalCents != o.TotalCents {
		t.Errorf("read %+v, placed %+v", got, o)
	}
	events, err := s.Events(t.Context(), customer, o.ID)
	if err != nil || !slices.Equal(events, []order.Event{{Type: "placed", Actor: order.Customer, At: o.CreatedAt}}) {
		t.Errorf("events are %v, %v", events, err)
	}
	s.keepsPromise(t, 0)
}

func TestPlaceRefused(t *testing.T) {
	s := newShop(t)
	customer := s.customer(t)
	plenty, few, dollars := s.product(t, 1000), s.product(t, 2), s.productIn(t, 10, "USD")
	unknown := uuid.MustParse("00000000-0000-7000-8000-000000000001")
	tooMany := make([]order.Line, 51)
	for i := range tooMany {
		tooMany[i] = line(uuid.New(), 1)
	}

	for name, test := range map[string]struct {
		lines  []order.Line
		code   order.Code
		faults []string // pointers
	}{
		"nothing":          {nil, order.CodeInvalid, []string{"/items"}},
		"too many lines":   {tooMany, order.CodeInvalid, []string{"/items"}},
		"quantities":       {[]order.Line{line(plenty, 0), line(few, -1), line(dollars, 1001)}, order.CodeInvalid, []string{"/items/0/quantity", "/items/1/quantity", "/items/2/quantity"}},
		"twice":            {[]order.Line{line(plenty, 1), line(few, 1), line(plenty, 1)}, order.CodeInvalid, []string{"/items/2/product_id"}},
		"no product":       {[]order.Line{{Quantity: 1}}, order.CodeInvalid, []string{"/items/0/product_id"}},
		"unknown products": {[]order.Line{line(unknown, 1), line(plenty, 1), line(uuid.New(), 1)}, order.CodeUnknownProduct, []string{"/items/0/product_id", "/items/2/product_id"}},
		"two currencies":   {[]order.Line{line(plenty, 1), line(dollars, 1)}, order.CodeMixedCurrencies, []string{"/items/0/product_id", "/items/1/product_id"}},
		"short":            {[]order.Line{line(plenty, 1), line(few, 3)}, order.CodeOutOfStock, []string{"/items/1/quantity"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: test.lines, IdempotencyKey: name})
			if codeOf(err) != test.code {
				t.Fatalf("refused with %v, want %s", err, test.code)
			}
			var pointers []string
			for _, fault := range err.(*order.Error).Faults {
				pointers = append(pointers, fault.Pointer)
			}
			if !slices.Equal(pointers, test.faults) {
				t.Errorf("names %v, want %v", pointers, test.faults)
			}
			if n := query[int](t, s, `SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM outbox) + (SELECT count(*) FROM order_events)`); n != 0 {
				t.Errorf("%d rows written", n)
			}
		})
	}
	if s.available(t, plenty) != 1000 || s.available(t, few) != 2 || len(s.published.all()) != 0 {
		t.Error("a refusal changed the stock or published a task")
	}
}

func TestPlaceTellsWhatIsLeft(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 2)
	_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 3)}})
	if codeOf(err) != order.CodeOutOfStock {
		t.Fatal(err)
	}
	want := "product " + product.String()[:4] + ": 3 wanted, 2 available"
	if got := err.(*order.Error).Faults[0].Detail; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestCustomersAreRowsOnceTheyOrder: clients that only sign up must not fill the database.
func TestCustomersAreRowsOnceTheyOrder(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 1)
	known := func() int { return query[int](t, s, `SELECT count(*) FROM customers`) }
	if orders, next, err := s.List(t.Context(), customer, nil, 20); len(orders) != 0 || next != nil || err != nil {
		t.Errorf("orders of a new customer: %v, %v, %v", orders, next, err)
	}
	if _, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 2)}}); codeOf(err) != order.CodeOutOfStock {
		t.Error(err)
	}
	if n := known(); n != 0 {
		t.Errorf("%d customers without an order are rows", n)
	}
	s.place(t, customer, line(product, 1))
	if n := known(); n != 1 {
		t.Errorf("%d customers are rows, want 1", n)
	}
	s.keepsPromise(t, 0)
}

// TestFirstOrdersAtOnce has a new customer place several orders at the same time.
func TestFirstOrdersAtOnce(t *testing.T) {
	s := newShop(t)
	const tabs = 8
	a, b := s.product(t, 10*tabs), s.product(t, 10*tabs)
	for range 10 {
		customer := s.customer(t)
		var wg sync.WaitGroup
		for i := range tabs {
			wg.Go(func() {
				lines := [][]order.Line{{line(a, 1)}, {line(b, 1)}, {line(a, 1), line(b, 1)}}[i%3]
				if _, _, err := s.Place(t.Context(), customer, order.Placement{Lines: lines}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	s.keepsPromise(t, 0)
}

func TestPlaceAgainWithTheSameKey(t *testing.T) {
	s := newShop(t)
	customer, a, b := s.customer(t), s.product(t, 3), s.product(t, 3)
	place := func(customer uuid.UUID, lines ...order.Line) (*order.Order, bool, error) {
		return s.Place(t.Context(), customer, order.Placement{IdempotencyKey: "key", Lines: lines})
	}
	first, replayed, err := place(customer, line(a, 2), line(b, 3))
	if err != nil || replayed {
		t.Fatal(replayed, err)
	}

	// There is not enough for a second order, and the lines come the other way round: it is the first.
	again, replayed, err := place(customer, line(b, 3), line(a, 2))
	if err != nil || !replayed || again.ID != first.ID {
		t.Errorf("again: %v, replayed %v, %v", again, replayed, err)
	}
	if _, _, err := place(customer, line(a, 1)); codeOf(err) != order.CodeKeyReused {
		t.Errorf("something else with the same key: %v", err)
	}
	if _, _, err := place(customer, line(uuid.New(), 1)); codeOf(err) != order.CodeKeyReused {
		t.Errorf("something unknown with the same key: %v", err)
	}
	other, replayed, err := place(s.customer(t), line(a, 1))
	if err != nil || replayed || other.ID == first.ID {
		t.Errorf("another customer's same key: %v, replayed %v, %v", other, replayed, err)
	}
	if s.available(t, a) != 0 || len(s.published.all()) != 2 {
		t.Errorf("%d available, %d published", s.available(t, a), len(s.published.all()))
	}
	s.keepsPromise(t, 0)
}

func TestPlaceSellsTheLastOnesOnce(t *testing.T) {
	s := newShop(t)
	product := s.product(t, 30)
	var sold, refused atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		customer := s.customer(t)
		wg.Go(func() {
			switch _, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 1)}}); {
			case err == nil:
				sold.Add(1)
			case codeOf(err) == order.CodeOutOfStock:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if sold.Load() != 30 || refused.Load() != 20 || s.available(t, product) != 0 {
		t.Errorf("sold %d, refused %d, %d left of 30", sold.Load(), refused.Load(), s.available(t, product))
	}
	s.keepsPromise(t, 0)
}

// TestPlaceOfWhatComesAndGoes has customers take turns with the only one there is: whoever does not get it is told
// that it is not there, though it may be back before they are.
func TestPlaceOfWhatComesAndGoes(t *testing.T) {
	s := newShop(t)
	product := s.product(t, 1)
	var had atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		customer := s.customer(t)
		wg.Go(func() {
			for range 100 {
				o, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 1)}})
				if err == nil {
					had.Add(1)
					_, err = s.Cancel(t.Context(), customer, o.ID)
				}
				if err != nil && codeOf(err) != order.CodeOutOfStock {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if had.Load() == 0 || s.available(t, product) != 1 {
		t.Errorf("had %d times, %d left of 1", had.Load(), s.available(t, product))
	}
	s.keepsPromise(t, 0)
}

func TestPlaceChargesThePriceOfTheMomentItGetsTheStock(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 5)
	release := s.hold(t, `UPDATE products SET price_cents = 250, available = 3 WHERE id = $1`, product)
	placed := make(chan *order.Order, 1)
	go func() {
		o, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 3)}})
		if err != nil {
			t.Error(err)
		}
		placed <- o
	}()
	s.waitsForLock(t)
	release()
	if o := <-placed; o.TotalCents != 750 || s.available(t, product) != 0 {
		t.Errorf("total %d, available %d, want 750 and 0", o.TotalCents, s.available(t, product))
	}
}

// TestPlaceGetsWhatCameMeanwhile has a customer wait for a product that is sold out when the statement begins, and
// is not when it gets the row.
func TestPlaceGetsWhatCameMeanwhile(t *testing.T) {
	for name, change := range map[string]string{
		"released":  `UPDATE products SET available = 1 WHERE id = $1`,
		"delivered": `UPDATE products SET available = 5, supply = 5 WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) { placeDuring(t, change) })
	}
}

func placeDuring(t *testing.T, change string) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 1)
	s.exec(t, `UPDATE products SET available = 0 WHERE id = $1`, product)
	release := s.hold(t, change, product)
	placed := make(chan error, 1)
	go func() {
		_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 1)}})
		placed <- err
	}()
	s.waitsForLock(t)
	release()
	if err := <-placed; err != nil {
		t.Errorf("place: %v", err)
	}
	if short := query[int64](t, s, `SELECT supply - available FROM products WHERE id = $1`, product); short != 1 {
		t.Errorf("%d of the product ordered, want 1", short)
	}
}

// waitsForLock waits until a statement waits for a lock.
func (s *shop) waitsForLock(t *testing.T) {
	t.Helper()
	eventually(t, "a statement that waits for a lock", func() bool {
		return query[bool](t, s, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	})
}
