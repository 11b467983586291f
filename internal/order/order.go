// Package order takes orders that reserve stock and must be paid by a deadline.
//
// The promise: an order that is not paid by its deadline is cancelled and its stock is released, once,
// and a paid order is never cancelled. Every step of an order's life is one conditional statement
// against the table, decided by the database's clock while the order's row is locked:
//
//	          pay, before the deadline
//	pending ───────────────────────────▶ paid
//	   │
//	   ├─ cancelled by its customer, before the deadline ─▶ cancelled (customer)
//	   └─ the deadline passes ────────────────────────────▶ cancelled (timeout)
//
// The last arrow is walked by [Service.CancelDue], whenever a delayed task or the reconciler asks for
// it. However late that is, nothing else can happen to an order once its deadline has passed.
package order

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Status is where an order is in its life.
type Status string

// An order starts as pending and ends as paid or cancelled.
const (
	Pending   Status = "pending"
	Paid      Status = "paid"
	Cancelled Status = "cancelled"
)

// CancelReason says why an order was cancelled.
type CancelReason string

// An order is cancelled because its deadline passed, or by its customer before that.
const (
	ByTimeout  CancelReason = "timeout"
	ByCustomer CancelReason = "customer"
)

// Actor is who did what an event tells of.
type Actor string

// Worker and Reconciler cancel orders whose deadline has passed: the worker on time, when the delayed
// task is delivered; the reconciler to repair what was not.
const (
	Customer   Actor = "customer"
	Worker     Actor = "worker"
	Reconciler Actor = "reconciler"
)

// Order is an order as its customer sees it. All times are the database's.
type Order struct {
	ID           uuid.UUID    `json:"id"`
	CustomerID   uuid.UUID    `json:"-"`
	Status       Status       `json:"status"`
	CancelReason CancelReason `json:"cancel_reason,omitempty"`
	TotalCents   int64        `json:"total_cents"`
	Currency     string       `json:"currency"`
	Items        []Item       `json:"items" gorm:"serializer:json"`
	CreatedAt    time.Time    `json:"created_at"`
	ExpiresAt    time.Time    `json:"expires_at"` // the deadline: paid before it or never
	PaidAt       *time.Time   `json:"paid_at,omitempty"`
	CancelledAt  *time.Time   `json:"cancelled_at,omitempty"`
	ServerTime   time.Time    `json:"server_time"` // when the database answered
}

// left is the time until the deadline, by the one clock that both ends were read from.
func (o *Order) left() time.Duration { return o.ExpiresAt.Sub(o.ServerTime) }

// whyNotPaid says why an order is not paid after paying it was tried; nil if it is.
func (o *Order) whyNotPaid() error {
	switch {
	case o.Status == Paid:
		return nil
	case o.CancelReason == ByCustomer:
		return Errorf(CodeOrderCancelled, "The order was cancelled by its customer at %s and cannot be paid any more.", stamp(*o.CancelledAt))
	default:
		return o.tooLate("paid")
	}
}

// whyNotCancelled says why an order is not cancelled by its customer after that was tried; nil if it is.
func (o *Order) whyNotCancelled() error {
	switch {
	case o.CancelReason == ByCustomer:
		return nil
	case o.Status == Paid:
		return Errorf(CodeOrderPaid, "The order was paid at %s and cannot be cancelled any more.", stamp(*o.PaidAt))
	default:
		return o.tooLate("cancelled by its customer")
	}
}

// tooLate explains an order whose deadline has passed. One that is still pending has only its cancellation
// ahead of it: to its customer there is no difference.
func (o *Order) tooLate(attempt string) error {
	becomes := "It is about to be cancelled"
	if o.Status == Cancelled {
		becomes = "It is cancelled, its stock is released"
	}
	return Errorf(CodeDeadlinePassed, "The order was not paid by its deadline, %s. %s, and it cannot be %s any more.",
		stamp(o.ExpiresAt), becomes, attempt)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Item is a line of an order. The price is the one at which it was ordered.
type Item struct {
	ProductID      uuid.UUID `json:"product_id"`
	Name           string    `json:"name"`
	Quantity       int64     `json:"quantity"`
	UnitPriceCents int64     `json:"unit_price_cents"`
}

// Event is an entry in an order's audit trail.
type Event struct {
	Type  string    `json:"type"` // placed, paid or cancelled
	Actor Actor     `json:"actor"`
	At    time.Time `json:"at"`
}

// Product is something on sale.
type Product struct {
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	PriceCents int64     `json:"price_cents"`
	Currency   string    `json:"currency"`
	Supply     int64     `json:"-"` // all there ever was
	Available  int64     `json:"available"`
}

// Placement is what a customer orders.
type Placement struct {
	// IdempotencyKey makes repeating the placement safe: the same key is the same order. Empty: no key.
	IdempotencyKey string
	Lines          []Line
}

// Line asks for a quantity of a product.
type Line struct {
	ProductID uuid.UUID
	Quantity  int64
}

// What one order may ask for.
const (
	maxLines    = 50
	maxQuantity = 1000
)

// faults names everything that is wrong with a placement, whatever products there are.
func (p Placement) faults() []Fault {
	if len(p.Lines) < 1 || len(p.Lines) > maxLines {
		return []Fault{{Pointer: "/items", Detail: fmt.Sprintf("must be a list of 1 to %d lines, has %d", maxLines, len(p.Lines))}}
	}
	var faults []Fault
	first := make(map[uuid.UUID]int, len(p.Lines))
	for i, line := range p.Lines {
		fault := func(field, detail string) {
			faults = append(faults, Fault{Pointer: pointer(i, field), Detail: detail})
		}
		before, again := first[line.ProductID]
		switch {
		case line.ProductID == uuid.Nil:
			fault("product_id", "must be the UUID of a product")
		case again:
			fault("product_id", fmt.Sprintf("is the product of %s again: ask for it in one line", pointer(before, "product_id")))
		default:
			first[line.ProductID] = i
		}
		if line.Quantity < 1 || line.Quantity > maxQuantity {
			fault("quantity", fmt.Sprintf("must be a whole number from 1 to %d", maxQuantity))
		}
	}
	return faults
}

// pointer is the JSON pointer to a field of a line of a placement.
func pointer(line int, field string) string { return fmt.Sprintf("/items/%d/%s", line, field) }

// fingerprint tells placements apart that come with the same idempotency key. It is made of what is
// ordered, so neither the order of the lines nor the spelling of the request matters.
func (p Placement) fingerprint() []byte {
	lines := make([]string, len(p.Lines))
	for i, line := range p.Lines {
		lines[i] = fmt.Sprintf("%s %d\n", line.ProductID, line.Quantity)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return sum[:]
}
