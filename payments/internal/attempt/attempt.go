// Package attempt opens attempts to pay orders at a payment provider, and settles them.
//
// An attempt is one try to pay one order: a Checkout Session of Stripe. It must be opened before the deadline, and its
// customer can pay until the deadline, or for some minutes after the opening if that is later. This end of the checkout
// is fixed at the opening. An order with a live attempt is held: it is not cancelled at its deadline, but at the end of
// the hold. At the end of its checkout the attempt is closing. The provider is asked to expire the session first, and
// only the provider's answer decides whether the order is paid or cancelled. For that it has a grace: the time from the
// end of the checkout to the end of the hold. A customer who wants to cancel the order first has the attempt closed, in
// the same way; see [Service.Close].
//
//	           the provider made the session       expired at the provider
//	creating ─────────────────────────────▶ open ─────────────────────────▶ closed
//	   │                                      │
//	   │  refused, 30 s old, or closing       │  paid at the provider
//	   └───────────────▶ closed               └────────────────────────────▶ succeeded
//
// A success pays its order if the order is pending, the hold has not ended, and the amount is right. Any other success
// is refunded; the transaction that stores the success also stores the refund. The table of all steps is in steps.go.
// If the provider does not answer by the end of the hold, the order is cancelled like any other order. Its attempt
// goes on being closed. If the provider does not know the session any more, the attempt is closed after its order has
// ended.
//
// Nothing that the provider sends decides anything: a webhook only makes the shop ask the provider sooner. So
// lost, repeated, late and reordered webhooks do no harm.
//
// Each end of an attempt is one transaction, which locks the order and then the attempt, has the rules of package order
// and the table of steps decide, and writes. Rows are locked in this order: order, attempt, refund, products, outbox.
// No statement and no transaction waits for the provider.
package attempt

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/refund"
)

// Kind is the kind of the tasks that settle attempts. The id of a task is the id of an attempt.
const Kind = "payment.settle"

// The classes of error that packages rest and order do not declare.
var (
	NotChargeable = rest.Class{
		Code: "total-not-chargeable", Status: http.StatusConflict, Title: "Total cannot be charged",
	}
	TooManyAttempts = rest.Class{
		Code: "too-many-attempts", Status: http.StatusConflict, Title: "Too many payment attempts",
	}
	ProviderAway = rest.Class{
		Code: "provider-unavailable", Status: http.StatusServiceUnavailable, Title: "Payment provider unavailable",
	}
	PaymentsBlocked = rest.Class{
		Code: "payments-blocked", Status: http.StatusServiceUnavailable, Title: "Payments blocked",
	}
	PaymentInProgress = rest.Class{
		Code: "payment-in-progress", Status: http.StatusConflict, Title: "Payment in progress",
	}
	CheckoutRefused = rest.Class{
		Code: "checkout-refused", Status: http.StatusBadGateway, Title: "Checkout refused by the payment provider",
	}
)

// State is the state of an attempt.
type State string

// An attempt is live while it is creating or open.
const (
	Creating  State = "creating"  // the provider may or may not have made the session
	Open      State = "open"      // the customer can pay
	Closed    State = "closed"    // the customer cannot pay any more, and has not paid
	Succeeded State = "succeeded" // the customer has paid
)

// Attempt is one try to pay an order at the provider, as its customer sees it.
type Attempt struct {
	ID          uuid.UUID      `json:"id"`
	OrderID     uuid.UUID      `json:"order_id"`
	State       State          `json:"state"`
	Applied     bool           `json:"applied"` // reports whether the success paid the order
	Closing     bool           `json:"closing"` // live, and the provider is asked to expire the session
	AmountCents int64          `json:"amount_cents"`
	Currency    string         `json:"currency"`
	CheckoutURL string         `json:"checkout_url,omitempty"` // only while the customer may pay there
	OpenedAt    time.Time      `json:"opened_at"`
	EndedAt     *time.Time     `json:"ended_at,omitempty"`
	Refund      *refund.Refund `json:"refund,omitempty" gorm:"serializer:json"`

	// CheckoutUntil is until when the customer may pay; nil while the attempt is closing.
	CheckoutUntil *time.Time `json:"checkout_until,omitempty"`
	// SessionExpiresAt is when the provider expires the session by itself, by the provider's clock.
	SessionExpiresAt time.Time `json:"-"`
}
