package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// This file has what one customer does with one row.

// Visit is the calls of one customer about one row, and their outcomes.
type Visit struct {
	Load     *Load
	Customer *Client
	Key      string // the idempotency key
	body     string
	Plan     string // one of the deployment's plans

	mu         sync.Mutex
	History    history
	ID         string            // of the row
	secret     string            // what confirms the row; "": nothing, or it was not read yet
	Since      time.Time         // when the response came that created the row
	createTook time.Duration     // from the request for it until then
	extensions int               // how often the deadline was extended, as far as the answers tell
	reuses     int               // how often the key was used again with another body
	others     map[Operation]int // how often each of the service's own operations was called
	ended      bool              // an answer has told that the row has ended
	shown      Row               // the row as the last answer shows it
	cancelled  time.Time         // when the row was cancelled, as the last answer that shows it tells; zero: none
	unknown    map[int]int       // calls whose outcome is unknown, by the response's status; 0: no response
	took       []time.Duration   // of each response
	party      []time.Duration   // like took, of the calls that need the second party, which took and unknown lack
	wrong      []string          // messages about responses that break the contract
}

// plan is what a customer does with a row between its creation and its end. When the row has ended, each customer calls
// some operations once more.
type plan struct {
	name  string
	share int // of the visits, compared with the shares of the other plans
	calls []calls
}

// calls are operations that a customer calls at the same time.
type calls struct {
	when       moment
	operations []Operation
}

// moment is a time in the life of a row, seen from its deadline.
type moment int

// The moments. The service must reject the calls of the last two, and some of those around the deadline.
const (
	soon   moment = iota // in the first half of the time until the deadline
	before               // in the last second before the deadline
	around               // in some milliseconds from the deadline on, before most rows have timed out
	after                // in the first second after the deadline
	later                // one to three seconds after the deadline, or after the end of a hold
)

// near is the time before and after a deadline in which most calls are made.
const near = time.Second

// The plans that differ from others in more than their calls.
const (
	giveUp      = "give up"       // the customer does not repeat a request without an answer, and does not come back
	createTwice = "create twice"  // the customer sends the same request twice at the same time
	reuseKey    = "reuse the key" // the customer sends another request with the same key
	waitForLock = "wait for lock" // another session has locked the row until after its deadline
	callOthers  = "call others"   // the customer calls operations of the service's own
)

// other stands in a plan for one of the service's own operations.
const other Operation = "other"

// plans are the plans of visits, without those that need a second party. Most calls are made within a second of the
// deadline, on both sides of it, because there the service decides between two ends of the row.
var plans = []plan{
	{giveUp, 1, nil},
	{createTwice, 1, []calls{{after, []Operation{Confirm}}}},
	{reuseKey, 3, []calls{{soon, []Operation{reuse}}, {after, []Operation{Confirm, Cancel, reuse}}}},
	{"confirm soon", 1, []calls{{soon, []Operation{Confirm}}}},
	{"confirm", 1, []calls{{before, []Operation{Confirm}}}},
	{"confirm in three tabs", 4, []calls{{before, []Operation{Confirm, Confirm, Confirm}}}},
	{"confirm and cancel in three tabs", 3, []calls{{before, []Operation{Confirm, Cancel, Confirm}}}},
	{"cancel", 1, []calls{{before, []Operation{Cancel}}}},
	{"cancel in three tabs", 3, []calls{{before, []Operation{Cancel, Confirm, Cancel}}}},
	{"extend and cancel", 1, []calls{{before, []Operation{Extend, Extend}}, {before, []Operation{Cancel, Extend}}}},
	{"extend and confirm", 1, []calls{{before, []Operation{Extend}}, {before, []Operation{Confirm, Extend}}}},
	{"extend and be late", 1, []calls{{before, []Operation{Extend}}, {after, []Operation{Confirm, Extend}}}},
	{"extend at the deadline", 1, []calls{
		{around, []Operation{Extend, Confirm, Extend}}, {after, []Operation{Cancel, Extend}},
	}},
	{"confirm at the deadline", 3, []calls{
		{around, []Operation{Confirm, Confirm, Confirm}}, {after, []Operation{Cancel, Confirm}},
	}},
	{"cancel at the deadline", 2, []calls{
		{around, []Operation{Cancel, Confirm, Cancel}}, {after, []Operation{Confirm, Cancel}},
	}},
	{waitForLock, 3, []calls{{after, []Operation{Confirm}}}},
	{callOthers, 3, []calls{
		{soon, []Operation{other}}, {before, []Operation{other, Confirm}}, {after, []Operation{other, Confirm}},
	}},
	{"confirm late", 4, []calls{{after, []Operation{Confirm, Cancel, Confirm}}, {after, []Operation{Confirm}}}},
	{"cancel late", 3, []calls{{after, []Operation{Cancel, Confirm, Extend}}, {after, []Operation{Cancel}}}},
}

// decisions are the operations on a row whose outcome depends on its deadline.
var decisions = []Operation{Confirm, Cancel, Extend, Hold, Settle}

// possiblePlans returns the names of the plans that the service allows, each as often as its share says.
func (s *Service) possiblePlans() (names []string) {
	for _, p := range plans {
		if p.name == createTwice && !s.Keyed || p.name == reuseKey && !s.rejects(RejectedReuse) ||
			p.name == callOthers && len(s.others()) == 0 {
			continue
		}
		names = append(names, slices.Repeat([]string{p.name}, p.share)...)
	}
	return names
}

// possible returns the operations with one of the service's own in the place of each other, and with a confirmation in
// the place of each operation that the service lacks.
func (s *Service) possible(operations []Operation) []Operation {
	possible, others := slices.Clone(operations), s.others()
	for i, o := range possible {
		if o == other {
			possible[i] = others[rand.N(len(others))]
		}
		if o == Cancel && !s.has(Cancel) || o == Extend && len(s.Extend) == 0 {
			possible[i] = Confirm
		}
	}
	return possible
}

// run runs the visit's plan.
func (v *Visit) run() {
	var concurrent sync.WaitGroup
	defer concurrent.Wait()
	if v.Plan == createTwice {
		concurrent.Go(func() { v.Retry(Create) })
	}
	if v.Plan == giveUp {
		v.Call(Create)
		return
	}
	if !v.create() || v.RowID() == "" { // no response, or rejected
		return
	}
	v.Load.created.Add(1)
	v.readSecret() // again before the first call that needs it, if the database does not answer now
	i := slices.IndexFunc(plans, func(p plan) bool { return p.name == v.Plan })
	if i < 0 {
		v.Load.d.Party.Visit(v)
	} else {
		if v.Plan == waitForLock {
			v.callBehindLock()
		}
		for _, c := range plans[i].calls {
			v.callTogether(c)
		}
	}
	v.callEnded()
}

// create creates the visit's row, and reports whether the outcome is known. Without keys, a repeated call might create
// a second row.
func (v *Visit) create() (known bool) {
	if !v.Load.d.Service.Keyed {
		return v.Call(Create)
	}
	return v.Retry(Create)
}

// callTogether waits for a moment, and calls operations at the same time. It repeats only the first one if the outcome
// is unknown, and only before the deadline: the time to check a history grows exponentially with the unknown outcomes.
func (v *Visit) callTogether(c calls) {
	if !v.SleepUntil(v.at(c.when)) {
		return
	}
	var concurrent sync.WaitGroup
	for i, o := range v.Load.d.Service.possible(c.operations) {
		concurrent.Go(func() {
			switch {
			case c.when == around && !v.SleepUntil(v.at(around)):
			case i == 0 && c.when <= before && o != reuse:
				v.Retry(o)
			default:
				v.Call(o)
			}
		})
	}
	concurrent.Wait()
}

// callBehindLock locks the row until after its deadline. Meanwhile the customer calls operations, which begin before
// the deadline and get the row after it. Without such calls, a service that times rows out within milliseconds would
// rarely have to reject one for a row that is still pending. The customer also looks at the row after its deadline,
// before it is unlocked: if the row is pending then, none of these calls may succeed, whatever time the service gives
// to its end. callBehindLock does nothing if it does not get the lock in time.
func (v *Visit) callBehindLock() {
	const ahead = 100 * time.Millisecond
	d := v.Load.d
	if !v.SleepUntil(d.Timeout - ahead) {
		return
	}
	ctx, cancel := context.WithTimeout(v.Customer.T.Context(), RequestTimeout)
	defer cancel()
	tx, err := d.database().BeginTx(ctx, nil)
	if err != nil {
		return
	}
	var concurrent sync.WaitGroup
	defer concurrent.Wait()
	defer func() { _ = tx.Rollback() }()
	lock := fmt.Sprintf(`SET LOCAL lock_timeout = %d; SELECT FROM %s WHERE id = '%s' FOR UPDATE`,
		ahead.Milliseconds(), d.Service.Table, v.RowID())
	if _, err := tx.ExecContext(ctx, lock); err != nil {
		return
	}
	for _, o := range d.Service.possible([]Operation{Confirm, Cancel, Extend}) {
		concurrent.Go(func() { v.Call(o) })
	}
	v.SleepUntil(d.Timeout + ahead/10)
	v.Call(Get)
}

// callEnded calls operations at the same time when the row has ended. Nothing may change any more.
func (v *Visit) callEnded() {
	v.mu.Lock()
	ended := v.ended
	v.mu.Unlock()
	if !ended {
		if !v.SleepUntil(v.at(later)) {
			return
		}
		v.Call(Get)
	}
	operations := v.Load.d.Service.possible([]Operation{Confirm, Cancel, Extend})
	rand.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
	var concurrent sync.WaitGroup
	for _, o := range operations[:2] {
		concurrent.Go(func() { v.Call(o) })
	}
	concurrent.Wait()
}

// at returns a time of a moment, after the row was created. The plan is drawn from the seed, its exact times are not.
func (v *Visit) at(m moment) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	deadline := v.Load.d.Timeout + time.Duration(v.extensions)*v.Load.d.Extension
	switch m {
	case soon:
		return rand.N(deadline / 2)
	case before:
		return deadline - rand.N(near)
	case around: // the row was created some time before its response came
		return deadline - v.createTook/2 + rand.N(8*time.Millisecond)
	case after:
		return deadline + rand.N(near)
	default: // and after the end of a hold
		return deadline + v.Load.d.Grace + near + rand.N(2*near)
	}
}

// SleepUntil waits until a time after the row was created, or until all rows have ended. It reports whether the test
// still runs.
func (v *Visit) SleepUntil(after time.Duration) bool {
	v.mu.Lock()
	since := v.Since
	v.mu.Unlock()
	timer := time.NewTimer(time.Until(since.Add(after)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-v.Load.ended:
	case <-v.Customer.T.Context().Done():
		return false
	}
	return true
}

// Retry repeats a call until its outcome is known, and reports whether the outcome is known. Clients should do the
// same: the service answers 503 if a repeated request may succeed.
func (v *Visit) Retry(o Operation) (known bool) {
	return v.Repeat(func() bool { return v.Call(o) })
}

// Repeat is retry with a function that calls an operation.
func (v *Visit) Repeat(call func() (known bool)) (known bool) {
	const attempts = 8
	for range attempts {
		if call() {
			return true
		}
		if !Sleep(v.Customer.T.Context(), 300*time.Millisecond) {
			return false
		}
	}
	return false
}

// Call calls an operation once, records the outcome, and reports whether the outcome is known.
func (v *Visit) Call(o Operation) (known bool) {
	id := v.RowID()
	s := v.Load.d.Service
	var r Request
	switch o {
	case Create:
		r = s.Create(v.body, v.Key)
	case reuse:
		r = s.Create(v.otherBody(), v.Key)
	case Get:
		r = s.Get(id)
	default:
		secret, ok := v.readSecret()
		switch {
		case !ok:
			return false // there is nothing to send
		case o.isOther() && !v.mayCall(o):
			return true
		}
		r = s.act(o, id, secret)
	}
	decode := func(body []byte) (State, error) {
		row, err := s.Decode(body)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.shown = row
		if !row.CancelledAt.IsZero() {
			v.cancelled = row.CancelledAt
		}
		return row.State, err
	}
	_, known = v.Send(o, r, decode)
	return known
}

// readSecret returns what confirms the row, and reports whether the database has answered. A customer gets it once,
// soon after the row was created.
func (v *Visit) readSecret() (secret string, ok bool) {
	v.mu.Lock()
	id, secret := v.ID, v.secret
	v.mu.Unlock()
	if s := v.Load.d.Service; secret == "" && s.Secret != "" {
		ctx, cancel := context.WithTimeout(v.Customer.T.Context(), RequestTimeout)
		defer cancel()
		var err error
		if secret, err = s.secret(ctx, v.Load.d.database(), id); err != nil {
			return "", false
		}
		v.mu.Lock()
		v.secret = secret
		v.mu.Unlock()
	}
	return secret, true
}

// mayCall counts a call of one of the service's own operations, and reports whether it may be made.
func (v *Visit) mayCall(o Operation) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.others[o]++
	return v.others[o] <= v.Load.d.Service.MostOthers
}

// otherBody returns another body than that of the row. The first call returns the one after it in the description, and
// the second call the one before it: neighbours may differ only a little.
func (v *Visit) otherBody() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	bodies := v.Load.d.Service.Bodies
	own := slices.Index(bodies, v.body) // -1: a body of a rush
	step := 1
	if v.reuses++; v.reuses%2 == 0 {
		step = len(bodies) - 1
	}
	return bodies[(max(own, 0)+step)%len(bodies)]
}

// Send sends the request of an operation once to one of the APIs, records the outcome, and reports whether the outcome
// is known. decode reads the row's state from the body of a successful response.
func (v *Visit) Send(o Operation, r Request, decode func(body []byte) (State, error)) (_ Answer, known bool) {
	c, apis := *v.Customer, v.Load.d.Running("api")
	if len(apis) == 0 {
		return Answer{}, false
	}
	// not drawn from the seed: the set of APIs changes while faults are injected
	c.Base = apis[rand.N(len(apis))].URL
	began := time.Since(v.Load.Began)
	a, err := c.Try(r)
	result, wrong := v.Load.d.Service.interpret(a, err, decode)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.Record(o, result, began, a.Ended.Sub(v.Load.Began))
	if v.ID == "" && result.ID != "" {
		v.ID, v.Since, v.createTook = result.ID, a.Ended, a.Took
	}
	v.extensions = max(v.extensions, result.Extensions)
	v.ended = v.ended || result.endsRow()
	if wrong != "" {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %s", o, wrong))
	}
	switch {
	case o == Hold, o == Close:
		v.party = append(v.party, a.Took)
	case result.Unknown:
		v.unknown[a.Status]++
		fallthrough
	default:
		v.took = append(v.took, a.Took)
	}
	return a, !result.Unknown
}

// Record adds a call to the history. The caller holds v.mu.
func (v *Visit) Record(o Operation, result Response, began, ended time.Duration) {
	if o == Hold && result.Rejected != "" {
		// The service holds a row before it asks the second party, so that other calls may see the row held before
		// this one is rejected.
		v.History = append(v.History, Entry{call{Operation: o}, Response{Unknown: true}, began, ended})
	}
	if result.Unknown {
		ended = never
	}
	v.History = append(v.History, Entry{call{Operation: o}, result, began, ended})
}

// RowID returns the id of the row that the visit has created, or "".
func (v *Visit) RowID() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ID
}

// interpret returns the outcome of a response, and a message if the response breaks the contract. decode is that of
// send.
func (s *Service) interpret(a Answer, err error, decode func(body []byte) (State, error)) (_ Response, wrong string) {
	unknown := Response{Unknown: true}
	rejected := Response{Rejected: a.Rejected}
	switch {
	case err != nil && a.Status != 0:
		return unknown, fmt.Sprintf("the response breaks the contract: %v: %s", err, a.Body)
	case rejected.Rejected == RejectedOverloaded:
		return rejected, ""
	case err != nil, a.Status == http.StatusServiceUnavailable:
		// The outcome is unknown even if the connection was refused: http.Transport repeats a request that has an
		// idempotency key, and its first attempt may have taken effect.
		return unknown, ""
	case a.Status == http.StatusOK, a.Status == http.StatusCreated, a.Status == http.StatusAccepted:
		after, err := decode(a.Body)
		if err != nil {
			return unknown, err.Error()
		}
		return Response{Created: a.Status == http.StatusCreated, State: after}, ""
	case rejected.Rejected == RejectedBound:
		if rejected.Open, err = s.Bounds.Open(a.Body); err != nil {
			return unknown, fmt.Sprintf("%v: %s", err, a.Body)
		}
		return rejected, ""
	case rejected.Rejected != "":
		return rejected, ""
	default:
		return unknown, fmt.Sprintf("unexpected answer %d: %s", a.Status, a.Body)
	}
}
