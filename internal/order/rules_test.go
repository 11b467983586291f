package order_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv/parttest"
)

// rules is the table of all rules: what each action does to an order in each state, at times around its deadline or
// around the end of its hold. "-" is no change and no error, and a code is that of the error, after which nothing has
// changed. The deadline is at 30:00, and a hold ends at 40:00.
const rules = `
                          pay              cancel           extend           earlier          later            hold             release   pay held
free     at 10:00         paid             cancelled        extended         moved            moved            held             -         no
free     at 29:59.999999  paid             cancelled        extended         moved            moved            held             -         no
free     at 30:00         deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  -         no
free     at 50:00         deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  -         no
held     at 10:00         checkout-open    checkout-open    extended         checkout-open    moved            checkout-open    released  paid
held     at 29:59.999999  checkout-open    checkout-open    extended         moved            moved            checkout-open    released  paid
held     at 30:00         deadline-passed  checkout-open    deadline-passed  deadline-passed  deadline-passed  deadline-passed  released  paid
held     at 39:59.999999  deadline-passed  checkout-open    deadline-passed  deadline-passed  deadline-passed  deadline-passed  released  paid
held     at 40:00         deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  released  no
held     at 50:00         deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  released  no
extended at 10:00         paid             cancelled        not-extendable   moved            moved            held             -         no
extended at 30:00         deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  -         no
paid     at 10:00         -                order-paid       order-paid       order-paid       order-paid       order-paid       -         no
paid     at 50:00         -                order-paid       order-paid       order-paid       order-paid       order-paid       -         no
paidheld at 50:00         -                order-paid       order-paid       order-paid       order-paid       order-paid       -         no
cancelled at 10:00        order-cancelled  -                order-cancelled  order-cancelled  order-cancelled  order-cancelled  -         no
cancelled at 50:00        order-cancelled  -                order-cancelled  order-cancelled  order-cancelled  order-cancelled  -         no
timedout at 50:00         deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  deadline-passed  -         no`

// The times of the table. An hour after the placement is far from all of them.
var (
	placedAt = time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)
	deadline = placedAt.Add(30 * time.Minute)
	holdEnd  = placedAt.Add(40 * time.Minute)
)

// inState returns an order in a state of the table, with another time of the server.
func inState(t *testing.T, state string, now time.Time) *order.Order {
	t.Helper()
	o := &order.Order{
		ID: uuid.New(), CustomerID: uuid.New(), Status: order.Pending,
		CreatedAt: placedAt, ExpiresAt: deadline, DueAt: deadline, ServerTime: now,
	}
	hold := func() { o.HoldUntil, o.DueAt = &holdEnd, holdEnd }
	end := func(status order.Status, by order.Actor, at time.Time) {
		o.Status, o.EndedBy = status, by
		if status == order.Paid {
			o.PaidAt = &at
		} else {
			o.CancelledAt = &at
		}
	}
	switch state {
	case "free":
	case "held":
		hold()
	case "extended":
		o.Extensions = 2
	case "paid":
		end(order.Paid, order.Customer, placedAt.Add(time.Minute))
	case "paidheld":
		hold()
		end(order.Paid, order.Provider, placedAt.Add(35*time.Minute))
	case "cancelled":
		end(order.Cancelled, order.Customer, placedAt.Add(time.Minute))
		o.CancelReason = order.ByCustomer
	case "timedout":
		end(order.Cancelled, order.Worker, deadline)
		o.CancelReason = order.ByTimeout
	default:
		t.Fatalf("unknown state %q", state)
	}
	return o
}

// actions are the columns of the table, which are all methods that change an order.
var actions = map[string]func(*order.Order) error{
	"pay":     (*order.Order).Pay,
	"cancel":  (*order.Order).Cancel,
	"extend":  func(o *order.Order) error { return o.Extend(10*time.Minute, 2) },
	"earlier": func(o *order.Order) error { return o.Reschedule(o.ServerTime.Add(time.Second), "a test") },
	"later":   func(o *order.Order) error { return o.Reschedule(deadline.Add(time.Hour), "a test") },
	"hold":    func(o *order.Order) error { return o.Hold(holdEnd) },
	"release": func(o *order.Order) error { o.Release(order.Worker); return nil },
	"pay held": func(o *order.Order) error {
		if !o.PayHeld() {
			return errNotPaid
		}
		return nil
	},
}

var errNotPaid = errors.New("the success does not pay the order")

// changes are the results of the table: what each makes of an order, and the event that it adds.
var changes = map[string]func(o *order.Order) []order.Event{
	"-": func(*order.Order) []order.Event { return nil },
	"paid": func(o *order.Order) []order.Event {
		o.Status, o.PaidAt, o.EndedBy = order.Paid, &o.ServerTime, order.Customer
		if o.HoldUntil != nil {
			o.EndedBy = order.Provider
		}
		return nil
	},
	"cancelled": func(o *order.Order) []order.Event {
		o.Status, o.CancelReason, o.CancelledAt, o.EndedBy = order.Cancelled, order.ByCustomer, &o.ServerTime, order.Customer
		return nil
	},
	"extended": func(o *order.Order) []order.Event {
		o.Extensions++
		return moved(o, 10*time.Minute, order.Event{Type: "rescheduled", Actor: order.Customer})
	},
	"moved": nil, // see wantChange: the time is that of the action
	"held": func(o *order.Order) []order.Event {
		o.HoldUntil, o.DueAt = &holdEnd, holdEnd
		return []order.Event{{Type: "held", Actor: order.Customer, At: o.ServerTime}}
	},
	"released": func(o *order.Order) []order.Event {
		o.HoldUntil, o.DueAt = nil, o.ExpiresAt
		return []order.Event{{Type: "released", Actor: order.Worker, At: o.ServerTime}}
	},
}

// moved moves the deadline of an order, and the end of its hold, and completes the event.
func moved(o *order.Order, by time.Duration, e order.Event) []order.Event {
	o.ExpiresAt, o.DueAt = o.ExpiresAt.Add(by), o.DueAt.Add(by)
	if o.HoldUntil != nil {
		o.HoldUntil = new(o.HoldUntil.Add(by))
	}
	e.At, e.Deadline = o.ServerTime, &o.ExpiresAt
	return []order.Event{e}
}

// TestRules does each action on an order in each state, at each time of the table.
func TestRules(t *testing.T) {
	t.Parallel()
	column := regexp.MustCompile(`\s{2,}`)
	lines := strings.Split(strings.TrimLeft(rules, "\n"), "\n")
	names := column.Split(strings.TrimSpace(lines[0]), -1)
	if len(names) != len(actions) {
		t.Fatalf("the table has %d actions, want %d", len(names), len(actions))
	}
	for _, line := range lines[1:] {
		state, rest, _ := strings.Cut(line, "at ")
		cells := column.Split(rest, -1)
		var minute, second int
		var fraction string
		fmt.Sscanf(cells[0], "%d:%d%s", &minute, &second, &fraction)
		now := placedAt.Add(time.Duration(minute)*time.Minute + time.Duration(second)*time.Second)
		if fraction != "" {
			now = now.Add(time.Second - time.Microsecond)
		}
		for i, name := range names {
			t.Run(line[:25]+"/"+name, func(t *testing.T) {
				checkRule(t, strings.TrimSpace(state), now, name, cells[1+i])
			})
		}
	}
}

func checkRule(t *testing.T, state string, now time.Time, name, want string) {
	t.Helper()
	got, expected := inState(t, state, now), inState(t, state, now)
	expected.ID, expected.CustomerID = got.ID, got.CustomerID
	err := actions[name](got)
	var events []order.Event
	code := "-"
	switch change, ok := changes[want]; {
	case want == "no":
		code = want
	case want == "moved" && name == "later":
		events = moved(expected, time.Hour, order.Event{Type: "rescheduled", Actor: order.Operator, Reason: "a test"})
	case want == "moved":
		by := now.Add(time.Second).Sub(deadline)
		events = moved(expected, by, order.Event{Type: "rescheduled", Actor: order.Operator, Reason: "a test"})
	case ok:
		events = change(expected)
	default:
		code = want
	}
	switch {
	case errors.Is(err, errNotPaid) && code == "no":
	case err == nil && code == "-":
	case err == nil || parttest.ClassOf(err).Code != code:
		t.Errorf("%s returns %v, want %s", name, err, want)
	}
	if added := order.TakeEvents(got); !reflect.DeepEqual(added, events) {
		t.Errorf("%s adds the events %+v, want %+v", name, added, events)
	}
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("%s makes the order\n%+v, want\n%+v", name, got, expected)
	}
}

// TestRuleOfDeadlines moves deadlines to the bounds of what an operator can set, and beyond them.
func TestRuleOfDeadlines(t *testing.T) {
	t.Parallel()
	const month = 30 * 24 * time.Hour
	for left, want := range map[time.Duration]rest.Class{
		time.Second - time.Microsecond: rest.Invalid,
		time.Second:                    {},
		time.Second - time.Nanosecond:  {}, // rounded
		month:                          {},
		month + time.Microsecond:       rest.Invalid,
	} {
		o := inState(t, "free", placedAt)
		err := o.Reschedule(placedAt.Add(left), "a test")
		if parttest.ClassOf(err) != want || (err == nil) != o.ExpiresAt.Equal(placedAt.Add(left).Round(time.Microsecond)) {
			t.Errorf("a deadline in %v: %v, the deadline is %v", left, err, o.ExpiresAt)
		}
	}
	o := inState(t, "free", placedAt)
	there := time.FixedZone("there", 7200)
	if err := o.Reschedule(placedAt.Add(time.Hour).In(there), "a test"); err != nil || o.ExpiresAt.Location() != time.UTC ||
		o.DueAt.Location() != time.UTC {
		t.Errorf("a deadline in another time zone: %v, the deadline is %v, want it in UTC", err, o.ExpiresAt)
	}
	o = inState(t, "free", placedAt.Add(-time.Hour)) // the clock has gone back
	if err := o.Reschedule(placedAt, "a test"); parttest.ClassOf(err) != rest.Invalid {
		t.Errorf("a deadline when the order was placed: %v, want code %s", err, rest.Invalid.Code)
	}
	o = inState(t, "held", placedAt)
	if err := o.Reschedule(o.ExpiresAt, "a test"); err != nil || len(order.TakeEvents(o)) != 0 {
		t.Errorf("moving the deadline to the time that it has returns %v, want no change", err)
	}
	if err := o.Extend(0, 2); parttest.ClassOf(err) != order.NotExtendable {
		t.Errorf("Extend in a shop without extensions returns %v, want not-extendable", err)
	}
}
