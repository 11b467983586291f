// Package order places orders that reserve stock and must be paid by a deadline.
//
// The promise: an order that is not paid by its deadline is cancelled and its stock is released, once, and a paid order
// is never cancelled. Each step of an order's life is one conditional statement, which locks the order's row before it
// reads the database's clock. Only a timeout may read the clock earlier, which can only make it later:
//
//	          pay, before the deadline
//	pending ───────────────────────────▶ paid
//	   │
//	   ├─ its customer cancels, before the deadline ─▶ cancelled (customer)
//	   └─ the deadline passes ───────────────────────▶ cancelled (timeout)
//
// The worker takes the last step with [reconcile.Table.Handle] when the order's task is due. If the worker does not,
// the reconciler takes the step with [reconcile.Table.TimeOut]. However late the step is taken, an order cannot be paid
// after its deadline.
//
// Another package can hold a pending order beyond its deadline, while the customer pays it elsewhere: it sets
// orders.hold_until, in a statement that holds the lock of the order's row. A held order cannot be paid with
// [Service.Pay], and its customer cannot cancel it. A hold ends when the other package pays the order or clears the
// hold, and at the latest at hold_until. The due time of an order, orders.due_at, is when the order ends unless it is
// paid or cancelled before: the end of its hold or, without a hold, its deadline.
//
// The deadline can be moved until it passes: to a later time by the order's customer, with [Service.Extend], and to any
// time by an operator, with [Service.Reschedule]. A later deadline moves the end of a hold with it.
package order

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
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
// them overdue. An operator moves deadlines. The package that pays a held order writes the actor "provider".
const (
	Customer   Actor = "customer"
	Operator   Actor = "operator"
	Worker           = Actor(reconcile.ByWorker)
	Reconciler       = Actor(reconcile.ByReconciler)
)

// Order is an order as its customer sees it. All times are read from the database's clock.
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
	ServerTime  time.Time  `json:"server_time"` // the time of the answer, by the database's clock

	// ExtensionSeconds is by how much the customer can extend the deadline now; 0: not at all.
	ExtensionSeconds float64 `json:"extension_seconds,omitempty" gorm:"-"`
	// ExtensionsLeft is how often the customer can still extend the deadline; nil: never in this shop.
	ExtensionsLeft *int64 `json:"extensions_left,omitempty" gorm:"-"`

	// PayAtOnce reports whether the customer can pay the order now with [Service.Pay].
	PayAtOnce bool `json:"pay_at_once,omitempty" gorm:"-"`
}

// isHeld reports whether the order is held at the time ServerTime.
func (o *Order) isHeld() bool { return o.HoldUntil != nil && o.ServerTime.Before(*o.HoldUntil) }

// tooLate returns the error for a change of an order whose deadline has passed, although the order may still be
// pending. change says what cannot be done any more, for example "paid".
func (o *Order) tooLate(change string) error {
	state := "It will be cancelled within seconds"
	switch {
	case o.Status == Cancelled:
		state = "It is cancelled, its stock is released"
	case o.isHeld():
		return DeadlinePassed.Errorf("The order was not paid by its deadline, %s. It is held until %s: a payment that its "+
			"customer has begun is still accepted.",
			stamp(o.ExpiresAt), stamp(*o.HoldUntil))
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
