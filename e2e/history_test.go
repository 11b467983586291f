package e2e

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// This file has a model of one item, and compares the responses that the item's customer got with the model. The
// responses are right if each call can be assigned an instant between its request and its response such that the model,
// called in the order of these instants, gives the same responses (linearizability).

// state is what the model knows of an item.
type state struct {
	status     status
	id         string // "" until a response has contained it
	hold       holding
	cancelling bool // its customer has asked to cancel it while it was held
	extended   bool // its customer has extended its deadline
}

// holding tells whether a pending item is held for the service's second party (party in deployment_test.go). The item
// then ends after its deadline, and the second party may still confirm it.
type holding string

const (
	free    holding = ""
	opening holding = "opening" // no response has confirmed the hold, so that it may end at any time
	held    holding = "held"    // the hold lasts until the deadline or the request to cancel
)

// operation is an operation that a customer can call, or a decision of the second party.
type operation string

const (
	create  operation = "create"
	confirm operation = "confirm"
	cancel  operation = "cancel"
	get     operation = "get"
	count   operation = "count"  // the item towards its customer's bound
	extend  operation = "extend" // the deadline
	hold    operation = "hold"   // the item for the second party
	settle  operation = "settle" // the second party's success, which confirms the item or is undone
)

// passed tells whether a time has passed when a call takes effect.
type passed struct {
	maybe  bool // it may have passed before the response came
	surely bool // it had passed before the request was sent
}

// call is a customer's call of an operation, or a decision of the second party.
type call struct {
	operation operation
	deadline  [2]passed // the item's deadline: the first one, and the extended one
	holdEnd   [2]passed // the latest end of the item's hold: with each of the two deadlines
}

// rejection is the reason why a call was rejected.
type rejection string

const (
	rejectedConfirmed  rejection = "confirmed"  // the item is confirmed
	rejectedCancelled  rejection = "cancelled"  // its customer has cancelled it
	rejectedLate       rejection = "late"       // its deadline has passed
	rejectedExhausted  rejection = "exhausted"  // too little is left of the resource that a new item needs
	rejectedBound      rejection = "bound"      // its customer has as much as one customer can have at a time
	rejectedOverloaded rejection = "overloaded" // too many items are being created: this call created none
	rejectedHeld       rejection = "held"       // the item is held
	rejectedCancelling rejection = "cancelling" // its customer has asked to cancel it
	rejectedExtension  rejection = "extension"  // its deadline was extended before, or it is being cancelled
	rejectedByParty    rejection = "by party"   // the second party refuses to deal with the item
)

// outcome is the content of a response, as far as the model knows it.
type outcome struct {
	unknown  bool // no response came, or the response does not tell whether the call took effect
	created  bool // this call created the item
	undone   bool // the second party's success was undone; otherwise it confirmed the item
	rejected rejection
	open     []string // if rejected is rejectedBound: the ids of the customer's items that the response names
	state             // of the item after the call, unless the outcome is unknown or rejected
}

// step returns the states in which an item may be after a call with this outcome. It returns none if the outcome is
// wrong.
func step(s state, c call, o outcome) (next []state) {
	for _, now := range elapse(s, c) {
		after, allowed := apply(now, c, o)
		if allowed {
			next = append(next, after)
		}
		if o.unknown && after != now {
			next = append(next, now) // the request may have been lost
		}
	}
	return next
}

// elapse returns the states in which an item may be when a call takes effect, if it was in state s before.
func elapse(s state, c call) []state {
	now := []state{s}
	for i := 0; i < len(now); i++ {
		for _, next := range becomes(now[i], c) {
			if !slices.Contains(now, next) {
				now = append(now, next)
			}
		}
	}
	return slices.DeleteFunc(now, func(s state) bool { return s.status == pending && c.deadline[s.which()].surely })
}

// becomes returns the states that may follow s without a call: the deadline passes, a hold ends, and an item that is not
// held any more is cancelled.
func becomes(s state, c call) (next []state) {
	if s.status != pending && s.status != expired {
		return nil
	}
	if s.status == pending && c.deadline[s.which()].maybe {
		overdue := s
		overdue.status = expired
		next = append(next, overdue)
	}
	ends := s.cancelling || s.status == expired
	switch {
	case s.hold == opening, s.hold == held && ends:
		released := s
		released.hold = free
		next = append(next, released)
	case s.hold == free && s.cancelling:
		next = append(next, s.ended(cancelled))
	case s.hold == free && ends:
		next = append(next, s.ended(timedOut))
	}
	return next
}

// which returns the index of the item's deadline in call.deadline and call.holdEnd.
func (s state) which() int {
	if s.extended {
		return 1
	}
	return 0
}

// ended returns the state of an item that ends with a status.
func (s state) ended(as status) state {
	return state{status: as, id: s.id, extended: s.extended}
}

// shown returns the state as a response shows it.
func (s state) shown() state {
	if s.status == expired {
		s.status = pending // until a worker or a reconciler cancels it
	}
	if s.hold == opening {
		s.hold = held
	}
	return s
}

// apply returns the state after a call, and reports whether the outcome is right.
func apply(s state, c call, o outcome) (state, bool) {
	if o.id != "" && s.status != absent {
		if s.id != "" && s.id != o.id {
			return s, false // a second item under the same key
		}
		s.id = o.id
	}
	switch c.operation {
	case create:
		switch {
		case o.rejected == rejectedExhausted, o.rejected == rejectedBound:
			return s, s.status == absent
		case o.rejected == rejectedOverloaded:
			return s, true
		case s.status == absent:
			return state{status: pending, id: o.id}, o.unknown || o.created
		default:
			return s, o.unknown || !o.created && s.shown() == o.state
		}
	case settle:
		if o.undone { // the item had ended, or its hold had
			return s, s.status != absent && s.status != pending
		}
		return s.ended(confirmed), s.hold == held && !c.holdEnd[s.which()].surely
	case get:
		return s, o.unknown || s.shown() == o.state
	case count:
		return s, s.shown().status == pending
	}
	after, reasons := respond(s, c.operation)
	if c.operation == hold {
		o.extended = s.extended // the second party's response does not show it
	}
	switch {
	case o.unknown && after.hold == held && s.hold != held:
		after.hold = opening
		return after, true
	case o.unknown:
		return after, true
	case o.rejected == rejectedByParty:
		return s, c.operation == hold && len(reasons) == 0 && s.hold != held
	case o.rejected != "":
		return s, slices.Contains(reasons, o.rejected)
	default:
		return after, len(reasons) == 0 && after.shown() == o.state
	}
}

// respond returns the state after a call of confirm, cancel, extend or hold, or the reasons for which the service may
// reject the call.
func respond(s state, o operation) (after state, reasons []rejection) {
	switch {
	case s.status == absent:
		return s, nil
	case o == confirm && s.status == confirmed, o == cancel && s.status == cancelled:
		return s, nil // a repeated call
	case s.status == confirmed:
		return s, []rejection{rejectedConfirmed}
	case s.status == cancelled:
		return s, []rejection{rejectedCancelled}
	case s.status == timedOut:
		return s, []rejection{rejectedLate}
	}
	if s.status == expired && (o != cancel || !s.cancelling) { // a repeated request to cancel is accepted at any time
		reasons = append(reasons, rejectedLate)
	}
	if s.cancelling && o != cancel {
		reasons = append(reasons, rejectedCancelling)
	}
	if s.hold != free && o == confirm {
		reasons = append(reasons, rejectedHeld)
	}
	if o == extend && (s.extended || s.cancelling) {
		reasons = append(reasons, rejectedExtension)
	}
	if reasons != nil {
		return s, reasons
	}
	after = s
	switch {
	case o == confirm:
		return s.ended(confirmed), nil
	case o == cancel && s.hold == free && !s.cancelling:
		return s.ended(cancelled), nil
	case o == cancel:
		after.cancelling = true
	case o == hold:
		after.hold = held
	case o == extend:
		after.extended = true
	}
	return after, nil
}

var itemModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{status: absent}} },
	Step: func(s, c, o any) []any {
		var next []any
		for _, state := range step(s.(state), c.(call), o.(outcome)) {
			next = append(next, state)
		}
		return next
	},
}).ToModel()

// never is the end of a call with an unknown outcome. The call may take effect at any later time, or not at all.
const never = time.Duration(math.MaxInt64)

// entry is a call with its outcome. Its times are those of one monotonic clock.
type entry struct {
	call
	outcome
	began, ended time.Duration
}

// String returns the call in one short line. Times are in seconds since the load began.
func (e entry) String() string {
	ended, result := fmt.Sprintf("%.3f", e.ended.Seconds()), ""
	switch {
	case e.unknown:
		ended, result = "…", "unknown"
	case e.rejected != "":
		result = "rejected: " + string(e.rejected)
	case e.operation == settle && e.undone:
		result = "undone"
	case e.operation == settle:
		result = "confirms"
	default:
		result = fmt.Sprintf("%s %s", e.status, e.id)
		for _, part := range []struct {
			holds bool
			text  string
		}{{e.hold == held, " held"}, {e.cancelling, " cancelling"}, {e.extended, " extended"}, {e.created, ", created by this call"}} {
			if part.holds {
				result += part.text
			}
		}
	}
	return fmt.Sprintf("%s %.3f–%s: %s", e.operation, e.began.Seconds(), ended, result)
}

// history holds all calls about one item.
type history []entry

// possible reports whether one item can give all these responses.
func (h history) possible() bool {
	var ops []porcupine.Operation
	for i, e := range h {
		ops = append(ops, porcupine.Operation{ClientId: i, Input: e.call, Output: e.outcome, Call: int64(e.began), Return: int64(e.ended)})
	}
	const limit = time.Minute // a history has about ten calls
	return porcupine.CheckOperationsTimeout(itemModel, ops, limit) == porcupine.Ok
}

// with returns the history with additional entries of count. It leaves out those that follow from others, because the
// time to check a history grows exponentially with the number of calls at the same time: if the item was pending at an
// instant within one call, then also within each longer call around it.
func (h history) with(counts history) history {
	h = slices.Clone(h)
	slices.SortStableFunc(counts, func(a, b entry) int { return cmp.Compare(a.ended-a.began, b.ended-b.began) })
	for _, c := range counts {
		follows := slices.ContainsFunc(h, func(e entry) bool {
			return !e.unknown && e.rejected == "" && e.operation != settle && e.status == pending && c.began <= e.began && e.ended <= c.ended
		})
		if !follows {
			h = append(h, c)
		}
	}
	return h
}

// times are the durations that decide when items end.
type times struct {
	timeout   time.Duration // of an item
	extension time.Duration // by which a customer can move the deadline once
	grace     time.Duration // from the deadline of a held item to the latest end of its hold
}

// timed sets the deadline and the end of the hold of each call. The first deadline is one timeout after the item was
// created. The item was created after the first request to create it was sent, and before the first successful response
// to such a request.
func (h history) timed(after times) history {
	earliest, latest := never, never // when the item was created
	for _, e := range h {
		if e.operation == create {
			earliest = min(earliest, e.began)
			if !e.unknown && e.rejected == "" {
				latest = min(latest, e.ended)
			}
		}
	}
	h = slices.Clone(h)
	for i := range h {
		e := &h[i]
		hasPassed := func(d time.Duration) passed { // d after the item was created
			return passed{maybe: e.ended-d >= earliest, surely: e.began-d >= latest}
		}
		for which, deadline := range []time.Duration{after.timeout, after.timeout + after.extension} {
			e.deadline[which], e.holdEnd[which] = hasPassed(deadline), hasPassed(deadline+after.grace)
		}
	}
	return h
}
