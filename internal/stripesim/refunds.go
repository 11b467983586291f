package stripesim

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// refund is a row of the table refunds.
type refund struct {
	id            string
	paymentIntent string
	amount        int64
	currency      string
	reason        sql.NullString
	metadata      map[string]string
	status        string
	createdAt     time.Time
	owner         owner
}

const refundColumns = `id, payment_intent, amount, currency, reason, metadata, status, created_at, account, livemode`

func scanRefund(row interface{ Scan(...any) error }) (refund, error) {
	var r refund
	var metadata []byte
	err := row.Scan(&r.id, &r.paymentIntent, &r.amount, &r.currency, &r.reason, &metadata, &r.status, &r.createdAt,
		&r.owner.account, &r.owner.live)
	if err != nil {
		return refund{}, err
	}
	return r, json.Unmarshal(metadata, &r.metadata)
}

// refundObject is a refund as the API answers it. See https://docs.stripe.com/api/refunds/object.
type refundObject struct {
	ID                        string            `json:"id"`
	Object                    string            `json:"object"`
	Amount                    int64             `json:"amount"`
	BalanceTransaction        *string           `json:"balance_transaction"`
	Charge                    string            `json:"charge"`
	Created                   int64             `json:"created"`
	Currency                  string            `json:"currency"`
	FailureBalanceTransaction string            `json:"failure_balance_transaction,omitempty"`
	FailureReason             string            `json:"failure_reason,omitempty"`
	Metadata                  map[string]string `json:"metadata"`
	PaymentIntent             string            `json:"payment_intent"`
	PendingReason             string            `json:"pending_reason,omitempty"`
	Reason                    *string           `json:"reason"`
	ReceiptNumber             *string           `json:"receipt_number"`
	SourceTransferReversal    *string           `json:"source_transfer_reversal"`
	Status                    string            `json:"status"`
	TransferReversal          *string           `json:"transfer_reversal"`
}

func (r refund) object() refundObject {
	o := refundObject{
		ID: r.id, Object: "refund", Amount: r.amount, BalanceTransaction: new(balanceID("refund", r.id)), Charge: chargeOf(r.paymentIntent),
		Created: r.createdAt.Unix(), Currency: r.currency, Metadata: r.metadata, PaymentIntent: r.paymentIntent,
		Reason: pointer(r.reason), Status: r.status,
	}
	switch r.status {
	case "pending":
		o.PendingReason = "processing"
	case "failed":
		o.FailureReason, o.FailureBalanceTransaction = "expired_or_canceled_card", balanceID("refund_failure", r.id)
	}
	return o
}

// createRefund is POST /v1/refunds.
func (s *Simulator) createRefund(ctx context.Context, tx *sql.Tx, c *call) (any, error) {
	f := c.form
	paymentIntent := f.required("payment_intent")
	amount := f.integer("amount", 0, 1, maxAmount)
	reason := f.oneOf("reason", "duplicate", "fraudulent", "requested_by_customer")
	metadata := f.metadata("metadata")
	if err := f.end(); err != nil {
		return nil, err
	}
	left, currency, err := lockRefundable(ctx, tx, paymentIntent, c.owner)
	switch {
	case err != nil:
		return nil, err
	case left == 0:
		return nil, rejectedByState("charge_already_refunded", "", fmt.Sprintf("Charge %s has already been refunded.",
			chargeOf(paymentIntent)))
	case amount > left:
		return nil, rejectedByState("", "amount", fmt.Sprintf("Refund amount (%s) is greater than unrefunded amount on charge (%s)",
			money(amount, currency), money(left, currency)))
	case amount == 0:
		amount = left
	}
	status := "pending"
	if s.knobs.get().Refunds == "succeed" {
		status = "succeeded"
	}
	row, err := scanRefund(tx.QueryRowContext(ctx, `
		INSERT INTO stripesim.refunds (id, payment_intent, amount, currency, reason, metadata, status, account, livemode)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING `+refundColumns,
		newID("re_"), paymentIntent, amount, currency, optionalText(reason), encode(metadata), status,
		c.owner.account, c.owner.live))
	if err != nil {
		return nil, err
	}
	if err := book(ctx, tx, "refund", row.id, row.paymentIntent, -row.amount, row.currency); err != nil {
		return nil, err
	}
	return row.object(), s.record(ctx, tx, "refund.created", row.owner, row.object(), c)
}

// lockRefundable locks a payment until the transaction ends, and returns the amount that is left to refund. A refund
// that has failed leaves its amount.
func lockRefundable(ctx context.Context, tx *sql.Tx, paymentIntent string, of owner) (left int64, currency string, err error) {
	var captured, refunded int64
	err = tx.QueryRowContext(ctx, `
		SELECT p.amount, p.currency FROM stripesim.payment_intents p JOIN stripesim.sessions s ON s.id = p.session_id
		WHERE p.id = $1 AND s.account = $2 AND s.livemode = $3 FOR UPDATE OF p`, paymentIntent, of.account, of.live).
		Scan(&captured, &currency)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", missing("payment_intent", paymentIntent, "payment_intent")
	}
	if err != nil {
		return 0, "", err
	}
	// A second statement, so that it sees the refunds that were committed while the first one waited for the lock.
	err = tx.QueryRowContext(ctx, `
		SELECT coalesce(sum(amount), 0)::bigint FROM stripesim.refunds WHERE payment_intent = $1 AND status <> 'failed'`, paymentIntent).
		Scan(&refunded)
	return captured - refunded, currency, err
}

// retrieveRefund is GET /v1/refunds/{id}.
func (s *Simulator) retrieveRefund(ctx context.Context, tx *sql.Tx, c *call) (any, error) {
	if err := c.form.end(); err != nil {
		return nil, err
	}
	row, err := scanRefund(tx.QueryRowContext(ctx, `
		SELECT `+refundColumns+` FROM stripesim.refunds WHERE id = $1 AND account = $2 AND livemode = $3`, c.id, c.owner.account, c.owner.live))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, missing("refund", c.id, "id")
	}
	return row.object(), err
}

// listRefunds is GET /v1/refunds.
func (s *Simulator) listRefunds(ctx context.Context, tx *sql.Tx, c *call) (any, error) {
	paymentIntent := c.form.optional("payment_intent")
	p := c.form.page()
	if err := c.form.end(); err != nil {
		return nil, err
	}
	before, err := position(ctx, tx, "refund", p.after)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, `
		SELECT `+refundColumns+` FROM stripesim.refunds
		WHERE ($1 = '' OR payment_intent = $1) AND seq < $2 AND account = $3 AND livemode = $4
		ORDER BY seq DESC LIMIT $5`, paymentIntent, before, c.owner.account, c.owner.live, p.limit+1)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var objects []any
	for rows.Next() {
		row, err := scanRefund(rows)
		if err != nil {
			return nil, err
		}
		objects = append(objects, row.object())
	}
	return p.list("/v1/refunds", objects), rows.Err()
}

// endPendingRefunds ends the pending refunds as the knob says.
func (s *Simulator) endPendingRefunds(ctx context.Context) error {
	ids, err := s.strings(ctx, `SELECT id FROM stripesim.refunds WHERE status = 'pending' ORDER BY seq LIMIT 1000`)
	if err != nil {
		return err
	}
	// The knob is read after the refunds, so a refund never ends as an earlier setting said.
	status, event := "succeeded", "refund.updated"
	switch s.knobs.get().Refunds {
	case "pending":
		return nil
	case "fail":
		status, event = "failed", "refund.failed"
	}
	for _, id := range ids {
		err := s.transact(ctx, func(tx *sql.Tx) error {
			row, err := scanRefund(tx.QueryRowContext(ctx, `
				UPDATE stripesim.refunds SET status = $2 WHERE id = $1 AND status = 'pending' RETURNING `+refundColumns, id, status))
			if err != nil {
				return err
			}
			if status == "failed" {
				if err := book(ctx, tx, "refund_failure", row.id, row.paymentIntent, row.amount, row.currency); err != nil {
					return err
				}
			}
			return s.record(ctx, tx, event, row.owner, row.object(), nil)
		})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	if len(ids) > 0 {
		wake(s.wakeWebhook)
	}
	return nil
}
