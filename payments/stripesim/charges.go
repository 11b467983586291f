package stripesim

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// charge is a captured payment. Its payment intent has no other charge.
type charge struct {
	PaymentIntent string
	Amount        int64
	Currency      string
	CreatedAt     time.Time
	Livemode      bool
	Metadata      map[string]string
	Refunded      int64 // by refunds that have not failed
	Disputed      bool
}

// chargeOf returns the id of the charge of a payment intent.
func chargeOf(intent string) string { return "ch_" + strings.TrimPrefix(intent, "pi_") }

// charges returns the charges of the payment intents that the owner has.
func charges(ctx context.Context, tx pgx.Tx, of owner, intents ...string) ([]charge, error) {
	return readRows[charge](ctx, tx, `
		SELECT p.id AS payment_intent, p.amount, p.currency, p.created_at, s.livemode, s.payment_metadata AS metadata,
			(SELECT coalesce(sum(r.amount), 0)::bigint FROM stripesim.refunds r
			 WHERE r.payment_intent = p.id AND r.status NOT IN ('failed', 'canceled')) AS refunded,
			EXISTS (SELECT FROM stripesim.disputes d WHERE d.payment_intent = p.id) AS disputed
		FROM stripesim.payment_intents p JOIN stripesim.sessions s ON s.id = p.session_id
		WHERE p.id = ANY ($1) AND s.account = $2 AND s.livemode = $3`, intents, of.Account, of.Livemode)
}

// fields returns the charge as the API answers it. See https://docs.stripe.com/api/charges/object.
func (c charge) fields() fields {
	id := chargeOf(c.PaymentIntent)
	return fields{
		"id":                  id,
		"object":              "charge",
		"amount":              c.Amount,
		"amount_captured":     c.Amount,
		"amount_refunded":     c.Refunded,
		"balance_transaction": balanceID("charge", id),
		"billing_details":     fields{"address": nil, "email": nil, "name": nil, "phone": nil, "tax_id": nil},
		"captured":            true,
		"created":             c.CreatedAt.Unix(),
		"currency":            c.Currency,
		"disputed":            c.Disputed,
		"livemode":            c.Livemode,
		"metadata":            c.Metadata,
		"paid":                true,
		"payment_intent":      c.PaymentIntent,
		"refunded":            c.Refunded == c.Amount,
		"status":              "succeeded",
	}
}

// recordCharge records an event about the charge of a payment intent. c is the call that causes it, or nil.
func (s *Simulator) recordCharge(
	ctx context.Context, tx pgx.Tx, eventType string, of owner, intent string, c *call,
) error {
	found, err := charges(ctx, tx, of, intent)
	if err != nil {
		return err
	}
	return s.record(ctx, tx, eventType, of, found[0].fields(), c)
}
