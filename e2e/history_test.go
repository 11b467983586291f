package e2e

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// This file has a model of one item, and compares the responses that the item's customer got with the model. The
// responses are right if each call can be assigned an instant between its request and its response such that the model,
// called in the order of these instants, gives the same responses (linearizability).

// state is the status and the id of an item.
type state struct {
	status status
	id     string // "" until a response has contained it
}

// operation is an operation that a customer can call.
type operation string

const (
	create  operation = "create"
	confirm operation = "confirm"
	cancel  operation = "cancel"
	get     operation = "get"
)

// call is a customer's call of an operation.
type call struct {
	operation operation
	mayBeLate bool // the deadline may have passed before the response came
	isLate    bool // the deadline had passed before the request was sent
}

// rejection is the reason why a call was rejected.
type rejection string

const (
	rejectedConfirmed rejection = "confirmed" // the item is confirmed
	rejectedCancelled rejection = "cancelled" // its customer has cancelled it
	rejectedLate      rejection = "late"      // its deadline has passed
	rejectedExhausted rejection = "exhausted" // too little is left of the resource that a new item needs
)

// outcome is the content of a response, as far as the model knows it.
type outcome struct {
	unknown  bool // no response came, or the response does not tell whether the call took effect
	created  bool // this call created the item
	rejected rejection
	state    // of the item after the call, unless the outcome is unknown or rejected
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

// elapse returns the states in which an item may be when a call takes effect: its deadline may have passed since s.
func elapse(s state, c call) []state {
	overdue, gone := state{expired, s.id}, state{timedOut, s.id}
	switch {
	case s.status == pending && c.isLate, s.status == expired:
		return []state{overdue, gone}
	case s.status == pending && c.mayBeLate:
		return []state{s, overdue, gone}
	default:
		return []state{s}
	}
}

// apply returns the state after a call, and reports whether the outcome is right.
func apply(s state, c call, o outcome) (state, bool) {
	if o.id != "" && s.status != absent {
		if s.id != "" && s.id != o.id {
			return s, false // a second item under the same key
		}
		s.id = o.id
	}
	shown := s
	if shown.status == expired {
		shown.status = pending // until a worker or a reconciler cancels it
	}
	switch c.operation {
	case create:
		switch {
		case o.rejected == rejectedExhausted:
			return s, s.status == absent
		case s.status == absent:
			return state{pending, o.id}, o.unknown || o.created
		default:
			return s, o.unknown || !o.created && shown == o.state
		}
	case confirm:
		return end(s, confirmed, o)
	case cancel:
		return end(s, cancelled, o)
	default:
		return s, o.unknown || shown == o.state
	}
}

// end returns the state after a call that ends an item with a status, and reports whether the outcome is right.
func end(s state, as status, o outcome) (state, bool) {
	late := s.status == expired || s.status == timedOut
	if s.status == pending {
		s.status = as
	}
	switch {
	case o.unknown:
		return s, true
	case o.rejected == rejectedLate:
		return s, late
	case o.rejected != "":
		return s, string(s.status) == string(o.rejected) && s.status != as
	default:
		return s, s.status == as
	}
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

// timed sets mayBeLate and isLate of each call. The deadline is one timeout after the item was created. The item was
// created after the first request to create it was sent, and before the first successful response to such a request.
func (h history) timed(timeout time.Duration) history {
	earliest, latest := never, never
	for _, e := range h {
		if e.operation == create {
			earliest = min(earliest, e.began+timeout)
			if !e.unknown && e.rejected == "" {
				latest = min(latest, e.ended+timeout)
			}
		}
	}
	h = slices.Clone(h)
	for i := range h {
		h[i].mayBeLate = h[i].ended >= earliest
		h[i].isLate = h[i].began >= latest
	}
	return h
}

// TestHistories checks that the model accepts possible histories and rejects impossible ones.
func TestHistories(t *testing.T) {
	const s = time.Second
	const timeout = 3 * s
	is := func(status status) outcome { return outcome{state: state{status, "a"}} }
	created := outcome{created: true, state: state{pending, "a"}}
	second := outcome{state: state{pending, "b"}}
	none := outcome{state: state{status: absent}}
	rejected := func(why rejection) outcome { return outcome{rejected: why} }
	lost := outcome{unknown: true}
	do := func(operation operation, began, ended time.Duration, o outcome) entry {
		if o.unknown {
			ended = never
		}
		return entry{call{operation: operation}, o, began, ended}
	}
	tests := map[string]struct {
		history  history
		possible bool
	}{
		"confirmed":                          {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(get, 9*s, 9*s, is(confirmed))}, true},
		"confirmed, then timed out":          {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(get, 9*s, 9*s, is(timedOut))}, false},
		"confirmation lost":                  {history{do(create, 0, s, created), do(confirm, s, 2*s, lost), do(get, 9*s, 9*s, is(timedOut))}, true},
		"confirmation's response lost":       {history{do(create, 0, s, created), do(confirm, s, 2*s, lost), do(get, 9*s, 9*s, is(confirmed))}, true},
		"created item lost":                  {history{do(create, 0, s, created), do(get, 9*s, 9*s, none)}, false},
		"exhausted":                          {history{do(create, 0, s, rejected(rejectedExhausted)), do(get, 9*s, 9*s, none)}, true},
		"exhausted, but created":             {history{do(create, 0, s, rejected(rejectedExhausted)), do(get, 9*s, 9*s, is(timedOut))}, false},
		"never created":                      {history{do(create, 0, s, lost), do(get, 9*s, 9*s, none)}, true},
		"created, response lost, repeated":   {history{do(create, 0, s, lost), do(create, s, 2*s, is(pending))}, true},
		"one key, two items":                 {history{do(create, 0, s, created), do(create, s, 2*s, second)}, false},
		"one key, created twice":             {history{do(create, 0, s, created), do(create, s, 2*s, created)}, false},
		"timed out before the deadline":      {history{do(create, 0, s, created), do(get, s, 2*s, is(timedOut))}, false},
		"rejected as late too early":         {history{do(create, 0, s, created), do(confirm, s, 2*s, rejected(rejectedLate))}, false},
		"rejected as late":                   {history{do(create, 0, s, created), do(confirm, 4*s, 5*s, rejected(rejectedLate))}, true},
		"confirmed after the deadline":       {history{do(create, 0, s, created), do(confirm, 4*s, 5*s, is(confirmed))}, false},
		"confirmed at the last moment":       {history{do(create, 0, s, created), do(confirm, 3*s, 5*s, is(confirmed))}, true},
		"both confirmed and cancelled":       {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(cancel, s, 2*s, is(cancelled))}, false},
		"confirmed, cancellation rejected":   {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(cancel, s, 2*s, rejected(rejectedConfirmed))}, true},
		"rejected as cancelled, but pending": {history{do(create, 0, s, created), do(confirm, s, 2*s, rejected(rejectedCancelled))}, false},
		"confirmed, then pending again":      {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(get, 3*s, 4*s, is(pending))}, false},
		"pending past its deadline":          {history{do(create, 0, s, created), do(get, 5*s, 6*s, is(pending)), do(confirm, 6*s, 7*s, rejected(rejectedLate))}, true},
	}
	for name, test := range tests {
		if got := test.history.timed(timeout).possible(); got != test.possible {
			t.Errorf("%s: possible %v, want %v", name, got, test.possible)
		}
	}
}
