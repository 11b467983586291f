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

// chargeObject is a charge as the API answers it. See https://docs.stripe.com/api/charges/object.
type chargeObject struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	Amount             int64              `json:"amount"`
	AmountCaptured     int64              `json:"amount_captured"`
	AmountRefunded     int64              `json:"amount_refunded"`
	BalanceTransaction string             `json:"balance_transaction"`
	BillingDetails     map[string]*string `json:"billing_details"`
	Captured           bool               `json:"captured"`
	Created            int64              `json:"created"`
	Currency           string             `json:"currency"`
	Disputed           bool               `json:"disputed"`
	Livemode           bool               `json:"livemode"`
	Metadata           map[string]string  `json:"metadata"`
	Paid               bool               `json:"paid"`
	PaymentIntent      string             `json:"payment_intent"`
	Refunded           bool               `json:"refunded"`
	Status             string             `json:"status"`
}

func (c charge) object() chargeObject {
	id := chargeOf(c.intent)
	return chargeObject{
		ID: id, Object: "charge", Amount: c.amount, AmountCaptured: c.amount, AmountRefunded: c.refunded,
		BalanceTransaction: balanceID("charge", id),
		BillingDetails:     map[string]*string{"address": nil, "email": nil, "name": nil, "phone": nil, "tax_id": nil},
		Captured:           true, Created: c.createdAt.Unix(), Currency: c.currency, Disputed: c.disputed,
		Livemode: c.livemode, Metadata: c.metadata,
		Paid: true, PaymentIntent: c.intent, Refunded: c.refunded == c.amount, Status: "succeeded",
	}
}

// recordCharge records an event about the charge of a payment intent. c is the call that causes it, or nil.
func (s *Simulator) recordCharge(ctx context.Context, tx *sql.Tx, eventType string, of owner, intent string, c *call) error {
	found, err := charges(ctx, tx, of, []string{intent})
	if err != nil {
		return err
	}
	return s.record(ctx, tx, eventType, of, found[intent].object(), c)
}
