package e2e

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The plain model of one order, and the check of what its customer was answered against it: is there an
// order of instants, each between a call and its answer, at which one thing after the other could have
// happened to a plain variable so that every answer is right?

// state is where an order is. expired: pending, and its deadline has passed.
type state struct {
	at string // none, pending, expired, paid, cancelled, timeout
	id string // "" as long as no answer has told
}

// call is one thing that was asked.
type call struct {
	do string // place, pay, cancel, or look: read what there is
	// By the one monotonic clock that all calls of a history are timed with: whether the deadline may have
	// passed when the answer came, and whether it had when the call was made.
	mayBeLate, isLate bool
}

// told is an answer: what the order became or was found to be. Unknown: it was lost, or it said that what
// happened is not certain.
type told struct {
	unknown bool
	created bool   // by this call
	refused string // why a payment or cancellation was refused: paid, cancelled or late; why an order was: stock
	state
}

// after returns the states that an order may be in after a call with this answer; none: the answer is wrong.
func after(s state, c call, a told) (next []state) {
	for _, now := range meanwhile(s, c) {
		did, allowed := apply(now, c, a)
		if allowed {
			next = append(next, did)
		}
		if a.unknown && did != now {
			next = append(next, now) // or it never arrived
		}
	}
	return next
}

// meanwhile returns what an order may have become by itself until a call.
func meanwhile(s state, c call) []state {
	expired, timeout := state{"expired", s.id}, state{"timeout", s.id}
	switch {
	case s.at == "pending" && c.isLate, s.at == "expired":
		return []state{expired, timeout}
	case s.at == "pending" && c.mayBeLate:
		return []state{s, expired, timeout}
	default:
		return []state{s}
	}
}

// apply makes a call at one instant, and tells whether the answer is right.
func apply(s state, c call, a told) (state, bool) {
	if a.id != "" && s.at != "none" {
		if s.id != "" && s.id != a.id {
			return s, false // another order under the same key
		}
		s.id = a.id
	}
	found := s
	if found.at == "expired" {
		found.at = "pending" // to who looks, as long as it is not cancelled
	}
	switch c.do {
	case "place":
		switch {
		case a.refused == "stock":
			return s, s.at == "none"
		case s.at == "none":
			return state{"pending", a.id}, a.unknown || a.created
		default:
			return s, a.unknown || !a.created && found == a.state
		}
	case "pay":
		return end(s, "paid", a)
	case "cancel":
		return end(s, "cancelled", a)
	default:
		return s, a.unknown || found == a.state
	}
}

// end pays or cancels.
func end(s state, end string, a told) (state, bool) {
	late := s.at == "expired" || s.at == "timeout"
	if s.at == "pending" {
		s.at = end
	}
	switch {
	case a.unknown:
		return s, true
	case a.refused == "late":
		return s, late
	case a.refused != "":
		return s, s.at == a.refused && s.at != end
	default:
		return s, s.at == end
	}
}

var orderModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{at: "none"}} },
	Step: func(s, c, a any) []any {
		var next []any
		for _, state := range after(s.(state), c.(call), a.(told)) {
			next = append(next, state)
		}
		return next
	},
}).ToModel()

// never is when a lost answer comes: what was asked may happen at any time, or not at all.
const never = time.Duration(math.MaxInt64)

// entry is a call with its answer.
type entry struct {
	call
	told
	began, ended time.Duration
}

// history is all that was asked about one order.
type history []entry

// possible tells whether the answers are those of one order.
func (h history) possible() bool {
	var ops []porcupine.Operation
	for i, e := range h {
		ops = append(ops, porcupine.Operation{ClientId: i, Input: e.call, Output: e.told, Call: int64(e.began), Return: int64(e.ended)})
	}
	const most = time.Minute // a history has some ten calls
	return porcupine.CheckOperationsTimeout(orderModel, ops, most) == porcupine.Ok
}

// timed notes for each call whether the deadline was behind it. The deadline is the timeout after the instant
// of placing, which is after the first attempt began and before the first that succeeded was answered.
func (h history) timed(timeout time.Duration) history {
	earliest, latest := never, never
	for _, e := range h {
		if e.do == "place" {
			earliest = min(earliest, e.began+timeout)
			if !e.unknown && e.refused == "" {
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

// TestHistories has the model judge histories, good and bad ones.
func TestHistories(t *testing.T) {
	const s = time.Second
	const timeout = 3 * s
	at := func(what string) told { return told{state: state{what, "a"}} }
	made := told{created: true, state: state{"pending", "a"}}
	refused := func(why string) told { return told{refused: why} }
	lost := told{unknown: true}
	do := func(what string, began, ended time.Duration, a told) entry {
		if a.unknown {
			ended = never
		}
		return entry{call{do: what}, a, began, ended}
	}
	tests := map[string]struct {
		history  history
		possible bool
	}{
		"placed and paid":                {history{do("place", 0, s, made), do("pay", s, 2*s, at("paid")), do("look", 9*s, 9*s, at("paid"))}, true},
		"paid and cancelled":             {history{do("place", 0, s, made), do("pay", s, 2*s, at("paid")), do("look", 9*s, 9*s, at("timeout"))}, false},
		"paid, answer lost, cancelled":   {history{do("place", 0, s, made), do("pay", s, 2*s, lost), do("look", 9*s, 9*s, at("timeout"))}, true},
		"paid in spite of a lost answer": {history{do("place", 0, s, made), do("pay", s, 2*s, lost), do("look", 9*s, 9*s, at("paid"))}, true},
		"lost order":                     {history{do("place", 0, s, made), do("look", 9*s, 9*s, told{state: state{"none", ""}})}, false},
		"nothing left":                   {history{do("place", 0, s, refused("stock")), do("look", 9*s, 9*s, told{state: state{"none", ""}})}, true},
		"nothing left, and yet placed":   {history{do("place", 0, s, refused("stock")), do("look", 9*s, 9*s, at("timeout"))}, false},
		"never placed":                   {history{do("place", 0, s, lost), do("look", 9*s, 9*s, told{state: state{"none", ""}})}, true},
		"placed under a lost answer":     {history{do("place", 0, s, lost), do("place", s, 2*s, at("pending"))}, true},
		"one key, two orders":            {history{do("place", 0, s, made), do("place", s, 2*s, told{state: state{"pending", "b"}})}, false},
		"one key, placed twice":          {history{do("place", 0, s, made), do("place", s, 2*s, made)}, false},
		"timed out too early":            {history{do("place", 0, s, made), do("look", s, 2*s, at("timeout"))}, false},
		"refused too early":              {history{do("place", 0, s, made), do("pay", s, 2*s, refused("late"))}, false},
		"refused in time":                {history{do("place", 0, s, made), do("pay", 4*s, 5*s, refused("late"))}, true},
		"paid too late":                  {history{do("place", 0, s, made), do("pay", 4*s, 5*s, at("paid"))}, false},
		"paid at the last moment":        {history{do("place", 0, s, made), do("pay", 3*s, 5*s, at("paid"))}, true},
		"both paid and cancelled":        {history{do("place", 0, s, made), do("pay", s, 2*s, at("paid")), do("cancel", s, 2*s, at("cancelled"))}, false},
		"one of the two":                 {history{do("place", 0, s, made), do("pay", s, 2*s, at("paid")), do("cancel", s, 2*s, refused("paid"))}, true},
		"refused for no reason":          {history{do("place", 0, s, made), do("pay", s, 2*s, refused("cancelled"))}, false},
		"paid, then pending again":       {history{do("place", 0, s, made), do("pay", s, 2*s, at("paid")), do("look", 3*s, 4*s, at("pending"))}, false},
		"pending past its deadline":      {history{do("place", 0, s, made), do("look", 5*s, 6*s, at("pending")), do("pay", 6*s, 7*s, refused("late"))}, true},
	}
	for name, test := range tests {
		if got := test.history.timed(timeout).possible(); got != test.possible {
			t.Errorf("%s: possible %v, want %v", name, got, test.possible)
		}
	}
}
