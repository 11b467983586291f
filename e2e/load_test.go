package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is customers at work: each visit is one customer with one order.
type load struct {
	d         *deployment
	began     time.Time
	customers []*client
	visits    []*visit
	answered  atomic.Int64 // visits whose order was placed
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// visit is what one customer asks about one order, and what the answers were.
type visit struct {
	load     *load
	customer *client
	key      string
	body     string
	plan     string

	mu      sync.Mutex
	history history
	id      string
	refused map[int]int     // refusals by status, 0 where there was no answer
	took    []time.Duration // of each answer
	wrong   []string        // answers that no order has
}

// plans are what customers do; most leave.
var plans = []string{"leave", "leave", "leave", "pay", "pay", "pay twice", "cancel", "pay and cancel", "pay late", "place twice", "give up"}

const (
	mokaPot = "01900000-0000-7000-8000-000000000002"
	grinder = "01900000-0000-7000-8000-000000000003"
	course  = "01900000-0000-7000-8000-000000000005" // scarce: most that ask for it come in vain
)

var baskets = []string{
	oneOfBeans,
	`{"items":[{"product_id":"` + mokaPot + `","quantity":1}]}`,
	`{"items":[{"product_id":"` + grinder + `","quantity":2},{"product_id":"` + beans + `","quantity":1}]}`,
	`{"items":[{"product_id":"` + beans + `","quantity":3},{"product_id":"` + mokaPot + `","quantity":1}]}`,
	`{"items":[{"product_id":"` + course + `","quantity":1}]}`,
}

// open lets customers in: rate new orders per second, whatever becomes of them, as drawn from rng.
func (d *deployment) open(rng *rand.Rand, rate int) *load {
	d.t.Helper()
	ctx, stop := context.WithCancel(d.t.Context())
	l := &load{d: d, began: time.Now(), stop: stop}
	for range 5 {
		l.customers = append(l.customers, d.all("api")[0].signUp())
	}
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				v := l.visit(rng)
				l.running.Go(v.run)
			}
		}
	})
	d.t.Cleanup(func() {
		stop()
		l.running.Wait()
	})
	return l
}

func (l *load) visit(rng *rand.Rand) *visit {
	v := &visit{
		load: l, customer: l.customers[rng.IntN(len(l.customers))], key: fmt.Sprintf("visit-%d", len(l.visits)),
		body: baskets[rng.IntN(len(baskets))], plan: plans[rng.IntN(len(plans))], refused: map[int]int{},
	}
	l.visits = append(l.visits, v)
	return v
}

// served waits until as many more orders were placed.
func (l *load) served(orders int64) {
	l.d.t.Helper()
	want := l.answered.Load() + orders
	eventually(l.d.t, fmt.Sprintf("%d more orders placed", orders), func() bool { return l.answered.Load() >= want })
}

// close lets no more customers in and waits for those that are there.
func (l *load) close() {
	l.stop()
	l.running.Wait()
}

func (v *visit) run() {
	var beside sync.WaitGroup
	defer beside.Wait()
	if v.plan == "place twice" {
		beside.Go(func() { v.insist("place") })
	}
	if v.plan == "give up" {
		v.ask("place")
		return
	}
	if !v.insist("place") || v.orderID() == "" { // no answer, or nothing left
		return
	}
	v.load.answered.Add(1)
	switch v.plan {
	case "pay":
		v.ask("look")
		v.insist("pay")
	case "pay twice":
		beside.Go(func() { v.insist("pay") })
		v.insist("pay")
	case "cancel":
		v.insist("cancel")
	case "pay and cancel":
		beside.Go(func() { v.insist("pay") })
		v.insist("cancel")
	case "pay late":
		if pause(v.customer.t.Context(), v.load.d.timeout-10*time.Millisecond) {
			v.insist("pay")
		}
	}
}

// insist asks until there is a certain answer, as the answers advise, and tells whether there was one.
func (v *visit) insist(do string) bool {
	const attempts = 8
	for range attempts {
		if v.ask(do) {
			return true
		}
		if !pause(v.customer.t.Context(), 300*time.Millisecond) {
			return false
		}
	}
	return false
}

// ask asks once, some API, and notes the answer; it tells whether it was a certain one.
func (v *visit) ask(do string) bool {
	apis := v.load.d.all("api")
	if len(apis) == 0 {
		return false
	}
	c := *v.customer
	c.base = apis[rand.N(len(apis))].url // which one is not the plan's to say: they come and go
	r := request{method: "POST", path: "/api/orders/" + v.orderID() + "/" + do}
	switch do {
	case "place":
		r = request{method: "POST", path: "/api/orders", body: v.body, headers: []string{"Idempotency-Key: " + v.key}}
	case "look":
		r = request{method: "GET", path: "/api/orders/" + v.orderID()}
	}
	began := time.Since(v.load.began)
	a, err := c.try(r)
	ended := a.came.Sub(v.load.began)
	said, wrong := understand(a, err)
	e := entry{call{do: do}, said, began, ended}
	if said.unknown {
		e.ended = never
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.history = append(v.history, e)
	if said.id != "" {
		v.id = said.id
	}
	if wrong != "" {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %s", do, wrong))
	}
	v.took = append(v.took, a.took)
	if said.unknown {
		v.refused[a.status]++
	}
	return !said.unknown
}

func (v *visit) orderID() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.id
}

// reasons are the refusals that say what an order is, or that there is none.
var reasons = map[string]string{
	"/problems/order-paid": "paid", "/problems/order-cancelled": "cancelled", "/problems/deadline-passed": "late",
	"/problems/out-of-stock": "stock",
}

// understand reads an answer, and says what is wrong with one that must not be.
func understand(a answer, err error) (told, string) {
	lost := told{unknown: true}
	switch {
	case err != nil && a.status != 0:
		return lost, fmt.Sprintf("not in the contract: %v: %s", err, a.body)
	case err != nil, a.status == http.StatusServiceUnavailable:
		// Even a refused connection: http.Transport may have repeated a request by itself, for its key.
		return lost, ""
	case a.status == http.StatusOK, a.status == http.StatusCreated:
		var o order
		if err := json.Unmarshal(a.body, &o); err != nil {
			return lost, err.Error()
		}
		return told{created: a.status == http.StatusCreated, state: stateOf(o.ID, o.Status, o.CancelReason)}, ""
	case a.status == http.StatusConflict:
		var problem struct{ Type string }
		if err := json.Unmarshal(a.body, &problem); err != nil || reasons[problem.Type] == "" {
			return lost, string(a.body)
		}
		return told{refused: reasons[problem.Type]}, ""
	default:
		return lost, fmt.Sprintf("%d %s", a.status, a.body)
	}
}

func stateOf(id, status, reason string) state {
	if reason == "timeout" {
		status = "timeout"
	}
	return state{status, id}
}

// settle waits until every order has ended and nothing is owed to Redis, and has the doctor check everything.
func (d *deployment) settle() {
	d.t.Helper()
	eventually(d.t, "no order pending and an empty outbox", func() bool {
		return d.number(`SELECT (SELECT count(*) FROM orders WHERE status = 'pending') + (SELECT count(*) FROM outbox)`) == 0
	})
	d.healthy(d.t)
}

// figures are what a load met.
type figures struct {
	orders, calls  int
	refused        map[int]int
	excused        int           // of the refused, at most
	slow, slowest  time.Duration // 99 of 100 answers took less than slow
	latest         time.Duration // the last cancellation, after its deadline
	timeouts, late int           // orders timed out; more than a second late
}

func (f figures) String() string {
	var refused []string
	for _, status := range slices.Sorted(maps.Keys(f.refused)) {
		name := fmt.Sprint(status)
		if status == 0 {
			name = "no answer"
		}
		refused = append(refused, fmt.Sprintf("%d× %s", f.refused[status], name))
	}
	if refused == nil {
		refused = []string{"none"}
	}
	return fmt.Sprintf("%d orders, %d calls; refused: %s; 99 of 100 answers within %v, the slowest %v; %d timed out, %d of them over 1 s late, the last %v late", f.orders, f.calls,
		strings.Join(refused, ", "), f.slow.Round(time.Millisecond), f.slowest.Round(time.Millisecond), f.timeouts, f.late, f.latest.Round(time.Millisecond))
}

// check compares what every customer was told with what there is, and with what can be.
func (l *load) check() figures {
	t := l.d.t
	t.Helper()
	found, at := l.inDatabase()
	f := figures{orders: len(found), refused: map[int]int{}}
	var took []time.Duration
	for _, v := range l.visits {
		f.calls += len(v.history)
		for status, n := range v.refused {
			f.refused[status] += n
		}
		took = append(took, v.took...)
		there, ok := found[v.key]
		if !ok {
			there = state{at: "none"}
		}
		whole := append(v.history, entry{call{do: "look"}, told{state: there}, at, at}).timed(l.d.timeout)
		if !whole.possible() {
			t.Errorf("%s (%s): no order has this history: %+v", v.key, v.plan, whole)
		}
		for _, wrong := range v.wrong {
			t.Errorf("%s (%s): %s", v.key, v.plan, wrong)
		}
	}
	slices.Sort(took)
	f.slow, f.slowest = took[len(took)*99/100], took[len(took)-1]
	var latest float64
	err := l.d.db.QueryRowContext(t.Context(), `
		SELECT coalesce(max(extract(epoch FROM cancelled_at - expires_at)), 0), count(*),
		       count(*) FILTER (WHERE cancelled_at > expires_at + interval '1 s')
		FROM orders WHERE cancel_reason = 'timeout'`).Scan(&latest, &f.timeouts, &f.late)
	must(t, err)
	f.latest = time.Duration(latest * float64(time.Second))
	return f
}

// inDatabase reads what became of every order, by its key, and when it was read.
func (l *load) inDatabase() (found map[string]state, at time.Duration) {
	t := l.d.t
	t.Helper()
	at = time.Since(l.began)
	rows, err := l.d.db.QueryContext(t.Context(), `SELECT idempotency_key, id, status, coalesce(cancel_reason, '') FROM orders`)
	must(t, err)
	defer rows.Close()
	found = map[string]state{}
	for rows.Next() {
		var key, id, status, reason string
		must(t, rows.Scan(&key, &id, &status, &reason))
		if _, twice := found[key]; twice {
			t.Errorf("two orders of %s", key)
		}
		found[key] = stateOf(id, status, reason)
	}
	must(t, rows.Err())
	return found, at
}

// bound is what a fault may cost.
type bound struct {
	late    time.Duration // the last cancellation, after its deadline
	answer  time.Duration // 99 of 100 answers; a busy machine may let one thread wait for seconds
	refused bool          // customers may be refused, or get no answer, and must repeat
}

// exceeded says how the figures exceed the bound; nil if they do not.
func (b bound) exceeded(f figures) (exceeded []string) {
	add := func(format string, args ...any) { exceeded = append(exceeded, fmt.Sprintf(format, args...)) }
	if f.timeouts == 0 {
		add("no order timed out: the load showed nothing")
	}
	if f.latest > b.late {
		add("cancelled %v late, the bound is %v", f.latest, b.late)
	}
	if f.slow > b.answer {
		add("one of 100 answers took %v, the bound is %v", f.slow, b.answer)
	}
	refused := 0
	for _, n := range f.refused {
		refused += n
	}
	if refused > f.excused && !b.refused {
		add("refused (by status, 0 no answer): %v, want at most %d", f.refused, f.excused)
	}
	return exceeded
}
