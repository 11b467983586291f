package stripesim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// refund is a row of the table refunds.
type refund struct {
	owner
	Seq           int64
	ID            string
	PaymentIntent string
	Amount        int64
	Currency      string
	Metadata      map[string]string
	Status        string
	CreatedAt     time.Time
	FailsAt       *time.Time
}

// fields returns the refund as the API answers it. See https://docs.stripe.com/api/refunds/object.
func (r refund) fields() fields {
	all := fields{
		"id":                       r.ID,
		"object":                   "refund",
		"amount":                   r.Amount,
		"balance_transaction":      balanceID("refund", r.ID),
		"charge":                   chargeOf(r.PaymentIntent),
		"created":                  r.CreatedAt.Unix(),
		"currency":                 r.Currency,
		"metadata":                 r.Metadata,
		"payment_intent":           r.PaymentIntent,
		"reason":                   nil,
		"receipt_number":           nil,
		"source_transfer_reversal": nil,
		"status":                   r.Status,
		"transfer_reversal":        nil,
	}
	switch r.Status {
	case "pending":
		all["pending_reason"] = "processing"
	case "failed":
		all["failure_reason"] = "expired_or_canceled_card"
		all["failure_balance_transaction"] = balanceID("refund_failure", r.ID)
	case "canceled":
		all["failure_balance_transaction"] = balanceID("refund_failure", r.ID)
	}
	return all
}

// createRefund is POST /v1/refunds.
func (s *Simulator) createRefund(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	f := c.form
	paymentIntent := f.required("payment_intent")
	amount := f.integer("amount", 0, 1, maxAmount)
	metadata := f.metadata("metadata")
	if err := f.end(); err != nil {
		return nil, err
	}
	made := refund{PaymentIntent: paymentIntent, Amount: amount, Metadata: metadata}
	row, err := s.makeRefund(ctx, tx, c.owner, made, c)
	if err != nil {
		return nil, err
	}
	return row.fields(), nil
}

// makeRefund refunds an amount of a payment of the owner, or the rest if the amount is 0, as the knob refunds says. c
// is the call that does so, or nil.
func (s *Simulator) makeRefund(ctx context.Context, tx pgx.Tx, of owner, r refund, c *call) (refund, error) {
	left, currency, err := lockRefundable(ctx, tx, r.PaymentIntent, of)
	knob := s.knobs.get().Refunds
	charge := chargeOf(r.PaymentIntent)
	switch {
	case err != nil:
		return refund{}, err
	case knob == "refuse_disputed":
		return refund{}, chargeDisputed(charge)
	case knob == "refuse_balance":
		return refund{}, rejectedByState("balance_insufficient", "",
			"Insufficient funds in your account to refund this charge.")
	case left == 0:
		return refund{}, rejectedByState("charge_already_refunded", "", "Charge "+charge+" has already been refunded.")
	case r.Amount > left:
		return refund{}, rejectedByState("", "amount", fmt.Sprintf(
			"Refund amount (%s) is greater than unrefunded amount on charge (%s)",
			money(r.Amount, currency), money(left, currency)))
	case r.Amount == 0:
		r.Amount = left
	}
	status := "pending"
	var failsAfter *time.Duration
	switch knob {
	case "succeed":
		status = "succeeded"
	case "fail_later":
		status, failsAfter = "succeeded", &s.cfg.RefundFails
	case "require_action":
		status = "requires_action"
	}
	r, err = readRow[refund](ctx, tx, `
		INSERT INTO stripesim.refunds (id, payment_intent, amount, currency, metadata, status,
			account, livemode, fails_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp() + $9::interval) RETURNING *`,
		newID("re_"), r.PaymentIntent, r.Amount, currency, r.Metadata, status, of.Account, of.Livemode, failsAfter)
	if err != nil {
		return refund{}, err
	}
	if err := book(ctx, tx, "refund", r.ID, r.PaymentIntent, -r.Amount, r.Currency); err != nil {
		return refund{}, err
	}
	if err := s.record(ctx, tx, "refund.created", r.owner, r.fields(), c); err != nil {
		return refund{}, err
	}
	return r, s.recordCharge(ctx, tx, "charge.refunded", r.owner, r.PaymentIntent, c)
}

// chargeDisputed is the answer to a refund of a charge whose money a dispute has withdrawn.
func chargeDisputed(charge string) *apiError {
	return rejectedByState("charge_disputed", "", "Charge "+charge+" has been charged back; cannot issue a refund.")
}

// lockRefundable locks a payment until the transaction ends, and returns the amount that is left to refund. A refund
// that has failed leaves its amount. A disputed charge cannot be refunded, unless the dispute is won.
func lockRefundable(
	ctx context.Context, tx pgx.Tx, paymentIntent string, of owner,
) (left int64, currency string, err error) {
	var captured, refunded int64
	var disputed bool
	err = tx.QueryRow(ctx, `
		SELECT p.amount, p.currency FROM stripesim.payment_intents p JOIN stripesim.sessions s ON s.id = p.session_id
		WHERE p.id = $1 AND s.account = $2 AND s.livemode = $3 FOR UPDATE OF p`,
		paymentIntent, of.Account, of.Livemode).Scan(&captured, &currency)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, "", missing("payment_intent", paymentIntent, "payment_intent")
	}
	if err != nil {
		return 0, "", err
	}
	// A second statement, so that it sees the refunds that were committed while the first one waited for the lock.
	err = tx.QueryRow(ctx, `
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
func (s *Simulator) listRefunds(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	paymentIntent := c.form.optional("payment_intent")
	p := c.form.page()
	if err := c.form.end(); err != nil {
		return nil, err
	}
	before, err := position(ctx, tx, "refund", p.after)
	if err != nil {
		return nil, err
	}
	rows, err := readRows[refund](ctx, tx, `
		SELECT * FROM stripesim.refunds
		WHERE ($1 = '' OR payment_intent = $1) AND seq < $2 AND account = $3 AND livemode = $4
		ORDER BY seq DESC LIMIT $5`, paymentIntent, before, c.owner.Account, c.owner.Livemode, p.limit+1)
	var objects []fields
	for _, row := range rows {
		objects = append(objects, row.fields())
	}
	return p.list("/v1/refunds", objects), err
}

// endPendingRefunds ends the refunds that are pending or require an action, as the knob says.
func (s *Simulator) endPendingRefunds(ctx context.Context) error {
	const pending = `status IN ('pending', 'requires_action')`
	return s.forEach(ctx, `SELECT id FROM stripesim.refunds WHERE `+pending+` ORDER BY seq LIMIT 1000`,
		func(tx pgx.Tx, id string) error {
			// The knob is read after the refund, so a refund never ends as an earlier setting said.
			status := "succeeded"
			switch s.knobs.get().Refunds {
			case "pending", "require_action":
				return nil
			case "fail":
				status = "failed"
			case "cancel":
				status = "canceled"
			}
			_, err := s.endRefund(ctx, tx, id, status, pending)
			return err
		})
}

// failRefunds fails the refunds that have succeeded and whose time to fail has come.
func (s *Simulator) failRefunds(ctx context.Context) error {
	const due = `status = 'succeeded' AND fails_at <= clock_timestamp()`
	return s.forEach(ctx, `SELECT id FROM stripesim.refunds WHERE `+due+` ORDER BY seq LIMIT 1000`,
		func(tx pgx.Tx, id string) error {
			_, err := s.endRefund(ctx, tx, id, "failed", due)
			return err
		})
}

// endRefund gives a refund the status, if it meets the condition. The error is [pgx.ErrNoRows] if it does not.
func (s *Simulator) endRefund(ctx context.Context, tx pgx.Tx, id, status, condition string) (refund, error) {
	row, err := readRow[refund](ctx, tx, `
		UPDATE stripesim.refunds SET status = $2 WHERE id = $1 AND `+condition+` RETURNING *`, id, status)
	if err != nil {
		return refund{}, err
	}
	event := "refund.updated"
	if status == "failed" {
		event = "refund.failed"
	}
	if status != "succeeded" { // the money comes back
		if err := book(ctx, tx, "refund_failure", row.ID, row.PaymentIntent, row.Amount, row.Currency); err != nil {
			return refund{}, err
		}
	}
	if err := s.record(ctx, tx, event, row.owner, row.fields(), nil); err != nil {
		return refund{}, err
	}
	return row, s.record(ctx, tx, "charge.refund.updated", row.owner, row.fields(), nil)
}
