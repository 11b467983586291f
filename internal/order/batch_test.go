package order_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// request is a placement of a customer.
type request struct {
	customer uuid.UUID
	order.Placement
}

// result is what Place returned for a request.
type result struct {
	order    *order.Order
	replayed bool
	err      error
	after    time.Duration // from the start of the batch
}

// batchUnderWay is a batch of placements under way.
type batchUnderWay struct {
	began   time.Time
	results []result
	done    []chan struct{} // closed when the result is there
}

// wait waits for all results.
func (b *batchUnderWay) wait() []result {
	for _, done := range b.done {
		<-done
	}
	return b.results
}

// queued is the context of a placement. It tells when the placement is in the queue: from then on the caller waits for
// the end of the context, and asks for its channel for the first time.
type queued struct {
	context.Context
	arrived chan struct{} // closed when the placement is in the queue
	once    *sync.Once
}

func newQueued(ctx context.Context) queued { return queued{ctx, make(chan struct{}), new(sync.Once)} }

func (q queued) Done() <-chan struct{} {
	q.once.Do(func() { close(q.arrived) })
	return q.Context.Done()
}

// placeInOneBatch places orders in one batch, in the order of the requests.
func (s *shop) placeInOneBatch(t testing.TB, requests ...request) []result {
	t.Helper()
	return s.startBatch(t, t.Context(), requests...).wait()
}

// startBatch begins to place orders in one batch, in the order of the requests.
func (s *shop) startBatch(t testing.TB, ctx context.Context, requests ...request) *batchUnderWay {
	t.Helper()
	b := &batchUnderWay{time.Now(), make([]result, len(requests)), make([]chan struct{}, len(requests))}
	defer s.lanes.Hold()()
	for i, r := range requests {
		b.done[i] = make(chan struct{})
		placing := newQueued(ctx)
		go func() {
			defer close(b.done[i])
			o, replayed, err := s.Service.Place(placing, r.customer, r.Placement)
			b.results[i] = result{o, replayed, err, time.Since(b.began)}
		}()
		select {
		case <-placing.arrived:
		case <-b.done[i]: // rejected without a batch
		case <-time.After(10 * time.Second):
			t.Errorf("placement %d of a batch did not arrive in the queue within 10 s", i)
		}
	}
	return b
}

// String describes the request briefly, with parts of ids.
func (r request) String() string {
	text := r.customer.String()[30:] + " " + r.IdempotencyKey + ":"
	for _, l := range r.Lines {
		text += fmt.Sprintf(" %d of %s", l.Quantity, l.ProductID.String()[:4])
	}
	return text
}

// wants returns a request without an idempotency key.
func wants(customer uuid.UUID, lines ...order.Line) request {
	return request{customer, order.Placement{Lines: lines}}
}

// wantsWithKey returns a request with an idempotency key.
func wantsWithKey(customer uuid.UUID, key string, lines ...order.Line) request {
	return request{customer, order.Placement{IdempotencyKey: key, Lines: lines}}
}

// String returns the code of the rejection, "replayed" or "placed".
func (r result) String() string {
	switch {
	case r.err != nil:
		return parttest.ClassOf(r.err).Code
	case r.replayed:
		return "replayed"
	}
	return "placed"
}

// neighbours are the placements that [shop.Place] adds to the batch of a test's placement: two before it and two after
// it. They want a product that no test wants.
type neighbours struct{ product uuid.UUID }

// aloneAndInBatch runs a test with a shop that places orders alone, and with one that places each order in a batch
// among neighbours.
func aloneAndInBatch(t *testing.T, test func(t *testing.T, s *shop)) {
	aloneAndInBatchWith(t, func(*order.Config) {}, test)
}

// aloneAndInBatchWith is aloneAndInBatch with a change of the shops' configuration.
func aloneAndInBatchWith(t *testing.T, change func(*order.Config), test func(t *testing.T, s *shop)) {
	t.Run("alone", func(t *testing.T) { test(t, newShop(t, change)) })
	t.Run("among neighbours", func(t *testing.T) {
		s := newShop(t, change)
		s.neighbours = &neighbours{s.Product(t, 1_000_000)}
		test(t, s)
	})
}

// Place is [order.Service.Place]. For half a minute it repeats a placement that is rejected because of overload: that
// happens on a slow machine. In a shop with neighbours it places the order in a batch among them, and checks that each
// of them gets its own answer.
func (s *shop) Place(ctx context.Context, customer uuid.UUID, p order.Placement) (*order.Order, bool, error) {
	if s.neighbours != nil {
		return s.neighbours.place(ctx, s, request{customer, p})
	}
	o, replayed, err := s.Service.Place(ctx, customer, p)
	for end := time.Now().Add(30 * time.Second); parttest.ClassOf(err) == rest.Overloaded && ctx.Err() == nil &&
		time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
		o, replayed, err = s.Service.Place(ctx, customer, p)
	}
	return o, replayed, err
}

func (n *neighbours) place(ctx context.Context, s *shop, r request) (*order.Order, bool, error) {
	// The test may run Place in another goroutine, where it must not call t.FailNow. Here only t.Errorf is called.
	t := s.t
	unknown := order.Line{ProductID: uuid.New(), Quantity: 1}
	b := s.startBatch(t, ctx,
		wants(s.Customer(t), line(n.product, 2)), wants(s.Customer(t), line(n.product, 1000), unknown), r,
		wantsWithKey(s.Customer(t), "key", line(n.product, 3)), wants(s.Customer(t), unknown))
	results := b.wait()
	for i, want := range map[int]string{0: "placed", 1: "unknown-product", 3: "placed", 4: "unknown-product"} {
		got := results[i]
		if got.String() != want {
			t.Errorf("neighbour %d: %v %v, want %s", i, got, got.err, want)
		}
		if got.order != nil && (len(got.order.Items) != 1 || got.order.Items[0].ProductID != n.product ||
			got.order.Items[0].Quantity != got.order.TotalCents/100) {
			t.Errorf("neighbour %d gets order %+v, want its own", i, got.order)
		}
	}
	return results[2].order, results[2].replayed, results[2].err
}

// TestBatchDecidesInOrderOfArrival places batches of orders of up to three products. Each customer has one order.
func TestBatchDecidesInOrderOfArrival(t *testing.T) {
	const yes, no, unknown, mixed = "placed", "out-of-stock", "unknown-product", "mixed-currencies"
	type lines = map[string]int64 // by product: A and B cost euros, D dollars, U does not exist
	for name, test := range map[string]struct {
		stock  lines
		wanted []lines
		want   []string
	}{
		"a smaller order fits after a rejected one": {lines{"A": 5}, []lines{{"A": 2}, {"A": 2}, {"A": 2}, {"A": 1}},
			[]string{yes, yes, no, yes}},
		"a large order before all others": {lines{"A": 5}, []lines{{"A": 6}, {"A": 5}, {"A": 1}},
			[]string{no, yes, no}},
		"a rejected order takes nothing of its other products": {
			lines{"A": 1, "B": 3}, []lines{{"A": 2, "B": 3}, {"B": 2}, {"A": 1, "B": 2},
				{"A": 1, "B": 1}}, []string{no, yes, no, yes},
		},
		"the first in a chain decides all": {
			lines{"A": 1, "B": 1, "D": 1},
			[]lines{{"A": 2}, {"A": 1, "B": 1}, {"B": 1}, {"D": 1}}, []string{no, yes, no, yes},
		},
		"an order with another currency takes nothing": {lines{"A": 1, "D": 1},
			[]lines{{"A": 1, "D": 1}, {"A": 1}, {"D": 1}}, []string{mixed, yes, yes}},
		"an order that waits is not overtaken": {lines{"A": 2, "B": 2},
			[]lines{{"A": 3, "B": 2}, {"A": 2, "B": 1}, {"A": 1}, {"B": 2}, {"B": 1}}, []string{no, yes, no, no, yes}},
		"the last unit goes to the first of many": {lines{"A": 1}, slices.Repeat([]lines{{"A": 1}}, 30),
			append([]string{yes}, slices.Repeat([]string{no}, 29)...)},
		"an unknown product alone does not stop a batch": {lines{"A": 1}, []lines{{"U": 1}, {"U": 1}, {"A": 1}},
			[]string{unknown, unknown, yes}},
		"reasons are found in their order, also together": {lines{"A": 0, "D": 1},
			[]lines{{"A": 1, "D": 1, "U": 1}, {"A": 1, "D": 1}, {"A": 1}}, []string{unknown, mixed, no}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			products := map[string]uuid.UUID{"U": uuid.New()}
			for p, supply := range test.stock {
				products[p] = s.ProductWithCurrency(t, supply, map[bool]string{true: "USD", false: "EUR"}[p == "D"])
			}
			var requests []request
			left := lines{}
			for p, n := range test.stock {
				left[p] = n
			}
			for i, wanted := range test.wanted {
				r := wants(s.Customer(t))
				for p, quantity := range wanted {
					r.Lines = append(r.Lines, line(products[p], quantity))
					if test.want[i] == yes {
						left[p] -= quantity
					}
				}
				requests = append(requests, r)
			}
			results := s.placeInOneBatch(t, requests...)
			if got := fmt.Sprint(results); got != fmt.Sprint(test.want) {
				t.Errorf("answers are %s, want %s", got, test.want)
			}
			for i, r := range results {
				if r.order != nil {
					s.checkPlaced(t, requests[i], r.order)
				}
			}
			for p, want := range left {
				if got := s.Available(t, products[p]); got != want {
					t.Errorf("%d of product %s available, want %d", got, p, want)
				}
			}
			s.CheckInvariants(t, 0)
		})
	}
}

// checkPlaced checks that an order is that of a request, that the database has it with all its rows, and that its task
// was published once.
func (s *shop) checkPlaced(t testing.TB, r request, o *order.Order) {
	t.Helper()
	var lines []order.Line
	for _, item := range o.Items {
		lines = append(lines, line(item.ProductID, item.Quantity))
	}
	if o.CustomerID != r.customer || canonical(lines) != canonical(r.Lines) {
		t.Errorf("the answer to %+v is order %+v, want its own order", r, o)
	}
	read, err := s.Get(t.Context(), r.customer, o.ID)
	if err != nil {
		t.Errorf("read the order of %+v: %v", r, err)
		return
	}
	if !slices.Equal(read.Items, o.Items) || read.TotalCents != o.TotalCents || read.ExpiresAt != o.ExpiresAt ||
		read.CreatedAt != o.CreatedAt ||
		read.DueAt != o.DueAt || read.Currency != o.Currency {
		t.Errorf("Place returns %+v, the database has %+v", o, read)
	}
	if rows := testenv.Query[string](t, s.DB,
		`SELECT concat((SELECT count(*) FROM order_events WHERE order_id = $1), (SELECT count(*) FROM outbox
			WHERE task_id = $2))`,
		o.ID, o.ID.String()); rows != "01" {
		t.Errorf("order %s has events and outbox rows %s, want none and one", o.ID, rows)
	}
	s.awaitPublished(t)
	if n, m := s.Published.Of(o.ID), s.Notified.Of(o.CustomerID, o.ID); n != 1 || m != 1 {
		t.Errorf("order %s: its task was published %d times, and %d notifications were sent, want one of each", o.ID,
			n, m)
	}
}

// TestBatchIsOneTransaction checks that a batch without rejections is one transaction: all its orders have one time.
func TestBatchIsOneTransaction(t *testing.T) {
	s := newShop(t)
	a, b := s.Product(t, 1000), s.Product(t, 1000)
	var requests []request
	for i := range int64(200) {
		requests = append(requests, wants(s.Customer(t), line(a, i%3+1), line(b, 1)))
	}
	for i, r := range s.placeInOneBatch(t, requests...) {
		if r.err != nil {
			t.Fatal(r.err)
		}
		s.checkPlaced(t, requests[i], r.order)
	}
	if n := testenv.Query[int](t, s.DB, `SELECT count(DISTINCT xmin::text) FROM orders`); n != 1 {
		t.Errorf("200 orders were placed in %d transactions, want 1", n)
	}
	if n := len(s.Published.Calls()); n != 1 {
		t.Errorf("their tasks were published in %d calls, want 1", n)
	}
	s.CheckInvariants(t, 0)
}

// TestSameKeyInOneBatch places orders of one customer with one idempotency key in a batch, in which other customers
// want the same product. The stock is 5.
func TestSameKeyInOneBatch(t *testing.T) {
	for name, test := range map[string]struct {
		quantities []int64 // negative: of another customer, without a key
		want       string
	}{
		"same lines":                {[]int64{2, 2, 2}, "[placed replayed replayed]"},
		"other lines":               {[]int64{2, 3, 2}, "[placed idempotency-key-reused replayed]"},
		"the first is rejected":     {[]int64{6, 2, 2}, "[out-of-stock placed replayed]"},
		"in their order of arrival": {[]int64{6, 5, -1}, "[out-of-stock placed out-of-stock]"},
		"a replay takes nothing":    {[]int64{3, 3, -2, -1}, "[placed replayed placed out-of-stock]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			customer, product := s.Customer(t), s.Product(t, 5)
			var requests []request
			for _, n := range test.quantities {
				if n < 0 {
					requests = append(requests, wants(s.Customer(t), line(product, -n)))
				} else {
					requests = append(requests, wantsWithKey(customer, "key", line(product, n)))
				}
			}
			results := s.placeInOneBatch(t, requests...)
			if got := fmt.Sprint(results); got != test.want {
				t.Errorf("answers are %s, want %s", got, test.want)
			}
			var id uuid.UUID // of the order with the key
			for i, r := range results {
				switch {
				case r.err != nil:
				case !r.replayed:
					s.checkPlaced(t, requests[i], r.order)
					if requests[i].IdempotencyKey != "" {
						id = r.order.ID
					}
				case r.order.ID != id:
					t.Errorf("placement %d is answered with order %s, want the order with its key, %s", i, r.order.ID,
						id)
				}
			}
			s.CheckInvariants(t, 0)
		})
	}
}

// TestRejectionInBatchNamesStock checks the field errors of rejected placements between accepted ones.
func TestRejectionInBatchNamesStock(t *testing.T) {
	s := newShop(t)
	a, b := s.Product(t, 5), s.Product(t, 3)
	results := s.placeInOneBatch(t,
		wants(s.Customer(t), line(a, 3)), wants(s.Customer(t), line(b, 1), line(a, 3)), wants(s.Customer(t),
			line(a, 1), line(b, 2)),
		wants(s.Customer(t), line(a, 2), line(b, 2)))
	if got, want := fmt.Sprint(results), "[placed out-of-stock placed out-of-stock]"; got != want {
		t.Fatalf("answers are %s, want %s", got, want)
	}
	name := func(product uuid.UUID) string { return "product " + product.String()[:4] }
	for i, want := range map[int][]rest.FieldError{
		1: {{Pointer: "/items/1/quantity", Detail: name(a) + ": 3 wanted, 2 available"}},
		3: {{Pointer: "/items/0/quantity", Detail: name(a) + ": 2 wanted, 1 available"},
			{Pointer: "/items/1/quantity", Detail: name(b) + ": 2 wanted, 1 available"}},
	} {
		if got := results[i].err.(*rest.Error).Fields; !slices.Equal(got, want) {
			t.Errorf("placement %d: field errors are %v, want %v", i, got, want)
		}
	}
}

// canonical formats lines. The same lines in another order give the same text.
func canonical(lines []order.Line) string {
	quantities := map[uuid.UUID]int64{}
	for _, l := range lines {
		quantities[l.ProductID] = l.Quantity
	}
	return fmt.Sprint(quantities) // fmt sorts maps by key
}
