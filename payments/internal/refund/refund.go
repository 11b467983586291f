// Package refund returns money of payments that did not pay their orders.
//
// The transaction that stores such a payment also owes its refund, of all of its money. The worker lists the refunds
// of the payment at the provider before it sends one, so that a lost answer returns nothing twice. It repeats what may
// pass, and only an operator moves a refund that failed.
//
//	owed ──▶ sent ──▶ confirmed ──▶ failed ──▶ settled outside
//
// A refund can also fail while it is owed or sent. A retry makes it owed again.
package refund

import (
	"net/http"
	"time"

	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

// Kind is the kind of the tasks that send refunds. The id of a task is the id of a refund.
const Kind = "refund.send"

// NotFailed is the class of the error about a refund that an operator cannot move.
var NotFailed = rest.Class{Code: "not-failed", Status: http.StatusConflict, Title: "Refund has not failed"}

// Reason is why a success does not pay its order, so that a refund of it is owed.
type Reason string

// The reasons of refunds.
const (
	Late      Reason = "late"      // the order was cancelled, its hold had ended, or the attempt was closed before
	Duplicate Reason = "duplicate" // another payment has paid the order
	Mismatch  Reason = "mismatch"  // the amount or the currency is not that of the order
)

// Refund is the refund of an attempt whose success did not pay the order: of all of its money.
type Refund struct {
	State       provider.RefundState `json:"state"`
	Reason      Reason               `json:"reason"`
	AmountCents int64                `json:"amount_cents"`
	EndedAt     *time.Time           `json:"ended_at,omitempty"`
}
