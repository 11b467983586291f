package stripesim

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"
)

// charge is a captured payment. Its payment intent has no other charge.
type charge struct {
	intent    string
	amount    int64
	currency  string
	createdAt time.Time
	refunded  int64 // by refunds that have not failed
	disputed  bool
	livemode  bool
	metadata  map[string]string
}

// chargeOf returns the id of the charge of a payment intent.
func chargeOf(intent string) string { return "ch_" + strings.TrimPrefix(intent, "pi_") }

// charges returns the charges of the payment intents that the owner has, by intent.
func charges(ctx context.Context, tx *sql.Tx, of owner, intents []string) (map[string]charge, error) {
	rows, err := tx.QueryContext(ctx, `
		SELECT p.id, p.amount, p.currency, p.created_at, s.livemode, s.payment_metadata,
			(SELECT coalesce(sum(r.amount), 0)::bigint FROM stripesim.refunds r WHERE r.payment_intent = p.id AND r.status NOT IN ('failed', 'canceled')),
			EXISTS (SELECT FROM stripesim.disputes d WHERE d.payment_intent = p.id)
		FROM stripesim.payment_intents p JOIN stripesim.sessions s ON s.id = p.session_id
		WHERE p.id = ANY ($1) AND s.account = $2 AND s.livemode = $3`, intents, of.account, of.live)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[string]charge{}
	for rows.Next() {
		var c charge
		var metadata []byte
		err := rows.Scan(&c.intent, &c.amount, &c.currency, &c.createdAt, &c.livemode, &metadata, &c.refunded, &c.disputed)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(metadata, &c.metadata); err != nil {
			return nil, err
		}
		all[c.intent] = c
	}
	return all, rows.Err()
}

// fields returns the charge as the API answers it. See https://docs.stripe.com/api/charges/object.
func (c charge) fields() fields {
	id := chargeOf(c.intent)
	return fields{
		"id":                  id,
		"object":              "charge",
		"amount":              c.amount,
		"amount_captured":     c.amount,
		"amount_refunded":     c.refunded,
		"balance_transaction": balanceID("charge", id),
		"billing_details":     fields{"address": nil, "email": nil, "name": nil, "phone": nil, "tax_id": nil},
		"captured":            true,
		"created":             c.createdAt.Unix(),
		"currency":            c.currency,
		"disputed":            c.disputed,
		"livemode":            c.livemode,
		"metadata":            c.metadata,
		"paid":                true,
		"payment_intent":      c.intent,
		"refunded":            c.refunded == c.amount,
		"status":              "succeeded",
	}
}

// recordCharge records an event about the charge of a payment intent. c is the call that causes it, or nil.
func (s *Simulator) recordCharge(ctx context.Context, tx *sql.Tx, eventType string, of owner, intent string, c *call) error {
	found, err := charges(ctx, tx, of, []string{intent})
	if err != nil {
		return err
	}
	return s.record(ctx, tx, eventType, of, found[intent].fields(), c)
}
