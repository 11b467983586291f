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

// fields returns the refund as the API answers it. See https://docs.stripe.com/api/refunds/object.
func (r refund) fields() fields {
	all := fields{
		"id":                       r.id,
		"object":                   "refund",
		"amount":                   r.amount,
		"balance_transaction":      balanceID("refund", r.id),
		"charge":                   chargeOf(r.paymentIntent),
		"created":                  r.createdAt.Unix(),
		"currency":                 r.currency,
		"metadata":                 r.metadata,
		"payment_intent":           r.paymentIntent,
		"reason":                   pointer(r.reason),
		"receipt_number":           nil,
		"source_transfer_reversal": nil,
		"status":                   r.status,
		"transfer_reversal":        nil,
	}
	switch r.status {
	case "pending":
		all["pending_reason"] = "processing"
	case "failed":
		all["failure_reason"] = "expired_or_canceled_card"
		all["failure_balance_transaction"] = balanceID("refund_failure", r.id)
	case "canceled":
		all["failure_balance_transaction"] = balanceID("refund_failure", r.id)
	}
	return all
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
	row, err := s.makeRefund(ctx, tx, c.owner, refund{paymentIntent: paymentIntent, amount: amount, reason: optionalText(reason), metadata: metadata}, c)
	if err != nil {
		return nil, err
	}
	return row.fields(), nil
}

// makeRefund refunds an amount of a payment of the owner, or the rest if the amount is 0, as the knob refunds says. c is
// the call that does so, or nil.
func (s *Simulator) makeRefund(ctx context.Context, tx *sql.Tx, of owner, r refund, c *call) (refund, error) {
	left, currency, err := lockRefundable(ctx, tx, r.paymentIntent, of)
	knob := s.knobs.get().Refunds
	charge := chargeOf(r.paymentIntent)
	switch {
	case err != nil:
		return refund{}, err
	case knob == "refuse_disputed":
		return refund{}, chargeDisputed(charge)
	case knob == "refuse_balance":
		return refund{}, rejectedByState("balance_insufficient", "", "Insufficient funds in your account to refund this charge.")
	case left == 0:
		return refund{}, rejectedByState("charge_already_refunded", "", fmt.Sprintf("Charge %s has already been refunded.", charge))
	case r.amount > left:
		return refund{}, rejectedByState("", "amount", fmt.Sprintf("Refund amount (%s) is greater than unrefunded amount on charge (%s)",
			money(r.amount, currency), money(left, currency)))
	case r.amount == 0:
		r.amount = left
	}
	status := "pending"
	var failsAfter sql.NullInt64
	switch knob {
	case "succeed":
		status = "succeeded"
	case "fail_later":
		status, failsAfter = "succeeded", sql.NullInt64{Int64: s.cfg.RefundFails.Microseconds(), Valid: true}
	case "require_action":
		status = "requires_action"
	}
	r, err = scanRefund(tx.QueryRowContext(ctx, `
		INSERT INTO stripesim.refunds (id, payment_intent, amount, currency, reason, metadata, status, account, livemode, fails_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp() + $10 * interval '1 microsecond') RETURNING `+refundColumns,
		newID("re_"), r.paymentIntent, r.amount, currency, r.reason, encode(r.metadata), status, of.account, of.live, failsAfter))
	if err != nil {
		return refund{}, err
	}
	if err := book(ctx, tx, "refund", r.id, r.paymentIntent, -r.amount, r.currency); err != nil {
		return refund{}, err
	}
	if err := s.record(ctx, tx, "refund.created", r.owner, r.fields(), c); err != nil {
		return refund{}, err
	}
	return r, s.recordCharge(ctx, tx, "charge.refunded", r.owner, r.paymentIntent, c)
}

// chargeDisputed is the answer to a refund of a charge whose money a dispute has withdrawn.
func chargeDisputed(charge string) *apiError {
	return rejectedByState("charge_disputed", "", fmt.Sprintf("Charge %s has been charged back; cannot issue a refund.", charge))
}

// lockRefundable locks a payment until the transaction ends, and returns the amount that is left to refund. A refund
// that has failed leaves its amount. A disputed charge cannot be refunded, unless the dispute is won.
func lockRefundable(ctx context.Context, tx *sql.Tx, paymentIntent string, of owner) (left int64, currency string, err error) {
	var captured, refunded int64
	var disputed bool
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
		SELECT coalesce(sum(amount), 0)::bigint,
			EXISTS (SELECT FROM stripesim.disputes WHERE payment_intent = $1 AND status <> 'won')
		FROM stripesim.refunds WHERE payment_intent = $1 AND status NOT IN ('failed', 'canceled')`, paymentIntent).
		Scan(&refunded, &disputed)
	if err == nil && disputed {
		err = chargeDisputed(chargeOf(paymentIntent))
	}
	return captured - refunded, currency, err
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
	var objects []fields
	for rows.Next() {
		row, err := scanRefund(rows)
		if err != nil {
			return nil, err
		}
		objects = append(objects, row.fields())
	}
	return p.list("/v1/refunds", objects), rows.Err()
}

// endPendingRefunds ends the refunds that are pending or require an action, as the knob says.
func (s *Simulator) endPendingRefunds(ctx context.Context) error {
	ids, err := s.strings(ctx, `SELECT id FROM stripesim.refunds WHERE status IN ('pending', 'requires_action') ORDER BY seq LIMIT 1000`)
	if err != nil {
		return err
	}
	// The knob is read after the refunds, so a refund never ends as an earlier setting said.
	status := "succeeded"
	switch s.knobs.get().Refunds {
	case "pending", "require_action":
		return nil
	case "fail":
		status = "failed"
	case "cancel":
		status = "canceled"
	}
	return s.endRefunds(ctx, ids, status, `status IN ('pending', 'requires_action')`)
}

// failRefunds fails the refunds that have succeeded and whose time to fail has come.
func (s *Simulator) failRefunds(ctx context.Context) error {
	const due = `status = 'succeeded' AND fails_at <= clock_timestamp()`
	ids, err := s.strings(ctx, `SELECT id FROM stripesim.refunds WHERE `+due+` ORDER BY seq LIMIT 1000`)
	if err != nil {
		return err
	}
	return s.endRefunds(ctx, ids, "failed", due)
}

// endRefunds gives each of the refunds the status, if it still meets the condition.
func (s *Simulator) endRefunds(ctx context.Context, ids []string, status, condition string) error {
	for _, id := range ids {
		if _, err := s.endRefund(ctx, id, status, condition); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return nil
}

// endRefund gives a refund the status, if it meets the condition. The error is [sql.ErrNoRows] if it does not.
func (s *Simulator) endRefund(ctx context.Context, id, status, condition string) (row refund, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		row, err = scanRefund(tx.QueryRowContext(ctx, `
			UPDATE stripesim.refunds SET status = $2 WHERE id = $1 AND `+condition+` RETURNING `+refundColumns, id, status))
		if err != nil {
			return err
		}
		event := "refund.updated"
		if status != "succeeded" { // the money comes back
			if err := book(ctx, tx, "refund_failure", row.id, row.paymentIntent, row.amount, row.currency); err != nil {
				return err
			}
		}
		if status == "failed" {
			event = "refund.failed"
		}
		if err := s.record(ctx, tx, event, row.owner, row.fields(), nil); err != nil {
			return err
		}
		return s.record(ctx, tx, "charge.refund.updated", row.owner, row.fields(), nil)
	})
	wake(s.wakeWebhook)
	return row, err
}
