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

// load simulates customers. Each visit is the calls of one customer about one item.
type load struct {
	d         *deployment
	began     time.Time
	customers []*client
	visits    []*visit
	created   atomic.Int64 // the number of visits that created their item
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// visit is the calls of one customer about one item, and their outcomes.
type visit struct {
	load     *load
	customer *client
	key      string // the idempotency key
	body     string
	plan     string // one of plans

	mu      sync.Mutex
	history history
	id      string          // of the item
	unknown map[int]int     // calls whose outcome is unknown, by the response's status; 0: no response
	took    []time.Duration // of each response
	wrong   []string        // messages about responses that break the contract
}

// plans are the plans of visits. A plan that occurs more often is chosen more often.
var plans = []string{
	"leave", "leave", "leave", "confirm", "confirm", "confirm twice", "cancel", "confirm and cancel", "confirm late",
	"create twice", "give up",
}

// startLoad starts a load of rate visits a second, drawn from rng. The rate does not depend on the responses.
func (d *deployment) startLoad(rng *rand.Rand, rate int) *load {
	d.t.Helper()
	ctx, stop := context.WithCancel(d.t.Context())
	l := &load{d: d, began: time.Now(), stop: stop}
	for range 5 {
		l.customers = append(l.customers, d.running("api")[0].signUp())
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

// visit adds a visit.
func (l *load) visit(rng *rand.Rand) *visit {
	v := &visit{
		load: l, customer: l.customers[rng.IntN(len(l.customers))], key: fmt.Sprintf("visit-%d", len(l.visits)),
		body: domain.bodies[rng.IntN(len(domain.bodies))], plan: plans[rng.IntN(len(plans))], unknown: map[int]int{},
	}
	l.visits = append(l.visits, v)
	return v
}

// waitForCreated waits until the load has created n more items.
func (l *load) waitForCreated(n int64) {
	l.d.t.Helper()
	want := l.created.Load() + n
	eventually(l.d.t, fmt.Sprintf("%d more items created", n), func() bool { return l.created.Load() >= want })
}

// close stops starting visits, and waits for the visits that run.
func (l *load) close() {
	l.stop()
	l.running.Wait()
}

// run runs the visit's plan.
func (v *visit) run() {
	var concurrent sync.WaitGroup
	defer concurrent.Wait()
	if v.plan == "create twice" {
		concurrent.Go(func() { v.retry(create) })
	}
	if v.plan == "give up" {
		v.call(create)
		return
	}
	if !v.retry(create) || v.itemID() == "" { // no response, or the resource is exhausted
		return
	}
	v.load.created.Add(1)
	switch v.plan {
	case "confirm":
		v.call(get)
		v.retry(confirm)
	case "confirm twice":
		concurrent.Go(func() { v.retry(confirm) })
		v.retry(confirm)
	case "cancel":
		v.retry(cancel)
	case "confirm and cancel":
		concurrent.Go(func() { v.retry(confirm) })
		v.retry(cancel)
	case "confirm late":
		if sleep(v.customer.t.Context(), v.load.d.timeout-10*time.Millisecond) {
			v.retry(confirm)
		}
	}
}

// retry repeats a call until its outcome is known, and reports whether the outcome is known. Clients should do the
// same: the service answers 503 if a repeated request may succeed.
func (v *visit) retry(o operation) (known bool) {
	const attempts = 8
	for range attempts {
		if v.call(o) {
			return true
		}
		if !sleep(v.customer.t.Context(), 300*time.Millisecond) {
			return false
		}
	}
	return false
}

// call calls an operation once at one of the APIs, records the outcome, and reports whether the outcome is known.
func (v *visit) call(o operation) (known bool) {
	apis := v.load.d.running("api")
	if len(apis) == 0 {
		return false
	}
	c := *v.customer
	c.base = apis[rand.N(len(apis))].url // not drawn from the seed: the set of APIs changes while faults are injected
	var r request
	switch id := v.itemID(); o {
	case create:
		r = domain.create(v.body, v.key)
	case confirm:
		r = domain.confirm(id)
	case cancel:
		r = domain.cancel(id)
	case get:
		r = domain.get(id)
	}
	began := time.Since(v.load.began)
	a, err := c.try(r)
	ended := a.ended.Sub(v.load.began)
	result, wrong := interpret(a, err)
	e := entry{call{operation: o}, result, began, ended}
	if result.unknown {
		e.ended = never
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.history = append(v.history, e)
	if result.id != "" {
		v.id = result.id
	}
	if wrong != "" {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %s", o, wrong))
	}
	v.took = append(v.took, a.took)
	if result.unknown {
		v.unknown[a.status]++
	}
	return !result.unknown
}

func (v *visit) itemID() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.id
}

// interpret returns the outcome of a response, and a message if the response breaks the contract.
func interpret(a answer, err error) (_ outcome, wrong string) {
	unknown := outcome{unknown: true}
	switch {
	case err != nil && a.status != 0:
		return unknown, fmt.Sprintf("the response breaks the contract: %v: %s", err, a.body)
	case err != nil, a.status == http.StatusServiceUnavailable:
		// The outcome is unknown even if the connection was refused: http.Transport repeats a request that has an
		// idempotency key, and its first attempt may have taken effect.
		return unknown, ""
	case a.status == http.StatusOK, a.status == http.StatusCreated:
		i, err := domain.decode(a.body)
		if err != nil {
			return unknown, err.Error()
		}
		return outcome{created: a.status == http.StatusCreated, state: state{i.status, i.id}}, ""
	case a.status == http.StatusConflict:
		var problem struct{ Type string }
		if err := json.Unmarshal(a.body, &problem); err != nil || domain.rejections[problem.Type] == "" {
			return unknown, fmt.Sprintf("unexpected problem: %s", a.body)
		}
		return outcome{rejected: domain.rejections[problem.Type]}, ""
	default:
		return unknown, fmt.Sprintf("unexpected status %d: %s", a.status, a.body)
	}
}

// settle waits until every item has ended and the outbox is empty, and checks the deployment's health.
func (d *deployment) settle() {
	d.t.Helper()
	eventually(d.t, "no item pending and an empty outbox", func() bool {
		return d.items(`status = 'pending'`)+d.number(`SELECT count(*) FROM outbox`) == 0
	})
	d.checkHealth(d.t)
}

// figures are the results of a load.
type figures struct {
	items, calls   int
	unknown        map[int]int   // as in visit
	excused        int           // the number of unknown outcomes that the test's own tools may have caused
	slow, slowest  time.Duration // the p99 and the maximum of the time to respond
	latest         time.Duration // the longest time from a deadline to the timeout
	timeouts, late int           // items timed out, and those of them that were over a second late
}

func (f figures) String() string {
	var unknown []string
	for _, status := range slices.Sorted(maps.Keys(f.unknown)) {
		name := fmt.Sprint("status ", status)
		if status == 0 {
			name = "no response"
		}
		unknown = append(unknown, fmt.Sprintf("%d× %s", f.unknown[status], name))
	}
	if unknown == nil {
		unknown = []string{"none"}
	}
	return fmt.Sprintf("%d items, %d calls; unknown outcomes: %s; 99 of 100 responses within %v, the slowest %v; "+
		"%d timed out, %d of them over 1 s late, the last %v late",
		f.items, f.calls, strings.Join(unknown, ", "), f.slow.Round(time.Millisecond), f.slowest.Round(time.Millisecond),
		f.timeouts, f.late, f.latest.Round(time.Millisecond))
}

// check compares the responses that each customer got with the model and the database.
func (l *load) check() figures {
	t := l.d.t
	t.Helper()
	stored, at := l.stored()
	f := figures{items: len(stored), unknown: map[int]int{}}
	var took []time.Duration
	for _, v := range l.visits {
		f.calls += len(v.history)
		for status, n := range v.unknown {
			f.unknown[status] += n
		}
		took = append(took, v.took...)
		found, ok := stored[v.key]
		if !ok {
			found = state{status: absent}
		}
		whole := append(v.history, entry{call{operation: get}, outcome{state: found}, at, at}).timed(l.d.timeout)
		if !whole.possible() {
			t.Errorf("%s (%s): no item can have this history; its last entry is the state in the database: %+v", v.key, v.plan, whole)
		}
		for _, wrong := range v.wrong {
			t.Errorf("%s (%s): %s", v.key, v.plan, wrong)
		}
	}
	slices.Sort(took)
	f.slow, f.slowest = took[len(took)*99/100], took[len(took)-1]
	var latest float64
	err := l.d.db.QueryRowContext(t.Context(), `
		SELECT coalesce(max(extract(epoch FROM cancelled_at - deadline)), 0), count(*),
		       count(*) FILTER (WHERE cancelled_at > deadline + interval '1 s')
		FROM (`+domain.items+`) AS items WHERE status = 'timed out'`).Scan(&latest, &f.timeouts, &f.late)
	must(t, err)
	f.latest = time.Duration(latest * float64(time.Second))
	return f
}

// stored returns the state of each item in the database by its key, and the time at which it began to read them.
func (l *load) stored() (items map[string]state, at time.Duration) {
	t := l.d.t
	t.Helper()
	at = time.Since(l.began)
	rows, err := l.d.db.QueryContext(t.Context(), `SELECT key, id, status FROM (`+domain.items+`) AS items`)
	must(t, err)
	defer rows.Close()
	items = map[string]state{}
	for rows.Next() {
		var key, id string
		var status status
		must(t, rows.Scan(&key, &id, &status))
		if _, twice := items[key]; twice {
			t.Errorf("two items with the key %s", key)
		}
		items[key] = state{status, id}
	}
	must(t, rows.Err())
	return items, at
}

// bound limits the effects of a fault.
type bound struct {
	late time.Duration // the longest time from a deadline to the timeout
	// answer bounds the p99 of the time to respond. It does not bound the maximum, because a busy machine may suspend a
	// thread for seconds.
	answer   time.Duration
	rejected bool // requests may be rejected with 503, or get no response
}

// exceeded returns a message for each part of the bound that the figures exceed.
func (b bound) exceeded(f figures) (exceeded []string) {
	add := func(format string, args ...any) { exceeded = append(exceeded, fmt.Sprintf(format, args...)) }
	if f.timeouts == 0 {
		add("no item timed out, so the load proves nothing")
	}
	if f.latest > b.late {
		add("an item timed out %v late, the bound is %v", f.latest, b.late)
	}
	if f.slow > b.answer {
		add("one of 100 responses took %v, the bound is %v", f.slow, b.answer)
	}
	unknown := 0
	for _, n := range f.unknown {
		unknown += n
	}
	if unknown > f.excused && !b.rejected {
		add("%d calls with an unknown outcome, want at most %d; by status (0: no response): %v", unknown, f.excused, f.unknown)
	}
	return exceeded
}
