// Package order places orders that reserve stock and must be paid by a deadline.
//
// The promise: an order that is not paid by its deadline is cancelled and its stock is released, once, and a paid order
// is never cancelled.
//
//	          pay, before the deadline
//	pending ───────────────────────────▶ paid
//	   │
//	   ├─ its customer cancels, before the deadline ─▶ cancelled (customer)
//	   └─ the deadline passes ───────────────────────▶ cancelled (timeout)
//
// Each step of an order's life is a method of [Order], which decides. [Store.Update] locks and reads the order before,
// and writes it afterwards, in one transaction. Only timeouts are decided by a statement, for a whole batch: the worker
// takes this step with [timeout.Table.Handle] when the order's task is due, and if the worker does not, the
// reconciler takes it with [timeout.Table.TimeOut]. However late that is, an order cannot be paid after its deadline.
//
// The deadline can be moved until it passes: to a later time by the order's customer, and to any time by an operator.
//
// Another package can hold a pending order beyond its deadline, while the customer pays it elsewhere. A held order
// cannot be paid at once, and its customer cannot cancel it. The hold ends when the other package pays or releases the
// order, and at the latest at orders.hold_until. The due time of an order, orders.due_at, is when it ends unless it is
// paid or cancelled before: the end of its hold or, without a hold, its deadline.
package order

import (
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/timeout"
)

// Status is the state of an order.
type Status string

// An order starts as pending and ends as paid or cancelled.
const (
	Pending   Status = "pending"
	Paid      Status = "paid"
	Cancelled Status = "cancelled"
)

// CancelReason is the reason why an order was cancelled.
type CancelReason string

// An order is cancelled because its deadline passed, or by its customer before that.
const (
	ByTimeout  CancelReason = "timeout"
	ByCustomer CancelReason = "customer"
)

// Actor is who caused an event.
type Actor string

// Worker and Reconciler cancel orders that are due: the worker when it claims their tasks, the reconciler when it finds
// them overdue. An operator moves deadlines. A provider is where a customer pays a held order.
const (
	Customer   Actor = "customer"
	Operator   Actor = "operator"
	Provider   Actor = "provider"
	Worker           = Actor(timeout.ByWorker)
	Reconciler       = Actor(timeout.ByReconciler)
)

// Order is an order as its customer sees it. All times are read from the database's clock. Its methods are the rules of
// an order's life: each changes the order as a customer, an operator or a provider may at ServerTime, or returns the
// reason why it may not be changed, and changes nothing. A request that was done before changes nothing either, and is
// no error.
type Order struct {
	ID           uuid.UUID    `json:"id"`
	CustomerID   uuid.UUID    `json:"-"`
	Status       Status       `json:"status"`
	CancelReason CancelReason `json:"cancel_reason,omitempty"`
	TotalCents   int64        `json:"total_cents"`
	Currency     string       `json:"currency"`
	Items        []Item       `json:"items" gorm:"serializer:json"`
	CreatedAt    time.Time    `json:"created_at"`
	ExpiresAt    time.Time    `json:"expires_at"` // the deadline: the order must be paid earlier
	DueAt        time.Time    `json:"due_at"`     // when the order ends unless it is paid or cancelled before

	HoldUntil   *time.Time `json:"hold_until,omitempty"` // the end of the hold; nil: not held
	Extensions  int64      `json:"extensions,omitempty"` // how often the customer extended the deadline
	PaidAt      *time.Time `json:"paid_at,omitempty"`
	CancelledAt *time.Time `json:"cancelled_at,omitempty"`
	EndedBy     Actor      `json:"-"`           // "" while the order is pending
	ServerTime  time.Time  `json:"server_time"` // when the order was read; in [Store.Update], with its row locked

	// ExtensionSeconds is by how much the customer can extend the deadline now; 0: not at all.
	ExtensionSeconds float64 `json:"extension_seconds,omitempty" gorm:"-"`
	// ExtensionsLeft is how often the customer can still extend the deadline; nil: never in this shop.
	ExtensionsLeft *int64 `json:"extensions_left,omitempty" gorm:"-"`

	// PayAtOnce reports whether the customer can pay the order now with [Service.Pay].
	PayAtOnce bool `json:"pay_at_once,omitempty" gorm:"-"`

	events []Event // that the methods have added; each change without a new status adds one
}

// Pay pays the order at once, before its deadline.
func (o *Order) Pay() error {
	if o.Status == Paid {
		return nil
	}
	if err := o.WhyNotPayable(); err != nil {
		return err
	}
	if o.HoldUntil != nil {
		return CheckoutOpen.Errorf("The order has an open checkout: pay it there.")
	}
	o.pay(Customer)
	return nil
}

// WhyNotPayable returns the reason why no payment of the order can begin, or nil if one can. It does not ask whether
// the order is held.
func (o *Order) WhyNotPayable() error { return o.whyNotChangeable("paid") }

// Cancel cancels the order for its customer, before its deadline.
func (o *Order) Cancel() error {
	switch {
	case o.CancelReason == ByCustomer:
		return nil
	case o.Status == Pending && o.isHeld():
		return CheckoutOpen.Errorf("The order has an open checkout: close it, and then cancel the order.")
	}
	if err := o.whyNotChangeable("cancelled by its customer"); err != nil {
		return err
	}
	o.Status, o.CancelReason, o.CancelledAt, o.EndedBy = Cancelled, ByCustomer, new(o.ServerTime), Customer
	return nil
}

// Extend moves the deadline by a time to a later one, for the customer, who may do so a number of times before it
// passes.
func (o *Order) Extend(by time.Duration, times int64) error {
	if err := o.whyNotChangeable("given another deadline"); err != nil {
		return err
	}
	switch {
	case by == 0:
		return NotExtendable.Errorf("Customers cannot extend deadlines in this shop.")
	case o.Extensions >= times:
		return NotExtendable.Errorf("The deadline has been extended as often as it can be: %d times.", o.Extensions)
	}
	o.Extensions++
	o.move(o.ExpiresAt.Add(by), Customer, "")
	return nil
}

// The bounds of the time from now to a deadline that an operator sets. The longer one is also a bound of [Options].
const (
	minDeadline = time.Second
	maxDeadline = maxTimeout
)

// Reschedule moves the deadline for an operator, before it passes, to a time from a second to 30 days from now. A held
// order gets no earlier deadline, because its customer is paying it.
func (o *Order) Reschedule(deadline time.Time, reason string) error {
	if err := o.whyNotChangeable("given another deadline"); err != nil {
		return err
	}
	deadline = deadline.UTC().Round(time.Microsecond) // as the database returns it
	left := deadline.Sub(o.ServerTime)
	switch {
	case deadline.Equal(o.ExpiresAt):
		return nil
	case left < minDeadline || left > maxDeadline:
		detail := "must be from a second to 30 days after the present, which is %s by the database's clock"
		return rest.InvalidFields(rest.FieldError{
			Pointer: "/deadline", Detail: fmt.Sprintf(detail, stamp(o.ServerTime)),
		})
	case !deadline.After(o.CreatedAt): // the database's clock has gone back
		return rest.InvalidFields(rest.FieldError{
			Pointer: "/deadline", Detail: "must be after the order was placed, which was at " + stamp(o.CreatedAt),
		})
	case o.HoldUntil != nil && deadline.Before(o.ExpiresAt):
		return CheckoutOpen.Errorf("The order is held until %s, because its customer is paying it. "+
			"Its deadline, %s, can only be moved to a later time.", stamp(*o.HoldUntil), stamp(o.ExpiresAt))
	}
	o.move(deadline, Operator, reason)
	return nil
}

// Hold holds the order until a time after its deadline, before the deadline passes.
func (o *Order) Hold(until time.Time) error {
	if err := o.WhyNotPayable(); err != nil {
		return err
	}
	if o.HoldUntil != nil {
		return CheckoutOpen.Errorf("The order has an open checkout already.")
	}
	o.holdUntil(&until)
	o.add(Event{Type: "held", Actor: Customer})
	return nil
}

// Release ends the hold of a pending order, if it is held.
func (o *Order) Release(by Actor) {
	if o.Status == Pending && o.HoldUntil != nil {
		o.holdUntil(nil)
		o.add(Event{Type: "released", Actor: by})
	}
}

// PayHeld pays the order for a provider, before its hold ends. It reports whether it did: a success that comes too
// late, or a second one, does not pay the order.
func (o *Order) PayHeld() bool {
	if o.Status != Pending || !o.isHeld() {
		return false
	}
	o.pay(Provider)
	return true
}

func (o *Order) pay(by Actor) { o.Status, o.PaidAt, o.EndedBy = Paid, new(o.ServerTime), by }

// move moves the deadline, and the end of the hold by the same time.
func (o *Order) move(deadline time.Time, by Actor, reason string) {
	later := deadline.Sub(o.ExpiresAt)
	o.ExpiresAt, o.DueAt = deadline, deadline
	if o.HoldUntil != nil {
		until := o.HoldUntil.Add(later)
		o.holdUntil(&until)
	}
	o.add(Event{Type: "rescheduled", Actor: by, Deadline: &deadline, Reason: reason})
}

func (o *Order) holdUntil(until *time.Time) {
	o.HoldUntil, o.DueAt = until, o.ExpiresAt
	if until != nil {
		o.DueAt = *until
	}
}

func (o *Order) add(e Event) {
	e.At = o.ServerTime
	o.events = append(o.events, e)
}

// isHeld reports whether the order is held at ServerTime.
func (o *Order) isHeld() bool { return o.HoldUntil != nil && o.ServerTime.Before(*o.HoldUntil) }

// whyNotChangeable returns nil if the order is pending and its deadline has not passed, and else the reason why it
// cannot be changed any more. change says what cannot be done, for example "paid".
func (o *Order) whyNotChangeable(change string) error {
	switch {
	case o.Status == Pending && o.ServerTime.Before(o.ExpiresAt):
		return nil
	case o.Status == Paid:
		return AlreadyPaid.Errorf("The order was paid at %s and cannot be %s any more.", stamp(*o.PaidAt), change)
	case o.CancelReason == ByCustomer:
		return AlreadyCancelled.Errorf("The order was cancelled by its customer at %s and cannot be %s any more.",
			stamp(*o.CancelledAt), change)
	case o.isHeld() && o.Status == Pending:
		return DeadlinePassed.Errorf("The order was not paid by its deadline, %s. It is held until %s: a payment that its "+
			"customer has begun is still accepted.", stamp(o.ExpiresAt), stamp(*o.HoldUntil))
	}
	state := "It is cancelled, its stock is released"
	if o.Status == Pending {
		state = "It will be cancelled within seconds"
	}
	return DeadlinePassed.Errorf("The order was not paid by its deadline, %s. %s, and it cannot be %s any more.",
		stamp(o.ExpiresAt), state, change)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Item is a line of an order, with the name and the price of the product at the time of the order.
type Item struct {
	ProductID      uuid.UUID `json:"product_id"`
	Name           string    `json:"name"`
	Quantity       int64     `json:"quantity"`
	UnitPriceCents int64     `json:"unit_price_cents"`
}

// Event is an entry in an order's audit trail.
type Event struct {
	Type  string    `json:"type"` // see the constraint order_events_type
	Actor Actor     `json:"actor"`
	At    time.Time `json:"at"`

	Deadline *time.Time `json:"deadline,omitempty"` // the new one
	Reason   string     `json:"reason,omitempty"`   // why an operator moved the deadline
}

// Product is a product on sale.
type Product struct {
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	PriceCents int64     `json:"price_cents"`
	Currency   string    `json:"currency"`
	Supply     int64     `json:"-"` // the available units and those of pending and paid orders
	Available  int64     `json:"available"`
}

// The classes of error that package rest does not declare.
var (
	UnknownProduct   = rest.Class{Code: "unknown-product", Status: http.StatusUnprocessableEntity, Title: "Unknown product"}
	MixedCurrencies  = rest.Class{Code: "mixed-currencies", Status: http.StatusUnprocessableEntity, Title: "Mixed currencies"}
	OutOfStock       = rest.Class{Code: "out-of-stock", Status: http.StatusConflict, Title: "Out of stock"}
	TooManyOpen      = rest.Class{Code: "too-many-open-orders", Status: http.StatusConflict, Title: "Too many open orders"}
	DeadlinePassed   = rest.Class{Code: "deadline-passed", Status: http.StatusConflict, Title: "Payment deadline passed"}
	AlreadyPaid      = rest.Class{Code: "order-paid", Status: http.StatusConflict, Title: "Order already paid"}
	CheckoutOpen     = rest.Class{Code: "checkout-open", Status: http.StatusConflict, Title: "Checkout open"}
	NotExtendable    = rest.Class{Code: "not-extendable", Status: http.StatusConflict, Title: "Deadline cannot be extended"}
	AlreadyCancelled = rest.Class{Code: "order-cancelled", Status: http.StatusConflict, Title: "Order already cancelled"}
)
