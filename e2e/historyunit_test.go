package e2e

import (
	"reflect"
	"testing"
	"time"
)

// TestHistories checks that the model accepts possible histories and rejects impossible ones.
func TestHistories(t *testing.T) {
	const s = time.Second
	is := func(status status) outcome { return outcome{state: state{status: status, id: "a"}} }
	created := outcome{created: true, state: state{status: pending, id: "a"}}
	second := outcome{state: state{status: pending, id: "b"}}
	none := outcome{state: state{status: absent}}
	isHeld := outcome{state: state{status: pending, id: "a", hold: held}}
	isCancelling := outcome{state: state{status: pending, id: "a", hold: held, cancelling: true}}
	isExtended := func(status status) outcome { return outcome{state: state{status: status, id: "a", extended: true}} }
	confirming, undone := outcome{}, outcome{undone: true}
	rejected := func(why rejection) outcome { return outcome{rejected: why} }
	lost := outcome{unknown: true}
	do := func(operation operation, began, ended time.Duration, o outcome) entry {
		if o.unknown {
			ended = never
		}
		return entry{call{operation: operation}, o, began, ended}
	}
	// In the histories below the deadline passes after 3 s, or after 5 s if it was extended. The hold ends 3 s later.
	times := times{timeout: 3 * s, extension: 2 * s, grace: 3 * s}
	tests := map[string]struct {
		history  history
		possible bool
	}{
		"confirmed":                                 {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(get, 9*s, 9*s, is(confirmed))}, true},
		"confirmed, then timed out":                 {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(get, 9*s, 9*s, is(timedOut))}, false},
		"confirmation lost":                         {history{do(create, 0, s, created), do(confirm, s, 2*s, lost), do(get, 9*s, 9*s, is(timedOut))}, true},
		"confirmation's response lost":              {history{do(create, 0, s, created), do(confirm, s, 2*s, lost), do(get, 9*s, 9*s, is(confirmed))}, true},
		"created item lost":                         {history{do(create, 0, s, created), do(get, 9*s, 9*s, none)}, false},
		"exhausted":                                 {history{do(create, 0, s, rejected(rejectedExhausted)), do(get, 9*s, 9*s, none)}, true},
		"exhausted, but created":                    {history{do(create, 0, s, rejected(rejectedExhausted)), do(get, 9*s, 9*s, is(timedOut))}, false},
		"rejected for the bound":                    {history{do(create, 0, s, rejected(rejectedBound)), do(get, 9*s, 9*s, none)}, true},
		"rejected for the bound, but created":       {history{do(create, 0, s, created), do(create, 3*s/2, 2*s, rejected(rejectedBound))}, false},
		"overloaded":                                {history{do(create, 0, s, rejected(rejectedOverloaded)), do(get, 9*s, 9*s, none)}, true},
		"overloaded, but created":                   {history{do(create, 0, s, rejected(rejectedOverloaded)), do(get, 9*s, 9*s, is(timedOut))}, false},
		"created, repeated while overloaded":        {history{do(create, 0, s, created), do(create, s, 2*s, rejected(rejectedOverloaded))}, true},
		"counted while pending":                     {history{do(create, 0, s, created), do(count, s, 2*s, is(pending))}, true},
		"counted while it was created":              {history{do(create, 0, 2*s, created), do(count, s, s, is(pending))}, true},
		"counted before it was created":             {history{do(count, 0, s, is(pending)), do(create, 2*s, 5*s/2, created)}, false},
		"counted past its deadline":                 {history{do(create, 0, s, created), do(count, 5*s, 6*s, is(pending)), do(get, 9*s, 9*s, is(timedOut))}, true},
		"counted after its confirmation":            {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(count, 5*s/2, 5*s/2, is(pending))}, false},
		"counted while it was confirmed":            {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(count, s, 5*s/2, is(pending))}, true},
		"counted after its timeout":                 {history{do(create, 0, s, created), do(get, 4*s, 5*s, is(timedOut)), do(count, 6*s, 6*s, is(pending))}, false},
		"counted, never created":                    {history{do(create, 0, s, lost), do(count, s, 2*s, is(pending)), do(get, 9*s, 9*s, none)}, false},
		"never created":                             {history{do(create, 0, s, lost), do(get, 9*s, 9*s, none)}, true},
		"created, response lost, repeated":          {history{do(create, 0, s, lost), do(create, s, 2*s, is(pending))}, true},
		"one key, two items":                        {history{do(create, 0, s, created), do(create, s, 2*s, second)}, false},
		"one key, created twice":                    {history{do(create, 0, s, created), do(create, s, 2*s, created)}, false},
		"timed out before the deadline":             {history{do(create, 0, s, created), do(get, s, 2*s, is(timedOut))}, false},
		"rejected as late too early":                {history{do(create, 0, s, created), do(confirm, s, 2*s, rejected(rejectedLate))}, false},
		"rejected as late":                          {history{do(create, 0, s, created), do(confirm, 4*s, 5*s, rejected(rejectedLate))}, true},
		"confirmed after the deadline":              {history{do(create, 0, s, created), do(confirm, 4*s, 5*s, is(confirmed))}, false},
		"confirmed at the last moment":              {history{do(create, 0, s, created), do(confirm, 3*s, 5*s, is(confirmed))}, true},
		"both confirmed and cancelled":              {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(cancel, s, 2*s, is(cancelled))}, false},
		"confirmed, cancellation rejected":          {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(cancel, s, 2*s, rejected(rejectedConfirmed))}, true},
		"rejected as cancelled, but pending":        {history{do(create, 0, s, created), do(confirm, s, 2*s, rejected(rejectedCancelled))}, false},
		"confirmed, then pending again":             {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(get, 3*s, 4*s, is(pending))}, false},
		"pending past its deadline":                 {history{do(create, 0, s, created), do(get, 5*s, 6*s, is(pending)), do(confirm, 6*s, 7*s, rejected(rejectedLate))}, true},
		"held, settled, confirmed":                  {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s/2, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, true},
		"held, settled, but timed out":              {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s/2, 20*s, confirming), do(get, 20*s, 20*s, is(timedOut))}, false},
		"held, undone, but confirmed":               {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s/2, 20*s, undone), do(get, 20*s, 20*s, is(confirmed))}, false},
		"held, undone, timed out":                   {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s/2, 20*s, undone), do(get, 20*s, 20*s, is(timedOut))}, true},
		"held, confirmed without a decision":        {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(get, 20*s, 20*s, is(confirmed))}, false},
		"held, abandoned":                           {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(get, 20*s, 20*s, is(timedOut))}, true},
		"held, pending after its deadline":          {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(get, 5*s, 5*s, isHeld), do(get, 20*s, 20*s, is(timedOut))}, true},
		"held, timed out before its deadline":       {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(get, 5*s/2, 5*s/2, is(timedOut))}, false},
		"held, released before its deadline":        {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(get, 5*s/2, 5*s/2, is(pending))}, false},
		"held after a late request":                 {history{do(create, 0, s, created), do(hold, 4*s, 5*s, isHeld)}, false},
		"hold rejected as late":                     {history{do(create, 0, s, created), do(hold, 4*s, 5*s, rejected(rejectedLate)), do(get, 20*s, 20*s, is(timedOut))}, true},
		"settled between deadline and end of hold":  {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, true},
		"settled after the end of the hold":         {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 8*s, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, false},
		"undone after the end of the hold":          {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 8*s, 20*s, undone), do(get, 20*s, 20*s, is(timedOut))}, true},
		"settled twice, both confirming":            {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s/2, 20*s, confirming), do(settle, 5*s/2, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, false},
		"settled twice, one undone":                 {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(settle, 5*s/2, 20*s, confirming), do(settle, 5*s/2, 20*s, undone), do(get, 20*s, 20*s, is(confirmed))}, true},
		"settled without a hold":                    {history{do(create, 0, s, created), do(settle, 5*s/2, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, false},
		"confirmed while held":                      {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(confirm, 5*s/2, 5*s/2, is(confirmed))}, false},
		"confirmation rejected while held":          {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(confirm, 5*s/2, 5*s/2, rejected(rejectedHeld)), do(get, 20*s, 20*s, is(timedOut))}, true},
		"confirmation rejected as held, never held": {history{do(create, 0, s, created), do(confirm, 5*s/2, 5*s/2, rejected(rejectedHeld))}, false},
		"hold rejected after confirmation":          {history{do(create, 0, s, created), do(confirm, s, 2*s, is(confirmed)), do(hold, 5*s/2, 5*s/2, rejected(rejectedConfirmed))}, true},
		"cancelled at once while held":              {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 5*s/2, 5*s/2, is(cancelled))}, false},
		"cancelled while held":                      {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 5*s/2, 5*s/2, isCancelling), do(get, 20*s, 20*s, is(cancelled))}, true},
		"cancelled while held, but settled":         {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 5*s/2, 5*s/2, isCancelling), do(settle, 5*s/2, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, true},
		"cancelled while held, then timed out":      {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 5*s/2, 5*s/2, isCancelling), do(get, 20*s, 20*s, is(timedOut))}, false},
		"cancelled while held, hold accepted again": {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 5*s/2, 5*s/2, isCancelling), do(hold, 11*s/4, 11*s/4, isHeld)}, false},
		"cancellation repeated after the deadline":  {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 5*s/2, 5*s/2, lost), do(cancel, 8*s, 9*s, isCancelling), do(get, 20*s, 20*s, is(cancelled))}, true},
		"cancelled after the deadline while held":   {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(cancel, 8*s, 9*s, isCancelling)}, false},
		"being cancelled, never held":               {history{do(create, 0, s, created), do(cancel, s, 2*s, isCancelling)}, false},
		"cancelled while the hold may exist":        {history{do(create, 0, s, created), do(hold, s, 2*s, lost), do(cancel, 5*s/2, 5*s/2, isCancelling), do(get, 20*s, 20*s, is(cancelled))}, true},
		"cancelled where the hold was lost":         {history{do(create, 0, s, created), do(hold, s, 2*s, lost), do(cancel, 5*s/2, 5*s/2, is(cancelled))}, true},
		"settled, the hold's response lost":         {history{do(create, 0, s, created), do(hold, s, 2*s, lost), do(settle, 5*s/2, 20*s, confirming), do(get, 20*s, 20*s, is(confirmed))}, false},
		"refused by the party, confirmed":           {history{do(create, 0, s, created), do(hold, s, 2*s, rejected(rejectedByParty)), do(confirm, 5*s/2, 5*s/2, is(confirmed))}, true},
		"refused by the party while held":           {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(hold, 5*s/2, 5*s/2, rejected(rejectedByParty))}, false},
		"extended":                                  {history{do(create, 0, s, created), do(extend, s, 2*s, isExtended(pending)), do(confirm, 4*s, 4*s, isExtended(confirmed))}, true},
		"extended, response lost":                   {history{do(create, 0, s, created), do(extend, s, 2*s, lost), do(confirm, 4*s, 4*s, isExtended(confirmed))}, true},
		"extended, timed out too early":             {history{do(create, 0, s, created), do(extend, s, 2*s, isExtended(pending)), do(get, 4*s, 4*s, isExtended(timedOut))}, false},
		"extended, confirmed after the deadline":    {history{do(create, 0, s, created), do(extend, s, 2*s, isExtended(pending)), do(confirm, 6*s, 7*s, isExtended(confirmed))}, false},
		"extended twice":                            {history{do(create, 0, s, created), do(extend, s, 2*s, isExtended(pending)), do(extend, 5*s/2, 5*s/2, isExtended(pending))}, false},
		"second extension rejected":                 {history{do(create, 0, s, created), do(extend, s, 2*s, isExtended(pending)), do(extend, 5*s/2, 5*s/2, rejected(rejectedExtension))}, true},
		"extended after the deadline":               {history{do(create, 0, s, created), do(extend, 4*s, 5*s, isExtended(pending))}, false},
		"held and extended, settled late":           {history{do(create, 0, s, created), do(hold, s, 2*s, isHeld), do(extend, 5*s/2, 5*s/2, outcome{state: state{status: pending, id: "a", hold: held, extended: true}}), do(settle, 7*s, 20*s, confirming), do(get, 20*s, 20*s, isExtended(confirmed))}, true},
	}
	at := func(began, ended time.Duration) entry { return do(count, began, ended, is(pending)) }
	whole := history{do(create, 2*s, 3*s, created)}.with(history{at(s, 9*s), at(4*s, 5*s), at(4*s, 6*s), at(0, 2*s)})
	if want := (history{do(create, 2*s, 3*s, created), at(4*s, 5*s), at(0, 2*s)}); !reflect.DeepEqual(whole, want) {
		t.Errorf("the history with additional entries is %v, want %v", whole, want)
	}
	for name, test := range tests {
		if got := test.history.timed(times).possible(); got != test.possible {
			t.Errorf("%s: possible %v, want %v", name, got, test.possible)
		}
	}
}
