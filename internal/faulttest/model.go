package faulttest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// This file has a model of one row, and compares the responses that the row's customer got with the model. The
// responses are right if each call can be assigned an instant between its request and its response such that the model,
// called in the order of these instants, gives the same responses (linearizability).

// State is what the model knows of a row.
type State struct {
	Status     Status
	ID         string // "" until a response has contained it
	Hold       holding
	Extensions int // how often its customer has extended its deadline, at most MaxExtensions
}

// holding tells whether a pending row is held for the service's second party ([Party]). The row
// then ends after its deadline, and the second party may still confirm it.
type holding string

// The values of a holding.
const (
	free    holding = ""
	opening holding = "opening" // no response has confirmed the hold, so that it may end at any time
	Held    holding = "held"    // the hold lasts until the deadline, or until it is closed
	closing holding = "closing" // no response has told whether it was closed, so that it may end at any time
)

// Operation is an operation that a customer can call, or a decision of the second party.
type Operation string

// The operations.
const (
	Create  Operation = "create"
	Confirm Operation = "confirm"
	Cancel  Operation = "cancel"
	Get     Operation = "get"
	count   Operation = "count"  // the row towards its customer's bound
	reuse   Operation = "reuse"  // create with the key of the row, and with another body
	Extend  Operation = "extend" // the deadline
	Hold    Operation = "hold"   // the row for the second party
	Close   Operation = "close"  // the hold, so that the row can be cancelled
	Settle  Operation = "settle" // the second party's success, which confirms the row or is undone
)

// isOther reports whether an operation is one of the service's own, which leaves each row as it is.
func (o Operation) isOther() bool {
	return !slices.Contains([]Operation{Create, Confirm, Cancel, Get, count, reuse, Extend, Hold, Close, Settle}, o)
}

// passed tells whether a time has passed when a call takes effect.
type passed struct {
	maybe  bool // it may have passed before the response came
	surely bool // it had passed before the request was sent
}

// call is a customer's call of an operation, or a decision of the second party.
type call struct {
	Operation Operation
	Deadline  [MaxExtensions + 1]passed // the row's deadline, by the number of its extensions
	HoldEnd   [MaxExtensions + 1]passed // the latest end of the row's hold, by the number of extensions
}

// MaxExtensions is how often the service under test lets a customer extend a deadline.
const MaxExtensions = 2

// Rejection is the reason why a call was rejected.
type Rejection string

// The reasons of rejections.
const (
	RejectedConfirmed  Rejection = "confirmed"  // the row is confirmed
	RejectedCancelled  Rejection = "cancelled"  // its customer has cancelled it
	RejectedLate       Rejection = "late"       // its deadline has passed
	RejectedReuse      Rejection = "reuse"      // the key belongs to a request with another body
	RejectedExhausted  Rejection = "exhausted"  // too little is left of the shared row that a new row needs
	RejectedBound      Rejection = "bound"      // its customer has as much as one customer can have at a time
	RejectedOverloaded Rejection = "overloaded" // too many want this: the call has changed nothing
	RejectedHeld       Rejection = "held"       // the row is held
	RejectedExtension  Rejection = "extension"  // it was extended as often as it can be
	RejectedByParty    Rejection = "by party"   // the second party refuses to deal with the row
	RejectedOther      Rejection = "other"      // an operation of the service's own has no success, as it should
)

// Response is the content of a response, as far as the model knows it.
type Response struct {
	Unknown  bool // no response came, or the response does not tell whether the call took effect
	Created  bool // this call created the row
	Undone   bool // the second party's success was undone; otherwise it confirmed the row
	Rejected Rejection
	Open     []string // if rejected is rejectedBound: the ids of the customer's rows that the response names
	State             // of the row after the call, unless the outcome is unknown or rejected
}

// endsRow reports whether a response tells that the row has ended.
func (o Response) endsRow() bool {
	return !o.Unknown && (slices.Contains([]Status{Confirmed, Cancelled, TimedOut}, o.Status) ||
		o.Rejected == RejectedConfirmed || o.Rejected == RejectedCancelled)
}

// step returns the states in which a row may be after a call with this outcome. It returns none if the outcome is
// wrong.
func step(s State, c call, o Response) (next []State) {
	for _, now := range elapse(s, c) {
		after, allowed := apply(now, c, o)
		if allowed {
			next = append(next, after)
		}
		if o.Unknown && after != now {
			next = append(next, now) // the request may have been lost
		}
	}
	return next
}

// elapse returns the states in which a row may be when a call takes effect, if it was in state s before.
func elapse(s State, c call) []State {
	now := []State{s}
	for i := 0; i < len(now); i++ {
		for _, next := range becomes(now[i], c) {
			if !slices.Contains(now, next) {
				now = append(now, next)
			}
		}
	}
	return slices.DeleteFunc(now, func(s State) bool { return s.Status == Pending && c.Deadline[s.Extensions].surely })
}

// becomes returns the states that may follow s without a call: the deadline passes, a hold ends, and a row that is not
// held any more is cancelled.
func becomes(s State, c call) (next []State) {
	if s.Status != Pending && s.Status != Expired {
		return nil
	}
	if s.Status == Pending && c.Deadline[s.Extensions].maybe {
		overdue := s
		overdue.Status = Expired
		next = append(next, overdue)
	}
	switch {
	case s.Hold == opening, s.Hold == closing, s.Hold == Held && s.Status == Expired:
		released := s
		released.Hold = free
		next = append(next, released)
	case s.Hold == free && s.Status == Expired:
		next = append(next, s.ended(TimedOut))
	}
	return next
}

// ended returns the state of a row that ends with a status.
func (s State) ended(as Status) State {
	return State{Status: as, ID: s.ID, Extensions: s.Extensions}
}

// shown returns the state as a response shows it.
func (s State) shown() State {
	if s.Status == Expired {
		s.Status = Pending // until a worker or a reconciler cancels it
	}
	if s.Hold != free {
		s.Hold = Held
	}
	return s
}

// apply returns the state after a call, and reports whether the outcome is right.
func apply(s State, c call, o Response) (State, bool) {
	if o.ID != "" && s.Status != Absent {
		if s.ID != "" && s.ID != o.ID {
			return s, false // a second row under the same key
		}
		s.ID = o.ID
	}
	if o.Rejected == RejectedOverloaded {
		return s, true
	}
	switch c.Operation {
	case Create:
		switch {
		case o.Rejected == RejectedExhausted, o.Rejected == RejectedBound:
			return s, s.Status == Absent
		case s.Status == Absent:
			return State{Status: Pending, ID: o.ID}, o.Unknown || o.Created
		default:
			return s, o.Unknown || !o.Created && s.shown() == o.State
		}
	case Settle:
		if o.Undone { // the row had ended, or its hold had
			return s, s.Status != Absent && s.Status != Pending
		}
		return s.ended(Confirmed), (s.Hold == Held || s.Hold == closing) && !c.HoldEnd[s.Extensions].surely
	case Close:
		return closed(s, o)
	case Get:
		return s, o.Unknown || s.shown() == o.State
	case count: // an overdue row does not count, unless its hold lasts
		return s, s.Status == Pending || s.Status == Expired && s.Hold != free
	case reuse:
		return s, o.Unknown || o.Rejected == RejectedReuse && s.Status != Absent
	}
	after, reasons := respond(s, c.Operation)
	if c.Operation == Hold {
		o.Extensions = s.Extensions // the second party's response does not show it
	}
	switch {
	case c.Operation == Cancel && s.Hold != free && c.HoldEnd[s.Extensions].surely:
		return s, o.Unknown || o.Rejected == RejectedLate // the row is shown as held until it is cancelled
	case o.Unknown && after.Hold == Held && s.Hold != Held:
		after.Hold = opening
		return after, true
	case o.Unknown:
		return after, true
	case o.Rejected == RejectedByParty:
		return s, c.Operation == Hold && len(reasons) == 0 && s.Hold != Held
	case o.Rejected == RejectedLate && c.Operation == Cancel && s.Status == Expired && c.HoldEnd[s.Extensions].maybe:
		return s, true // the hold has ended by itself: the row is due, and it is shown as held until it is cancelled
	case o.Rejected == RejectedOther:
		return s, c.Operation.isOther() && len(reasons) == 0
	case o.Rejected != "":
		return s, slices.Contains(reasons, o.Rejected)
	default:
		return after, len(reasons) == 0 && after.shown() == o.State
	}
}

// closed returns the state after a call of close, and reports whether the outcome is right.
func closed(s State, o Response) (State, bool) {
	after := s
	switch {
	case o.Unknown && s.Hold != free:
		after.Hold = closing
		return after, true
	case o.Unknown:
		return s, true
	case o.Rejected == RejectedConfirmed:
		return s, s.Status == Confirmed
	case o.Rejected != "":
		return s, s.Hold != free && (o.Rejected == RejectedHeld || o.Rejected == RejectedByParty)
	default:
		after.Hold = free
		return after, s.Status != Confirmed
	}
}

// respond returns the state after a call of confirm, cancel, extend, hold or an operation of the service's own, or the
// reasons for which the service may reject the call.
func respond(s State, o Operation) (after State, reasons []Rejection) {
	switch {
	case s.Status == Absent:
		return s, nil
	case o == Confirm && s.Status == Confirmed, o == Cancel && s.Status == Cancelled:
		return s, nil // a repeated call
	case s.Status == Confirmed:
		return s, []Rejection{RejectedConfirmed}
	case s.Status == Cancelled:
		return s, []Rejection{RejectedCancelled}
	case s.Status == TimedOut:
		return s, []Rejection{RejectedLate}
	}
	if s.Status == Expired && (o != Cancel || s.Hold == free) {
		reasons = append(reasons, RejectedLate)
	}
	if s.Hold != free && (o == Confirm || o == Cancel) {
		reasons = append(reasons, RejectedHeld)
	}
	if o == Extend && s.Extensions == MaxExtensions {
		reasons = append(reasons, RejectedExtension)
	}
	if reasons != nil {
		return s, reasons
	}
	after = s
	switch {
	case o == Confirm:
		return s.ended(Confirmed), nil
	case o == Cancel:
		return s.ended(Cancelled), nil
	case o == Hold && s.Hold != closing:
		after.Hold = Held
	case o == Extend:
		after.Extensions++
	}
	return after, nil
}

var rowModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{State{Status: Absent}} },
	Step: func(s, c, o any) []any {
		var next []any
		for _, state := range step(s.(State), c.(call), o.(Response)) {
			next = append(next, state)
		}
		return next
	},
}).ToModel()

// never is the end of a call with an unknown outcome. The call may take effect at any later time, or not at all.
const never = time.Duration(math.MaxInt64)

// Entry is a call with its outcome. Its times are those of one monotonic clock.
type Entry struct {
	call
	Response
	Began, Ended time.Duration
}

// String returns the call in one short line. Times are in seconds since the load began.
func (e Entry) String() string {
	ended, result := fmt.Sprintf("%.3f", e.Ended.Seconds()), ""
	switch {
	case e.Unknown:
		ended, result = "…", "unknown"
	case e.Rejected != "":
		result = "rejected: " + string(e.Rejected)
	case e.Operation == Settle && e.Undone:
		result = "undone"
	case e.Operation == Settle:
		result = "confirms"
	default:
		result = fmt.Sprintf("%s %s", e.Status, e.ID)
		for _, part := range []struct {
			holds bool
			text  string
		}{
			{e.Hold == Held, " held"},
			{e.Extensions > 0, fmt.Sprintf(" extended %d times", e.Extensions)},
			{e.Created, ", created by this call"},
		} {
			if part.holds {
				result += part.text
			}
		}
	}
	return fmt.Sprintf("%s %.3f–%s: %s", e.Operation, e.Began.Seconds(), ended, result)
}

// history holds all calls about one row.
type history []Entry

// possible reports whether one row can give all these responses.
func (h history) possible() bool {
	var ops []porcupine.Operation
	for i, e := range h {
		ops = append(ops, porcupine.Operation{
			ClientId: i, Input: e.call, Output: e.Response, Call: int64(e.Began), Return: int64(e.Ended),
		})
	}
	const limit = time.Minute // a history has about ten calls
	return porcupine.CheckOperationsTimeout(rowModel, ops, limit) == porcupine.Ok
}

// with returns the history with additional entries of count. It leaves out those that follow from others, because the
// time to check a history grows exponentially with the number of calls at the same time: if the row was pending at an
// instant within one call, then also within each longer call around it. An answer that shows it pending does not tell
// whether it was overdue.
func (h history) with(counts history) history {
	h = slices.Clone(h)
	slices.SortStableFunc(counts, func(a, b Entry) int { return cmp.Compare(a.Ended-a.Began, b.Ended-b.Began) })
	for _, c := range counts {
		follows := slices.ContainsFunc(h, func(e Entry) bool {
			return (e.Operation == count || e.Operation == Create && e.Created) &&
				c.Began <= e.Began && e.Ended <= c.Ended
		})
		if !follows {
			h = append(h, c)
		}
	}
	return h
}

// times are the durations that decide when rows end.
type times struct {
	Timeout   time.Duration // of a row
	Extension time.Duration // by which a customer can move the deadline, MaxExtensions times
	Grace     time.Duration // from the deadline of a held row to the latest end of its hold
}

// timed sets the deadline and the end of the hold of each call. The first deadline is one timeout after the row was
// created. The row was created after the first request to create it was sent, and before the first successful response
// to such a request.
func (h history) timed(after times) history {
	earliest, latest := never, never // when the row was created
	for _, e := range h {
		if e.Operation == Create {
			earliest = min(earliest, e.Began)
			if !e.Unknown && e.Rejected == "" {
				latest = min(latest, e.Ended)
			}
		}
	}
	h = slices.Clone(h)
	for i := range h {
		e := &h[i]
		hasPassed := func(d time.Duration) passed { // d after the row was created
			return passed{maybe: e.Ended-d >= earliest, surely: e.Began-d >= latest}
		}
		for n := range e.Deadline {
			deadline := after.Timeout + time.Duration(n)*after.Extension
			e.Deadline[n], e.HoldEnd[n] = hasPassed(deadline), hasPassed(deadline+after.Grace)
		}
	}
	return h
}
