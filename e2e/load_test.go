package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/shop/internal/testenv"
)

// load simulates customers. Each visit is the calls of one customer about one item.
type load struct {
	d         *deployment
	number    int // of the deployment's loads
	began     time.Time
	earlier   []string                 // the ids of the items that existed when the load began
	batched   map[*member]batchFigures // of the APIs that ran when the load began, at that time
	customers []*client
	supplies  map[string]int // how many units of each resource there were when the load began
	visits    []*visit
	rushes    int
	created   atomic.Int64 // the number of visits that created their item
	broken    atomic.Int64 // the number of violations that check has found
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// visit is the calls of one customer about one item, and their outcomes.
type visit struct {
	load     *load
	customer *client
	key      string // the idempotency key
	body     string
	plan     string // one of the deployment's plans

	mu      sync.Mutex
	history history
	id      string          // of the item
	since   time.Time       // when the response came that created the item
	unknown map[int]int     // calls whose outcome is unknown, by the response's status; 0: no response
	took    []time.Duration // of each response
	party   []time.Duration // of each response to a call that needs the second party; unknown and took do not have them
	wrong   []string        // messages about responses that break the contract
}

// plans are the plans of visits, without those that need a second party. A plan that occurs more often is chosen more often.
var plans = []string{
	"leave", "leave", "leave", "confirm", "confirm", "confirm twice", "cancel", "confirm and cancel", "confirm late",
	"create twice", "give up",
}

// possiblePlans returns the plans without those that the service does not allow.
func (s *service) possiblePlans() []string {
	return slices.DeleteFunc(slices.Clone(plans), func(plan string) bool {
		return strings.Contains(plan, "cancel") && !s.has(cancel) || plan == "create twice" && !s.keyed
	})
}

const (
	// The busy customers often have as much as one customer can have. The others rarely do.
	busyCustomers, otherCustomers = 3, 100
	// A rush is visits of rushSize customers that begin at the same moment and want the same resource. On average, one of
	// rushEvery times at which a visit begins, a rush begins instead.
	rushSize, rushEvery = 8, 32
)

// startLoad starts a load of rate visits a second on average, drawn from rng. The rate does not depend on the responses.
func (d *deployment) startLoad(rng *rand.Rand, rate int) *load {
	d.t.Helper()
	ctx, stop := context.WithCancel(d.t.Context())
	d.loads++
	l := &load{
		d: d, number: d.loads, began: time.Now(), stop: stop, supplies: d.supplies(), batched: map[*member]batchFigures{},
		earlier: append([]string{}, testenv.QueryAll[string](d.t, d.db, `SELECT id::text FROM `+d.service.table)...), // nil would be NULL
	}
	for _, api := range d.running("api") {
		l.batched[api] = batchesOf(api)
	}
	for range busyCustomers + otherCustomers {
		l.customers = append(l.customers, d.running("api")[0].signUp())
	}
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		pause := 0 // the number of ticks without a visit that make up for a rush
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			switch {
			case pause > 0:
				pause--
			case d.service.rushes() && rng.IntN(rushEvery) == 0:
				for _, v := range l.rush(rng) {
					l.running.Go(v.run)
				}
				pause = rushSize - 1
			default:
				l.running.Go(l.visit(rng).run)
			}
		}
	})
	d.t.Cleanup(func() {
		stop()
		l.running.Wait()
	})
	return l
}

// visit adds a visit. Each fourth one is a busy customer's.
func (l *load) visit(rng *rand.Rand) *visit {
	customer := busyCustomers + rng.IntN(otherCustomers)
	if rng.IntN(4) == 0 {
		customer = rng.IntN(busyCustomers)
	}
	return l.add(rng, customer, l.d.service.bodies[rng.IntN(len(l.d.service.bodies))])
}

// rush adds the visits of a rush.
func (l *load) rush(rng *rand.Rand) (visits []*visit) {
	for i := range rushSize {
		visits = append(visits, l.add(rng, busyCustomers+rng.IntN(otherCustomers), l.d.service.resources.rush(l.rushes, i)))
	}
	l.rushes++
	return visits
}

// add adds a visit of a customer, who wants an item with this body.
func (l *load) add(rng *rand.Rand, customer int, body string) *visit {
	v := &visit{
		load: l, customer: l.customers[customer], key: fmt.Sprintf("load-%d-visit-%d", l.number, len(l.visits)),
		body: body, plan: l.d.plans[rng.IntN(len(l.d.plans))], unknown: map[int]int{},
	}
	l.visits = append(l.visits, v)
	return v
}

// supplies returns how many units of each resource items can take.
func (d *deployment) supplies() map[string]int {
	d.t.Helper()
	supplies := map[string]int{}
	if d.service.resources == nil {
		return supplies
	}
	rows, err := d.db.QueryContext(d.t.Context(), d.service.resources.supplies)
	testenv.Must(d.t, err)
	defer rows.Close()
	for rows.Next() {
		var resource string
		var units int
		testenv.Must(d.t, rows.Scan(&resource, &units))
		supplies[resource] = units
	}
	testenv.Must(d.t, rows.Err())
	return supplies
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
	if !v.create() || v.itemID() == "" { // no response, or rejected
		return
	}
	v.load.created.Add(1)
	switch v.plan {
	case "leave", "create twice":
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
		if v.sleepUntil(v.load.d.timeout - 10*time.Millisecond) {
			v.retry(confirm)
		}
	default:
		v.load.d.party.visit(v)
	}
}

// create creates the visit's item, and reports whether the outcome is known. Without keys, a repeated call might create
// a second item.
func (v *visit) create() (known bool) {
	if !v.load.d.service.keyed {
		return v.call(create)
	}
	return v.retry(create)
}

// sleepUntil waits until a time after the item was created, and reports whether the test still runs.
func (v *visit) sleepUntil(after time.Duration) bool {
	v.mu.Lock()
	since := v.since
	v.mu.Unlock()
	return sleep(v.customer.t.Context(), time.Until(since.Add(after)))
}

// retry repeats a call until its outcome is known, and reports whether the outcome is known. Clients should do the
// same: the service answers 503 if a repeated request may succeed.
func (v *visit) retry(o operation) (known bool) {
	return v.repeat(func() bool { return v.call(o) })
}

// repeat is retry with a function that calls an operation.
func (v *visit) repeat(call func() (known bool)) (known bool) {
	const attempts = 8
	for range attempts {
		if call() {
			return true
		}
		if !sleep(v.customer.t.Context(), 300*time.Millisecond) {
			return false
		}
	}
	return false
}

// call calls an operation once, records the outcome, and reports whether the outcome is known.
func (v *visit) call(o operation) (known bool) {
	var r request
	switch id := v.itemID(); o {
	case create:
		r = v.load.d.service.create(v.body, v.key)
	case confirm:
		r = v.load.d.service.confirm(id)
	case cancel:
		r = v.load.d.service.cancel(id)
	case get:
		r = v.load.d.service.get(id)
	case extend:
		r = v.load.d.service.extend(id)
	}
	decode := func(body []byte) (state, error) {
		i, err := v.load.d.service.decode(body)
		return i.state, err
	}
	_, known = v.send(o, r, decode)
	return known
}

// send sends the request of an operation once to the load balancer or to one of the APIs, records the outcome, and reports whether the outcome
// is known. decode reads the item's state from the body of a successful response.
func (v *visit) send(o operation, r request, decode func(body []byte) (state, error)) (_ answer, known bool) {
	c := *v.customer
	if c.base = v.load.d.front; c.base == "" {
		apis := v.load.d.running("api")
		if len(apis) == 0 {
			return answer{}, false
		}
		c.base = apis[rand.N(len(apis))].url // not drawn from the seed: the set of APIs changes while faults are injected
	}
	began := time.Since(v.load.began)
	a, err := c.try(r)
	result, wrong := v.load.d.service.interpret(a, err, decode)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.record(o, result, began, a.ended.Sub(v.load.began))
	if v.id == "" && result.id != "" {
		v.id, v.since = result.id, a.ended
	}
	if wrong != "" {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %s", o, wrong))
	}
	switch {
	case o == hold:
		v.party = append(v.party, a.took)
	case result.unknown:
		v.unknown[a.status]++
		fallthrough
	default:
		v.took = append(v.took, a.took)
	}
	return a, !result.unknown
}

// record adds a call to the history. The caller holds v.mu.
func (v *visit) record(o operation, result outcome, began, ended time.Duration) {
	if o == hold && result.rejected != "" {
		// The service holds an item before it asks the second party, so that other calls may see the item held before
		// this one is rejected.
		v.history = append(v.history, entry{call{operation: o}, outcome{unknown: true}, began, ended})
	}
	if result.unknown {
		ended = never
	}
	v.history = append(v.history, entry{call{operation: o}, result, began, ended})
}

func (v *visit) itemID() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.id
}

// interpret returns the outcome of a response, and a message if the response breaks the contract. decode is that of send.
func (s *service) interpret(a answer, err error, decode func(body []byte) (state, error)) (_ outcome, wrong string) {
	unknown := outcome{unknown: true}
	rejected := outcome{rejected: a.rejected}
	switch {
	case err != nil && a.status != 0:
		return unknown, fmt.Sprintf("the response breaks the contract: %v: %s", err, a.body)
	case rejected.rejected == rejectedOverloaded:
		return rejected, ""
	case err != nil, a.status == http.StatusServiceUnavailable:
		// The outcome is unknown even if the connection was refused: http.Transport repeats a request that has an
		// idempotency key, and its first attempt may have taken effect.
		return unknown, ""
	case a.status == http.StatusOK, a.status == http.StatusCreated, a.status == http.StatusAccepted:
		after, err := decode(a.body)
		if err != nil {
			return unknown, err.Error()
		}
		return outcome{created: a.status == http.StatusCreated, state: after}, ""
	case a.status == http.StatusConflict, a.status == http.StatusBadGateway:
		if rejected.rejected == "" {
			return unknown, fmt.Sprintf("unexpected problem: %s", a.body)
		}
		if rejected.rejected == rejectedBound {
			rejected.open, err = s.bounds.open(a.body)
		}
		if err != nil {
			return unknown, fmt.Sprintf("%v: %s", err, a.body)
		}
		return rejected, ""
	default:
		return unknown, fmt.Sprintf("unexpected status %d: %s", a.status, a.body)
	}
}

// awaitEnd waits until every item has ended, the outbox is empty and nothing is under way with the second party. Then it
// checks the deployment's health.
func (d *deployment) awaitEnd() {
	d.t.Helper()
	eventually(d.t, "no item pending and an empty outbox", func() bool {
		return d.items(`status = 'pending'`)+d.number(`SELECT count(*) FROM outbox`) == 0
	})
	if d.party != nil {
		eventually(d.t, "nothing under way with the second party", d.party.isIdle)
	}
	d.checkHealth(d.t)
}

// figures are the results of a load.
type figures struct {
	service        *service
	items, calls   int
	unknown        map[int]int       // as in visit
	rejected       map[rejection]int // calls to create an item
	created        float64           // the number of calls to create an item that the running APIs have put into batches
	batches        float64           // the number of these batches
	excused        int               // the number of unknown outcomes that the test's own tools may have caused
	slow, slowest  time.Duration     // the p99 and the maximum of the time to respond
	latest         time.Duration     // the longest time from a deadline to the timeout, of the items that were never held
	timeouts, late int               // items timed out that were never held, and those of them that were over a second late
	held           time.Duration     // the longest time from a deadline to the cancellation, of the items that were held
	party          []string          // the figures of the second party
	slowParty      time.Duration     // the p99 of the time to respond to calls that need the second party
	again          time.Duration     // from a failover until the service worked; 0: there was none
	violations     int64             // the number of errors that check reported
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
	batches := ""
	if f.batches > 0 {
		batches = fmt.Sprintf(" %.0f batches of %.1f items;", f.batches, f.created/f.batches)
	}
	text := fmt.Sprintf("%d items, %d calls; unknown outcomes: %s; items not created: %d exhausted, %d beyond a bound, "+
		"%d overloaded;%s 99 of 100 responses within %v, the slowest %v; "+
		"%d timed out, %d of them over 1 s late, the last %v late; %d violations",
		f.items, f.calls, strings.Join(unknown, ", "), f.rejected[rejectedExhausted], f.rejected[rejectedBound],
		f.rejected[rejectedOverloaded], batches,
		f.slow.Round(time.Millisecond), f.slowest.Round(time.Millisecond),
		f.timeouts, f.late, f.latest.Round(time.Millisecond), f.violations)
	if f.again > 0 {
		text += fmt.Sprintf("; the service worked %v after the failover", f.again.Round(time.Millisecond))
	}
	if f.party == nil {
		return text
	}
	return fmt.Sprintf("%s; the last held item ended %v after its deadline; 99 of 100 responses that need the second party "+
		"within %v; %s", text, f.held.Round(time.Millisecond), f.slowParty.Round(time.Millisecond), strings.Join(f.party, "; "))
}

// batchFigures counts the batches of a process, and the calls to create an item in them.
type batchFigures struct{ created, batches float64 }

// batchesOf returns the figures of a process. They are 0 if the service has no batches.
func batchesOf(api *member) batchFigures {
	name := api.service.batchMetric
	if name == "" {
		return batchFigures{}
	}
	metric := api.operator().metric
	return batchFigures{metric(name + "_sum"), metric(name + "_count")}
}

// check compares the responses that each customer got with the model and the database.
func (l *load) check() figures {
	t := l.d.t
	t.Helper()
	f := figures{service: l.d.service, unknown: map[int]int{}, rejected: map[rejection]int{}}
	for _, api := range l.d.running("api") {
		now, before := batchesOf(api), l.batched[api]
		f.created += now.created - before.created
		f.batches += now.batches - before.batches
	}
	if l.d.party != nil {
		f.party = l.d.party.check(l)
	}
	stored, at := l.stored()
	f.items = len(stored)
	counted := l.checkRejections(stored, f.rejected)
	var took, party []time.Duration
	for _, v := range l.visits {
		f.calls += len(v.history)
		for status, n := range v.unknown {
			f.unknown[status] += n
		}
		took, party = append(took, v.took...), append(party, v.party...)
		found, ok := stored[v.key]
		if !ok {
			found = state{status: absent}
		}
		whole := append(v.history.with(counted[v]), entry{call{operation: get}, outcome{state: found}, at, at}).timed(l.d.times)
		if !whole.possible() {
			l.violated("%s (%s): no item can have this history; its last entry is the state in the database: %v", v.key, v.plan, whole)
		}
		for _, wrong := range v.wrong {
			l.violated("%s (%s): %s", v.key, v.plan, wrong)
		}
	}
	f.slow, f.slowest = percentile(took, 99), percentile(took, 100)
	f.slowParty = percentile(party, 99)
	var latest, held float64
	err := l.d.db.QueryRowContext(t.Context(), `
		SELECT coalesce(max(late) FILTER (WHERE NOT held), 0), count(*) FILTER (WHERE NOT held),
		       count(*) FILTER (WHERE NOT held AND late > 1), coalesce(max(late) FILTER (WHERE held), 0)
		FROM (
			SELECT held, extract(epoch FROM cancelled_at - deadline) AS late
			FROM (`+l.d.all+`) AS items
			WHERE (status = 'timed out' OR held AND status = 'cancelled') AND id::text <> ALL ($1)
		) AS ended`, l.earlier).Scan(&latest, &f.timeouts, &f.late, &held)
	testenv.Must(t, err)
	f.again = l.d.again
	f.latest, f.held = time.Duration(latest*float64(time.Second)), time.Duration(held*float64(time.Second))
	f.violations = l.broken.Load()
	return f
}

// checkRejections checks the rejections of calls to create items, and counts them. A rejection because of a bound names
// items of the customer. Each of them must have been pending during the call: checkRejections returns additional entries
// of their histories, which say so.
func (l *load) checkRejections(stored map[string]state, total map[rejection]int) (counted map[*visit]history) {
	l.d.t.Helper()
	if l.d.service.bounds != nil {
		if n := l.d.number(l.d.service.bounds.exceeded); n > 0 {
			l.violated("%v items were created beyond a bound of their customers", n)
		}
	}
	holders := l.holders(stored)
	byID := map[string]*visit{}
	for _, v := range l.visits {
		if found, ok := stored[v.key]; ok {
			byID[found.id] = v
		}
	}
	counted = map[*visit]history{}
	for _, v := range l.visits {
		for _, e := range v.history {
			if e.operation != create {
				continue
			}
			if e.rejected != "" {
				total[e.rejected]++
			}
			switch {
			case e.rejected == rejectedExhausted && !l.exhausted(v.body, e.ended, holders):
				l.violated("%s: rejected at %v, although enough is left for %s", v.key, e.ended, v.body)
			case e.rejected == rejectedBound:
				l.checkBound(v, e, byID, counted)
			}
		}
	}
	return counted
}

// checkBound checks a rejection because of a bound.
func (l *load) checkBound(v *visit, e entry, byID map[string]*visit, counted map[*visit]history) {
	l.d.t.Helper()
	var bodies []string
	for _, id := range e.open {
		other := byID[id]
		if other == nil || other.customer != v.customer || other == v {
			l.violated("%s: rejected because of %s, which is no other item of its customer", v.key, id)
			continue
		}
		bodies = append(bodies, other.body)
		seen := entry{call{operation: count}, outcome{state: state{status: pending, id: id}}, e.began, e.ended}
		counted[other] = append(counted[other], seen)
	}
	if !l.d.service.bounds.exceeds(v.body, bodies) {
		l.violated("%s: rejected because of a bound, which its customer does not reach with %s and items of %q", v.key, v.body, bodies)
	}
}

// holder is an item that has taken units of a resource.
type holder struct {
	from  time.Duration // when the first call began that may have created the item
	units int
}

// holders returns the items that the load has created, by their resources.
func (l *load) holders(stored map[string]state) map[string][]holder {
	holders := map[string][]holder{}
	if l.d.service.resources == nil {
		return holders
	}
	for _, v := range l.visits {
		if _, ok := stored[v.key]; !ok {
			continue
		}
		from := never
		for _, e := range v.history {
			if e.operation == create {
				from = min(from, e.began)
			}
		}
		for resource, units := range l.d.service.resources.units(v.body) {
			holders[resource] = append(holders[resource], holder{from, units})
		}
	}
	return holders
}

// exhausted reports whether a resource that an item with this body needs may have been exhausted at a time. It does not
// know when items released their units. So its answer is exact only until the first item releases some: for a rush.
func (l *load) exhausted(body string, at time.Duration, holders map[string][]holder) bool {
	for resource, needed := range l.d.service.resources.units(body) {
		left := l.supplies[resource]
		for _, h := range holders[resource] {
			if h.from <= at {
				left -= h.units
			}
		}
		if left < needed {
			return true
		}
	}
	return false
}

// violated reports an item, or the record of the second party, that is not as the customers' responses promise.
func (l *load) violated(format string, args ...any) {
	l.d.t.Helper()
	l.broken.Add(1)
	l.d.t.Errorf(format, args...)
}

// percentile returns the duration that percent of the durations do not exceed, or 0 if there is none.
func percentile(took []time.Duration, percent int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)*percent/100, len(took)-1)]
}

// stored returns the state of each item of the load's time by its key, and the time at which it began to read them.
func (l *load) stored() (items map[string]state, at time.Duration) {
	t := l.d.t
	t.Helper()
	at = time.Since(l.began)
	rows, err := l.d.db.QueryContext(t.Context(), `
		SELECT key, id, status, extended FROM (`+l.d.all+`) AS items WHERE id::text <> ALL ($1)`, l.earlier)
	testenv.Must(t, err)
	defer rows.Close()
	items = map[string]state{}
	for rows.Next() {
		var key string
		var s state
		testenv.Must(t, rows.Scan(&key, &s.id, &s.status, &s.extended))
		if _, twice := items[key]; twice {
			l.violated("two items with the key %s", key)
		}
		items[key] = s
	}
	testenv.Must(t, rows.Err())
	return items, at
}

// bound limits the effects of a fault.
type bound struct {
	late time.Duration // the longest time from a deadline to the timeout
	// answer bounds the p99 of the time to respond. It does not bound the maximum, because a busy machine may suspend a
	// thread for seconds.
	answer   time.Duration
	rejected bool          // any number of requests may be rejected with 503, or get no response
	again    time.Duration // the longest time from a failover until the service works; 0: there is none
	// held is the longest time from the deadline of an item that was held to its cancellation; 0: late.
	held time.Duration
	// party bounds the p99 of the time to respond to calls that need the second party. They may be rejected with 503.
	// 0: answer.
	party time.Duration
}

// mostOverloaded is how many of 100 requests the service may reject as overloaded if nothing but the load asks for it: a
// machine that stops for half a second makes a queue that is too long.
const mostOverloaded = 2

// exceeded returns a message for each part of the bound, made slack times as wide, that the figures exceed.
func (b bound) exceeded(f figures, slack int) (exceeded []string) {
	for _, d := range []*time.Duration{&b.late, &b.answer, &b.again, &b.held, &b.party} {
		*d *= time.Duration(slack)
	}
	add := func(format string, args ...any) { exceeded = append(exceeded, fmt.Sprintf(format, args...)) }
	if f.timeouts == 0 {
		add("no item timed out, so the load proves nothing")
	}
	if f.latest > b.late {
		add("an item timed out %v late, the bound is %v", f.latest, b.late)
	}
	if most := cmp.Or(b.held, b.late); f.held > most {
		add("an item that was held ended %v after its deadline, the bound is %v", f.held, most)
	}
	if most := cmp.Or(b.party, b.answer); f.slowParty > most {
		add("one of 100 responses that need the second party took %v, the bound is %v", f.slowParty, most)
	}
	if f.again > b.again {
		add("the service worked %v after the failover, the bound is %v", f.again, b.again)
	}
	if f.slow > b.answer {
		add("one of 100 responses took %v, the bound is %v", f.slow, b.answer)
	}
	if n := f.rejected[rejectedOverloaded]; n*100 > f.calls*mostOverloaded*slack && !b.rejected {
		add("%d of %d calls rejected because the service was overloaded, want at most %d of 100", n, f.calls, mostOverloaded*slack)
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
