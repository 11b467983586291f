package faulttest

import (
	"testing"
	"time"
)

// TestNearCalls counts the calls of a visit whose row was created after 1 s and due after 4 s, or after 4.5 s when it
// was extended.
func TestNearCalls(t *testing.T) {
	const s = time.Second
	unknown, confirmed := Response{Unknown: true}, Response{State: State{Status: Confirmed}}
	extended, pending := Response{State: State{Status: Pending, Extensions: 1}}, Response{State: State{Status: Pending}}
	late, cancelled := Response{Rejected: RejectedLate}, Response{Rejected: RejectedCancelled}
	do := func(o Operation, began time.Duration, outcome Response) Entry {
		return Entry{call{Operation: o}, outcome, began, began + s/100}
	}
	for name, test := range map[string]struct {
		history history
		want    [sides]int // before the deadline, after it, and after the end
	}{
		"long before":                   {history{do(Confirm, 2*s, confirmed)}, [sides]int{}},
		"before":                        {history{do(Confirm, 3*s, confirmed)}, [sides]int{1, 0, 0}},
		"at the deadline":               {history{do(Confirm, 4*s, late)}, [sides]int{0, 1, 0}},
		"after":                         {history{do(Confirm, 5*s, late)}, [sides]int{0, 1, 0}},
		"long after":                    {history{do(Confirm, 6*s, late)}, [sides]int{}},
		"unknown":                       {history{do(Confirm, 7*s/2, unknown)}, [sides]int{}},
		"no decision":                   {history{do(Get, 7*s/2, pending)}, [sides]int{}},
		"after, but of a row that ends": {history{do(Cancel, 9*s/2, cancelled)}, [sides]int{}},
		"after the end": {history{do(Confirm, 7*s/2, confirmed),
			do(Cancel, 9*s/2, Response{Rejected: RejectedConfirmed})}, [sides]int{1, 0, 1}},
		"while it ends": {history{do(Confirm, 7*s/2, confirmed), do(Confirm, 7*s/2, confirmed)}, [sides]int{2, 0, 0}},
		"before the extended deadline": {history{do(Extend, 7*s/2, extended), do(Confirm, 17*s/4, confirmed)},
			[sides]int{2, 0, 0}},
		"settled after the deadline": {history{do(Settle, 9*s/2, Response{Undone: true})}, [sides]int{0, 1, 0}},
	} {
		began := time.Now()
		v := &Visit{
			Load:    &Load{d: &Deployment{times: times{Timeout: 3 * s, Extension: s / 2}}, Began: began},
			History: test.history, Since: began.Add(s),
		}
		counted := nearCalls{}
		counted.add(v)
		if got := counted.total(); got != test.want {
			t.Errorf("%s: counted %v, want %v", name, got, test.want)
		}
	}
}
