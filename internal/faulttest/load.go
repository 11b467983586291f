package faulttest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/shop/internal/testenv"
)

// Load simulates customers. Each visit is the calls of one customer about one row.
type Load struct {
	d         *Deployment
	number    int // of the deployment's loads
	Began     time.Time
	earlier   []string                 // the ids of the rows that existed when the load began
	batched   map[*Member]batchFigures // of the APIs that ran when the load began, at that time
	customers []*Client
	supplies  map[string]int // how many units of each shared row were free when the load began
	Visits    []*Visit
	rushes    int
	created   atomic.Int64 // the number of visits that created their row
	violated  atomic.Int64 // the number of violations that check has found
	stop      context.CancelFunc
	running   sync.WaitGroup
	rushNow   chan struct{} // has a value when a rush of one customer with each of their bodies must begin
	ended     chan struct{} // closed when all rows have ended
	pressure  pressure      // on the machine when the load began
}

const (
	// The busy customers often have as much as one customer can have. The others rarely do.
	busyCustomers, otherCustomers = 3, 100
	// A rush is visits that begin at the same moment: several customers want the same shared row, or one customer wants
	// more than a customer can have. On average, one of rushEvery times at which a visit begins, a rush begins instead.
	rushEvery = 32
)

// startLoad starts a load of rate visits a second on average, drawn from rng. The rate does not depend on the
// responses.
func (d *Deployment) startLoad(rng *rand.Rand, rate int) *Load {
	d.T.Helper()
	ctx, stop := context.WithCancel(d.T.Context())
	d.loads++
	l := &Load{
		d: d, number: d.loads, Began: time.Now(), stop: stop, pressure: pressureNow(),
		rushNow: make(chan struct{}), ended: make(chan struct{}),
		supplies: d.supplies(), batched: map[*Member]batchFigures{},
		// nil would be NULL
		earlier: append([]string{}, testenv.QueryAll[string](d.T, d.DB, `SELECT id::text FROM `+d.Service.Table)...),
	}
	d.load = l
	for _, api := range d.Running("api") {
		l.batched[api] = BatchesOf(api)
	}
	for range busyCustomers + otherCustomers {
		l.customers = append(l.customers, d.Running("api")[0].SignUp())
	}
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		pause := 0 // the number of ticks without a visit that make up for a rush
		for {
			select {
			case <-ctx.Done():
				return
			case <-l.rushNow:
				for _, body := range d.Service.rushBodies() {
					for _, v := range l.ownRush(rng, body) {
						l.running.Go(v.run)
					}
				}
				continue
			case <-tick.C:
			}
			switch {
			case pause > 0:
				pause--
			case (d.Service.rushes() || d.Service.Bounds != nil) && rng.IntN(rushEvery) == 0:
				rush := l.rush(rng)
				for _, v := range rush {
					l.running.Go(v.run)
				}
				pause = len(rush) - 1
			default:
				l.running.Go(l.visit(rng).run)
			}
		}
	})
	d.T.Cleanup(func() {
		stop()
		l.running.Wait()
	})
	return l
}

// visit adds a visit. Each fourth one is a busy customer's.
func (l *Load) visit(rng *rand.Rand) *Visit {
	customer := busyCustomers + rng.IntN(otherCustomers)
	if rng.IntN(4) == 0 {
		customer = rng.IntN(busyCustomers)
	}
	return l.add(rng, customer, l.d.Service.Bodies[rng.IntN(len(l.d.Service.Bodies))])
}

// rushSize is how many customers want the same shared row at the same moment.
const rushSize = 8

// rush adds the visits of a rush. Rushes of many customers and of one customer take turns.
func (l *Load) rush(rng *rand.Rand) (visits []*Visit) {
	s := l.d.Service
	n := l.rushes
	l.rushes++
	if s.Bounds != nil && (n%2 == 1 || !s.rushes()) {
		bodies := s.rushBodies()
		return l.ownRush(rng, bodies[n/2%len(bodies)])
	}
	for i := range rushSize {
		body := s.Shared.Rush(n%s.Shared.Rushes, i)
		visits = append(visits, l.add(rng, busyCustomers+rng.IntN(otherCustomers), body))
	}
	return visits
}

// ownRush adds the visits of a rush of one customer.
func (l *Load) ownRush(rng *rand.Rand, body string) (visits []*Visit) {
	const size = 8
	customer := busyCustomers + rng.IntN(otherCustomers)
	for range size {
		visits = append(visits, l.add(rng, customer, body))
	}
	return visits
}

// add adds a visit of a customer, who wants a row with this body.
func (l *Load) add(rng *rand.Rand, customer int, body string) *Visit {
	v := &Visit{
		Load: l, Customer: l.customers[customer], Key: fmt.Sprintf("load-%d-visit-%d", l.number, len(l.Visits)),
		body: body, Plan: l.d.Plans[rng.IntN(len(l.d.Plans))], unknown: map[int]int{}, others: map[Operation]int{},
	}
	l.Visits = append(l.Visits, v)
	return v
}

// waitForCreated waits until the load has created n more rows.
func (l *Load) waitForCreated(n int64) {
	l.d.T.Helper()
	want := l.created.Load() + n
	Eventually(l.d.T, fmt.Sprintf("%d more rows created", n), func() bool { return l.created.Load() >= want })
}

// finish stops starting visits. It waits until all rows have ended, and until the customers have made their last calls.
// Then nothing is under way. A row may be pending past its due time for at most the time latest, or three times that on
// a busy machine. A row that is pending for longer fails the test at once.
func (l *Load) finish(latest time.Duration) {
	d := l.d
	d.T.Helper()
	l.stop()
	l.awaitRows(latest)
	close(l.ended)
	l.running.Wait()
	l.awaitRows(latest)
	d.resumeSweeps()
	Eventually(d.T, "an empty outbox", func() bool { return d.Number(`SELECT count(*) FROM outbox`) == 0 })
	if d.Party != nil {
		Eventually(d.T, "nothing under way with the second party", d.Party.Idle)
	}
}

// awaitAcks waits until no worker has a task. All rows have ended, so that each task that is delivered is acknowledged
// at once.
func (l *Load) awaitAcks() {
	l.d.T.Helper()
	limit := 10 * time.Second
	if l.pressure.isBusy() {
		limit *= busySlack
	}
	began := time.Now()
	for l.d.leased() > 0 {
		if time.Since(began) > limit {
			breach(l.d.T, "all rows have ended, but workers have tasks for %v", limit)
			return
		}
		l.d.Sleep(time.Second / 10)
	}
}

// awaitRows waits until no row is pending.
func (l *Load) awaitRows(latest time.Duration) {
	l.d.T.Helper()
	const margin = 3 * time.Second // until a row that is as late as it may be is seen to have ended
	Eventually(l.d.T, "no row pending", func() bool {
		var pending int
		var late float64
		testenv.Must(l.d.T, l.d.DB.QueryRowContext(l.d.T.Context(), `
			SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - due)), 0)
			FROM (`+l.d.Service.rows()+`) AS rows WHERE status = 'pending'`).Scan(&pending, &late))
		limit := latest
		if l.pressure.isBusy() {
			limit *= busySlack
		}
		if late > (limit + margin).Seconds() {
			fatalBreach(l.d.T, "%d rows are pending, the first of them %.1f s past its due time, the bound is %v",
				pending, late, limit)
		}
		return pending == 0
	})
}

// figures are the results of a load.
type figures struct {
	service       *Service
	rows, calls   int
	unknown       map[int]int       // as in visit
	rejected      map[Rejection]int // calls to create a row
	created       float64           // the number of calls to create a row that the running APIs have put into batches
	batches       float64           // the number of these batches
	excused       int               // the number of unknown outcomes that the test's own tools may have caused
	slow, slowest time.Duration     // the p99 and the maximum of the time to respond
	// the longest time from a deadline to the timeout, of the rows that were never held
	latest time.Duration
	// rows timed out that were never held, and those of them that were over a second late
	timeouts, late int
	held           time.Duration // the longest time from a deadline to the cancellation, of the rows that were held
	party          []string      // the figures of the second party
	slowParty      time.Duration // the p99 of the time to respond to calls that need the second party
	again          time.Duration // from a failover until the service worked; 0: there was none
	violations     int64         // the number of errors that check reported
	near           nearCalls
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
		batches = fmt.Sprintf(" %.0f batches of %.1f rows;", f.batches, f.created/f.batches)
	}
	text := fmt.Sprintf("%d rows, %d calls; unknown outcomes: %s; rows not created: %d exhausted, %d beyond a bound, "+
		"%d overloaded;%s 99 of 100 responses within %v, the slowest %v; "+
		"%d timed out, %d of them over 1 s late, the last %v late; %v; %d violations",
		f.rows, f.calls, strings.Join(unknown, ", "), f.rejected[RejectedExhausted], f.rejected[RejectedBound],
		f.rejected[RejectedOverloaded], batches,
		f.slow.Round(time.Millisecond), f.slowest.Round(time.Millisecond),
		f.timeouts, f.late, f.latest.Round(time.Millisecond), f.near, f.violations)
	if f.again > 0 {
		text += fmt.Sprintf("; the service worked %v after the failover", f.again.Round(time.Millisecond))
	}
	if f.party == nil {
		return text
	}
	return fmt.Sprintf("%s; the last held row ended %v after its deadline; 99 of 100 responses that need the second "+
		"party within %v; %s", text, f.held.Round(time.Millisecond), f.slowParty.Round(time.Millisecond),
		strings.Join(f.party, "; "))
}

// batchFigures counts the batches of a process, and the calls to create a row in them.
type batchFigures struct{ Created, Batches float64 }

// BatchesOf returns the figures of a process. They are 0 if the service has no batches.
func BatchesOf(api *Member) batchFigures {
	name := api.service.BatchMetric
	if name == "" {
		return batchFigures{}
	}
	metric := api.Operator().Metric
	return batchFigures{metric(name + "_sum"), metric(name + "_count")}
}

// check compares the responses that each customer got with the model and the database, and then checks that the
// deployment is healthy. The load has finished.
func (l *Load) check() figures {
	defer l.d.CheckHealth(l.d.T)
	t := l.d.T
	t.Helper()
	f := figures{service: l.d.Service, unknown: map[int]int{}, rejected: map[Rejection]int{}, near: nearCalls{}}
	for _, api := range l.d.Running("api") {
		now, before := BatchesOf(api), l.batched[api]
		f.created += now.Created - before.Created
		f.batches += now.Batches - before.Batches
	}
	if l.d.Party != nil {
		f.party = l.d.Party.Check(l)
	}
	stored, at := l.stored()
	f.rows = len(stored)
	counted := l.checkRejections(stored, f.rejected)
	l.checkSupplies(stored)
	l.checkEnds()
	var took, party []time.Duration
	for _, v := range l.Visits {
		f.calls += len(v.History)
		f.near.add(v)
		for status, n := range v.unknown {
			f.unknown[status] += n
		}
		took, party = append(took, v.took...), append(party, v.party...)
		found, ok := stored[v.Key]
		if !ok {
			found.Status = Absent
		}
		whole := append(v.History.with(counted[v]),
			Entry{call{Operation: Get}, Response{State: found.State}, at, at}).timed(l.d.times)
		if !whole.possible() {
			l.Violated("%s (%s): no row can have this history; its last entry is the state in the database: %v",
				v.Key, v.Plan, whole)
		}
		if shown := v.shown; shown.Extensions == found.Extensions && !shown.Deadline.IsZero() &&
			!shown.Deadline.Equal(found.deadline) {
			l.Violated("%s (%s): an answer says that it is due at %v, the table at %v",
				v.Key, v.Plan, shown.Deadline, found.deadline)
		}
		if !v.cancelled.IsZero() && !v.cancelled.Equal(found.endedAt) {
			l.Violated("%s (%s): an answer says that it was cancelled at %v, the table that it ended at %v",
				v.Key, v.Plan, v.cancelled, found.endedAt)
		}
		for _, wrong := range v.wrong {
			l.Violated("%s (%s): %s", v.Key, v.Plan, wrong)
		}
	}
	f.slow, f.slowest = Percentile(took, 99), Percentile(took, 100)
	f.slowParty = Percentile(party, 99)
	var latest, held float64
	err := l.d.DB.QueryRowContext(t.Context(), `
		SELECT coalesce(max(late) FILTER (WHERE NOT held), 0), count(*) FILTER (WHERE NOT held),
		       count(*) FILTER (WHERE NOT held AND late > 1), coalesce(max(late) FILTER (WHERE held), 0)
		FROM (
			SELECT held, extract(epoch FROM ended_at - deadline) AS late
			FROM (`+l.d.Service.rows()+`) AS rows
			WHERE (status = 'timed out' OR held AND status = 'cancelled') AND id::text <> ALL ($1)
		) AS ended`, l.earlier).Scan(&latest, &f.timeouts, &f.late, &held)
	testenv.Must(t, err)
	f.again = l.d.again
	f.latest, f.held = time.Duration(latest*float64(time.Second)), time.Duration(held*float64(time.Second))
	f.violations = l.violated.Load()
	return f
}

// checkRejections checks the rejections of calls to create rows, and counts them. A rejection because of a bound
// names rows of the customer. Each of them must have been pending during the call: checkRejections returns additional
// entries of their histories, which say so.
func (l *Load) checkRejections(stored map[string]storedRow, total map[Rejection]int) (counted map[*Visit]history) {
	l.d.T.Helper()
	if l.d.Service.Bounds != nil {
		if n := l.d.Number(l.d.Service.Bounds.Exceeded); n > 0 {
			l.Violated("%v rows were created beyond a bound of their customers", n)
		}
	}
	holders := l.holders(stored)
	byID := map[string]*Visit{}
	for _, v := range l.Visits {
		if found, ok := stored[v.Key]; ok {
			byID[found.ID] = v
		}
	}
	counted = map[*Visit]history{}
	for _, v := range l.Visits {
		for _, e := range v.History {
			if e.Operation != Create {
				continue
			}
			if e.Rejected != "" {
				total[e.Rejected]++
			}
			switch {
			case e.Rejected == RejectedExhausted && !l.exhausted(v.body, e.Ended, holders):
				l.Violated("%s: rejected at %v, although enough is left for %s", v.Key, e.Ended, v.body)
			case e.Rejected == RejectedBound:
				l.checkBound(v, e, byID, counted)
			}
		}
	}
	return counted
}

// checkBound checks a rejection because of a bound.
func (l *Load) checkBound(v *Visit, e Entry, byID map[string]*Visit, counted map[*Visit]history) {
	l.d.T.Helper()
	var bodies []string
	for _, id := range e.Open {
		other := byID[id]
		if other == nil || other.Customer != v.Customer || other == v {
			l.Violated("%s: rejected because of %s, which is no other row of its customer", v.Key, id)
			continue
		}
		bodies = append(bodies, other.body)
		seen := Entry{call{Operation: count}, Response{State: State{Status: Pending, ID: id}}, e.Began, e.Ended}
		counted[other] = append(counted[other], seen)
	}
	if !l.d.Service.Bounds.Exceeds(v.body, bodies) {
		l.Violated("%s: rejected because of a bound, which its customer does not reach with %s and rows of %q",
			v.Key, v.body, bodies)
	}
}

// Violated reports a row, or the record of the second party, that is not as the customers' responses promise.
func (l *Load) Violated(format string, args ...any) {
	l.d.T.Helper()
	l.violated.Add(1)
	breach(l.d.T, format, args...)
}

// Percentile returns the duration that percent of the durations do not exceed, or 0 if there is none.
func Percentile(took []time.Duration, percent int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)*percent/100, len(took)-1)]
}

// storedRow is a row as the table has it.
type storedRow struct {
	State
	deadline time.Time
	endedAt  time.Time // zero: the row has not ended
}

// stored returns each row of the load's time by its key, and the time at which it began to read them.
func (l *Load) stored() (found map[string]storedRow, at time.Duration) {
	t := l.d.T
	t.Helper()
	at = time.Since(l.Began)
	rows, err := l.d.DB.QueryContext(t.Context(), `
		SELECT key, id, status, extensions, deadline, coalesce(ended_at, '0001-01-01 00:00Z')
		FROM (`+l.d.Service.rows()+`) AS rows WHERE id::text <> ALL ($1)`, l.earlier)
	testenv.Must(t, err)
	defer rows.Close()
	found = map[string]storedRow{}
	for rows.Next() {
		var key string
		var row storedRow
		testenv.Must(t, rows.Scan(&key, &row.ID, &row.Status, &row.Extensions, &row.deadline, &row.endedAt))
		if _, twice := found[key]; twice {
			l.Violated("two rows with the key %s", key)
		}
		found[key] = row
	}
	testenv.Must(t, rows.Err())
	return found, at
}

// Bound limits the effects of a fault.
type Bound struct {
	Late time.Duration // the longest time from a deadline to the timeout
	// Answer bounds the p99 of the time to respond. It does not bound the maximum, because a busy machine may suspend
	// a thread for seconds.
	Answer   time.Duration
	Rejected bool          // any number of requests may be rejected with 503, or get no response
	Again    time.Duration // the longest time from a failover until the service works; 0: there is none
	// Held is the longest time from the deadline of a row that was held to its cancellation; 0: late.
	Held time.Duration
	// Party bounds the p99 of the time to respond to calls that need the second party. They may be rejected with 503.
	// 0: answer.
	Party time.Duration
}

// mostOverloaded is how many of 100 requests the service may reject as overloaded if nothing but the load asks for it:
// a machine that stops for half a second makes a queue that is too long.
const mostOverloaded = 2

// exceeded returns a message for each part of the bound, made slack times as wide, that the figures exceed.
func (b Bound) exceeded(f figures, slack int) (exceeded []string) {
	for _, d := range []*time.Duration{&b.Late, &b.Answer, &b.Again, &b.Held, &b.Party} {
		*d *= time.Duration(slack)
	}
	add := func(format string, args ...any) { exceeded = append(exceeded, fmt.Sprintf(format, args...)) }
	if f.timeouts == 0 {
		add(unproven + "no row timed out")
	}
	if f.latest > b.Late {
		add("a row timed out %v late, the bound is %v", f.latest, b.Late)
	}
	if most := cmp.Or(b.Held, b.Late); f.held > most {
		add("a row that was held ended %v after its deadline, the bound is %v", f.held, most)
	}
	if most := cmp.Or(b.Party, b.Answer); f.slowParty > most {
		add("one of 100 responses that need the second party took %v, the bound is %v", f.slowParty, most)
	}
	if f.again > b.Again {
		add("the service worked %v after the failover, the bound is %v", f.again, b.Again)
	}
	if f.slow > b.Answer {
		add("one of 100 responses took %v, the bound is %v", f.slow, b.Answer)
	}
	if n := f.rejected[RejectedOverloaded]; n*100 > f.calls*mostOverloaded*slack && !b.Rejected {
		add("%d of %d calls rejected because the service was overloaded, want at most %d of 100",
			n, f.calls, mostOverloaded*slack)
	}
	unknown := 0
	for _, n := range f.unknown {
		unknown += n
	}
	if unknown > f.excused && !b.Rejected {
		add("%d calls with an unknown outcome, want at most %d; by status (0: no response): %v",
			unknown, f.excused, f.unknown)
	}
	return exceeded
}
