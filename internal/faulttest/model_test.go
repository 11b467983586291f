package faulttest

import (
	"reflect"
	"testing"
	"time"
)

// TestHistories checks that the model accepts possible histories and rejects impossible ones.
func TestHistories(t *testing.T) {
	const s = time.Second
	is := func(status Status) Response { return Response{State: State{Status: status, ID: "a"}} }
	created := Response{Created: true, State: State{Status: Pending, ID: "a"}}
	second := Response{State: State{Status: Pending, ID: "b"}}
	none := Response{State: State{Status: Absent}}
	isHeld := Response{State: State{Status: Pending, ID: "a", Hold: Held}}
	isClosed := Response{State: State{ID: "a"}}
	isExtended := func(status Status) Response { return Response{State: State{Status: status, ID: "a", Extensions: 1}} }
	isExtendedTwice := func(status Status) Response { return Response{State: State{Status: status, ID: "a", Extensions: 2}} }
	confirming, undone := Response{}, Response{Undone: true}
	rejected := func(why Rejection) Response { return Response{Rejected: why} }
	lost := Response{Unknown: true}
	do := func(operation Operation, began, ended time.Duration, o Response) Entry {
		if o.Unknown {
			ended = never
		}
		return Entry{call{Operation: operation}, o, began, ended}
	}
	// In the histories below the deadline passes after 3 s, or after 5 s or 7 s if it was extended once or twice. The
	// hold ends 3 s later.
	times := times{Timeout: 3 * s, Extension: 2 * s, Grace: 3 * s}
	tests := map[string]struct {
		history  history
		possible bool
	}{
		"confirmed": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(Get, 9*s, 9*s, is(Confirmed))}, true},
		"confirmed, then timed out": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(Get, 9*s, 9*s, is(TimedOut))}, false},
		"confirmation lost": {history{do(Create, 0, s, created), do(Confirm, s, 2*s, lost),
			do(Get, 9*s, 9*s, is(TimedOut))}, true},
		"confirmation's response lost": {history{do(Create, 0, s, created), do(Confirm, s, 2*s, lost),
			do(Get, 9*s, 9*s, is(Confirmed))}, true},
		"created row lost": {history{do(Create, 0, s, created), do(Get, 9*s, 9*s, none)},
			false},
		"exhausted": {history{do(Create, 0, s, rejected(RejectedExhausted)),
			do(Get, 9*s, 9*s, none)}, true},
		"exhausted, but created": {history{do(Create, 0, s, rejected(RejectedExhausted)),
			do(Get, 9*s, 9*s, is(TimedOut))}, false},
		"rejected for the bound": {history{do(Create, 0, s, rejected(RejectedBound)),
			do(Get, 9*s, 9*s, none)}, true},
		"rejected for the bound, but created": {history{do(Create, 0, s, created),
			do(Create, 3*s/2, 2*s, rejected(RejectedBound))}, false},
		"overloaded": {history{do(Create, 0, s, rejected(RejectedOverloaded)),
			do(Get, 9*s, 9*s, none)}, true},
		"overloaded, but created": {history{do(Create, 0, s, rejected(RejectedOverloaded)),
			do(Get, 9*s, 9*s, is(TimedOut))}, false},
		"created, repeated while overloaded": {history{do(Create, 0, s, created),
			do(Create, s, 2*s, rejected(RejectedOverloaded))}, true},
		"counted while pending": {history{do(Create, 0, s, created),
			do(count, s, 2*s, is(Pending))}, true},
		"counted while it was created": {history{do(Create, 0, 2*s, created),
			do(count, s, s, is(Pending))}, true},
		"counted before it was created": {history{do(count, 0, s, is(Pending)),
			do(Create, 2*s, 5*s/2, created)}, false},
		"counted past its deadline": {history{do(Create, 0, s, created),
			do(count, 5*s, 6*s, is(Pending)), do(Get, 9*s, 9*s, is(TimedOut))}, false},
		"counted past its deadline, while it is held": {history{do(Create, 0, s, created),
			do(Hold, s, 2*s, isHeld), do(count, 5*s, 6*s, is(Pending))}, true},
		"counted after its confirmation": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(count, 5*s/2, 5*s/2, is(Pending))}, false},
		"counted while it was confirmed": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(count, s, 5*s/2, is(Pending))}, true},
		"counted after its timeout": {history{do(Create, 0, s, created),
			do(Get, 4*s, 5*s, is(TimedOut)), do(count, 6*s, 6*s, is(Pending))}, false},
		"counted, never created": {history{do(Create, 0, s, lost), do(count, s, 2*s, is(Pending)),
			do(Get, 9*s, 9*s, none)}, false},
		"never created": {history{do(Create, 0, s, lost), do(Get, 9*s, 9*s, none)}, true},
		"created, response lost, repeated": {history{do(Create, 0, s, lost), do(Create, s, 2*s, is(Pending))},
			true},
		"one key, two rows": {history{do(Create, 0, s, created), do(Create, s, 2*s, second)},
			false},
		"one key, created twice": {history{do(Create, 0, s, created), do(Create, s, 2*s, created)},
			false},
		"key used again, with another body": {history{do(Create, 0, s, created),
			do(reuse, s, 2*s, rejected(RejectedReuse)), do(Get, 9*s, 9*s, is(TimedOut))}, true},
		"key used again, the row shown": {history{do(Create, 0, s, created),
			do(reuse, s, 2*s, is(Pending))}, false},
		"key used again, a second row": {history{do(Create, 0, s, created),
			do(reuse, s, 2*s, Response{Created: true, State: second.State})}, false},
		"key used again, before the row": {history{do(reuse, 0, s, rejected(RejectedReuse)),
			do(Create, 2*s, 3*s, created)}, false},
		"timed out before the deadline": {history{do(Create, 0, s, created),
			do(Get, s, 2*s, is(TimedOut))}, false},
		"rejected as late too early": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, rejected(RejectedLate))}, false},
		"rejected as late": {history{do(Create, 0, s, created),
			do(Confirm, 4*s, 5*s, rejected(RejectedLate))}, true},
		"confirmed after the deadline": {history{do(Create, 0, s, created),
			do(Confirm, 4*s, 5*s, is(Confirmed))}, false},
		"confirmed at the last moment": {history{do(Create, 0, s, created),
			do(Confirm, 3*s, 5*s, is(Confirmed))}, true},
		"both confirmed and cancelled": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(Cancel, s, 2*s, is(Cancelled))}, false},
		"confirmed, cancellation rejected": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(Cancel, s, 2*s, rejected(RejectedConfirmed))}, true},
		"rejected as cancelled, but pending": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, rejected(RejectedCancelled))}, false},
		"confirmed, then pending again": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(Get, 3*s, 4*s, is(Pending))}, false},
		"pending past its deadline": {history{do(Create, 0, s, created),
			do(Get, 5*s, 6*s, is(Pending)), do(Confirm, 6*s, 7*s, rejected(RejectedLate))}, true},
		"held, settled, confirmed": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s/2, 20*s, confirming), do(Get, 20*s, 20*s, is(Confirmed))}, true},
		"held, settled, but timed out": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s/2, 20*s, confirming), do(Get, 20*s, 20*s, is(TimedOut))}, false},
		"held, undone, but confirmed": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s/2, 20*s, undone), do(Get, 20*s, 20*s, is(Confirmed))}, false},
		"held, undone, timed out": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s/2, 20*s, undone), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"held, confirmed without a decision": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Get, 20*s, 20*s, is(Confirmed))}, false},
		"held, abandoned": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"held, pending after its deadline": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Get, 5*s, 5*s, isHeld), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"held, timed out before its deadline": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Get, 5*s/2, 5*s/2, is(TimedOut))}, false},
		"held, released before its deadline": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Get, 5*s/2, 5*s/2, is(Pending))}, false},
		"held after a late request": {history{do(Create, 0, s, created), do(Hold, 4*s, 5*s, isHeld)},
			false},
		"hold rejected as late": {history{do(Create, 0, s, created),
			do(Hold, 4*s, 5*s, rejected(RejectedLate)), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"settled between deadline and end of hold": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s, 20*s, confirming), do(Get, 20*s, 20*s, is(Confirmed))}, true},
		"settled after the end of the hold": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 8*s, 20*s, confirming), do(Get, 20*s, 20*s, is(Confirmed))}, false},
		"undone after the end of the hold": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 8*s, 20*s, undone), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"settled twice, both confirming": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s/2, 20*s, confirming), do(Settle, 5*s/2, 20*s, confirming), do(Get, 20*s, 20*s,
				is(Confirmed))}, false},
		"settled twice, one undone": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 5*s/2, 20*s, confirming), do(Settle, 5*s/2, 20*s, undone), do(Get, 20*s, 20*s,
				is(Confirmed))}, true},
		"settled without a hold": {history{do(Create, 0, s, created),
			do(Settle, 5*s/2, 20*s, confirming), do(Get, 20*s, 20*s, is(Confirmed))}, false},
		"confirmed while held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Confirm, 5*s/2, 5*s/2, is(Confirmed))}, false},
		"confirmation rejected while held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Confirm, 5*s/2, 5*s/2, rejected(RejectedHeld)), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"confirmation rejected as held, never held": {history{do(Create, 0, s, created),
			do(Confirm, 5*s/2, 5*s/2, rejected(RejectedHeld))}, false},
		"hold rejected after confirmation": {history{do(Create, 0, s, created),
			do(Confirm, s, 2*s, is(Confirmed)), do(Hold, 5*s/2, 5*s/2, rejected(RejectedConfirmed))}, true},
		"cancelled at once while held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Cancel, 5*s/2, 5*s/2, is(Cancelled))}, false},
		"cancellation rejected while held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Cancel, 5*s/2, 5*s/2, rejected(RejectedHeld)), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"closed and cancelled": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, isClosed), do(Cancel, 5*s/2, 5*s/2, is(Cancelled))}, true},
		"closed, but settled": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, isClosed), do(Settle, 5*s/2, 20*s, confirming)}, false},
		"closed, but still held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, isClosed), do(Get, 5*s/2, 5*s/2, isHeld)}, false},
		"closed and confirmed": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, isClosed), do(Confirm, 5*s/2, 5*s/2, is(Confirmed))}, true},
		"settled before it is closed": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Settle, 2*s, 20*s, confirming), do(Close, 9*s/4, 9*s/4, rejected(RejectedConfirmed))}, true},
		"closing rejected, not settled": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, rejected(RejectedConfirmed)), do(Get, 20*s, 20*s, is(TimedOut))}, false},
		"closing rejected by the party": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, rejected(RejectedByParty)), do(Get, 5*s/2, 5*s/2, isHeld)}, true},
		"closing rejected, never held": {history{do(Create, 0, s, created),
			do(Close, 9*s/4, 9*s/4, rejected(RejectedHeld))}, false},
		"closing lost, and settled": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, lost), do(Settle, 5*s/2, 20*s, confirming), do(Get, 20*s, 20*s, is(Confirmed))}, true},
		"closing lost, and cancelled later": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Close, 9*s/4, 9*s/4, lost), do(Cancel, 5*s/2, 5*s/2, rejected(RejectedHeld)),
			do(Hold, 21*s/8, 21*s/8, isHeld), do(Cancel, 11*s/4, 11*s/4, is(Cancelled))}, true},
		"rejected as late, but held for longer": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Cancel, 4*s, 5*s, rejected(RejectedLate)), do(Get, 11*s/2, 11*s/2, isHeld)}, false},
		"rejected as late, not cancelled yet": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Cancel, 2*s, 7*s, rejected(RejectedLate)), do(Get, 7*s, 7*s, isHeld), do(Get, 20*s, 20*s,
				is(TimedOut))}, true},
		"rejected late after the hold, still held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Cancel, 8*s, 9*s, rejected(RejectedLate)), do(Get, 10*s, 10*s, isHeld), do(Get, 20*s, 20*s,
				is(TimedOut))}, true},
		"rejected as late after the hold": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Cancel, 8*s, 9*s, rejected(RejectedLate))}, true},
		"rejected as held while the hold may exist": {history{do(Create, 0, s, created), do(Hold, s, 2*s, lost),
			do(Cancel, 5*s/2, 5*s/2, rejected(RejectedHeld)), do(Get, 20*s, 20*s, is(TimedOut))}, true},
		"cancelled where the hold was lost": {history{do(Create, 0, s, created), do(Hold, s, 2*s, lost),
			do(Cancel, 5*s/2, 5*s/2, is(Cancelled))}, true},
		"settled, the hold's response lost": {history{do(Create, 0, s, created), do(Hold, s, 2*s, lost),
			do(Settle, 5*s/2, 20*s, confirming), do(Get, 20*s, 20*s, is(Confirmed))}, false},
		"refused by the party, confirmed": {history{do(Create, 0, s, created),
			do(Hold, s, 2*s, rejected(RejectedByParty)), do(Confirm, 5*s/2, 5*s/2, is(Confirmed))}, true},
		"refused by the party while held": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Hold, 5*s/2, 5*s/2, rejected(RejectedByParty))}, false},
		"extended": {history{do(Create, 0, s, created),
			do(Extend, s, 2*s, isExtended(Pending)), do(Confirm, 4*s, 4*s, isExtended(Confirmed))}, true},
		"extended, response lost": {history{do(Create, 0, s, created), do(Extend, s, 2*s, lost),
			do(Confirm, 4*s, 4*s, isExtended(Confirmed))}, true},
		"extended, timed out too early": {history{do(Create, 0, s, created),
			do(Extend, s, 2*s, isExtended(Pending)), do(Get, 4*s, 4*s, isExtended(TimedOut))}, false},
		"extended, confirmed after the deadline": {history{do(Create, 0, s, created),
			do(Extend, s, 2*s, isExtended(Pending)), do(Confirm, 6*s, 7*s, isExtended(Confirmed))}, false},
		"extended twice, counted once": {history{do(Create, 0, s, created),
			do(Extend, s, 2*s, isExtended(Pending)), do(Extend, 5*s/2, 5*s/2, isExtended(Pending))}, false},
		"extended twice": {history{do(Create, 0, s, created), do(Extend, s, 2*s,
			isExtended(Pending)), do(Extend, 4*s, 4*s, isExtendedTwice(Pending)), do(Confirm, 6*s, 6*s, isExtendedTwice(Confirmed))}, true},
		"second extension rejected too early": {history{do(Create, 0, s, created),
			do(Extend, s, 2*s, isExtended(Pending)), do(Extend, 5*s/2, 5*s/2, rejected(RejectedExtension))}, false},
		"third extension rejected": {history{do(Create, 0, s, created), do(Extend, s, 2*s,
			isExtended(Pending)), do(Extend, 5*s/2, 5*s/2, isExtendedTwice(Pending)), do(Extend, 3*s, 3*s, rejected(RejectedExtension))}, true},
		"extended after the deadline": {history{do(Create, 0, s, created),
			do(Extend, 4*s, 5*s, isExtended(Pending))}, false},
		"held and extended, settled late": {history{do(Create, 0, s, created), do(Hold, s, 2*s, isHeld),
			do(Extend, 5*s/2, 5*s/2, Response{State: State{Status: Pending, ID: "a", Hold: Held,
				Extensions: 1}}), do(Settle, 7*s, 20*s, confirming), do(Get, 20*s, 20*s, isExtended(Confirmed))}, true},
	}
	at := func(began, ended time.Duration) Entry { return do(count, began, ended, is(Pending)) }
	whole := history{do(Create, 2*s, 3*s, created)}.with(history{at(s, 9*s), at(4*s, 5*s), at(4*s, 6*s), at(0, 2*s)})
	if want := (history{do(Create, 2*s, 3*s, created), at(4*s, 5*s), at(0, 2*s)}); !reflect.DeepEqual(whole, want) {
		t.Errorf("the history with additional entries is %v, want %v", whole, want)
	}
	for name, test := range tests {
		if got := test.history.timed(times).possible(); got != test.possible {
			t.Errorf("%s: possible %v, want %v", name, got, test.possible)
		}
	}
}
