package stripesim

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// dispute is a row of the table disputes.
type dispute struct {
	owner
	ID            string
	PaymentIntent string
	Amount        int64
	Currency      string
	Status        string
	CreatedAt     time.Time
	EndedAt       *time.Time
}

// fields returns the dispute as the API answers it. See https://docs.stripe.com/api/disputes/object.
func (d dispute) fields() fields {
	withdrawn := balanceTransaction{
		ID: balanceID("dispute", d.ID), ReportingCategory: "dispute", Amount: -d.Amount, Currency: d.Currency,
		CreatedAt: d.CreatedAt,
	}
	transactions := []fields{withdrawn.fields(d.ID)}
	if d.Status == "won" {
		reversed := balanceTransaction{
			ID: balanceID("dispute_reversal", d.ID), ReportingCategory: "dispute_reversal", Amount: d.Amount,
			Currency: d.Currency, CreatedAt: *d.EndedAt,
		}
		transactions = append(transactions, reversed.fields(d.ID))
	}
	return fields{
		"id":                         d.ID,
		"object":                     "dispute",
		"amount":                     d.Amount,
		"balance_transactions":       transactions,
		"charge":                     chargeOf(d.PaymentIntent),
		"created":                    d.CreatedAt.Unix(),
		"currency":                   d.Currency,
		"enhanced_eligibility_types": []any{},
		"evidence":                   fields{"enhanced_evidence": fields{}},
		"evidence_details": fields{
			"due_by": nil, "enhanced_eligibility": fields{}, "has_evidence": false, "past_due": false,
			"submission_count": 0,
		},
		"is_charge_refundable": d.Status == "won",
		"livemode":             d.Livemode,
		"metadata":             fields{},
		"payment_intent":       d.PaymentIntent,
		"reason":               "fraudulent",
		"status":               d.Status,
	}
}

// dispute opens a dispute of a payment if it has none, and ends it if the state is won or lost. The amount 0 stands for
// what is not refunded, or for all if nothing is left. The error is [pgx.ErrNoRows] if the payment's dispute is open
// already, or has ended. The caller has locked the payment.
func (s *Simulator) dispute(
	ctx context.Context, tx pgx.Tx, of owner, intent, state string, amount int64,
) (d dispute, err error) {
	var open bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM stripesim.disputes WHERE payment_intent = $1 AND status = 'needs_response')`,
		intent).Scan(&open)
	if err == nil && (!open || state == "open") {
		d, err = s.openDispute(ctx, tx, of, intent, amount)
	}
	if err == nil && state != "open" {
		d, err = s.endDispute(ctx, tx, intent, state)
	}
	return d, err
}

// openDispute opens a dispute. The error is [pgx.ErrNoRows] if the payment has one.
func (s *Simulator) openDispute(
	ctx context.Context, tx pgx.Tx, of owner, intent string, amount int64,
) (dispute, error) {
	// A customer may dispute a payment that is refunded, so the amount is not compared with the rest.
	d, err := readRow[dispute](ctx, tx, `
		INSERT INTO stripesim.disputes (id, payment_intent, amount, currency, account, livemode)
		SELECT $2, id, CASE WHEN $3::bigint > 0 THEN $3 ELSE coalesce(nullif(amount - (
				SELECT coalesce(sum(r.amount), 0)::bigint FROM stripesim.refunds r
				WHERE r.payment_intent = $1 AND r.status NOT IN ('failed', 'canceled')), 0), amount) END,
			currency, $4, $5
		FROM stripesim.payment_intents WHERE id = $1 AND amount >= $3
		ON CONFLICT DO NOTHING RETURNING *`, intent, newID("dp_"), amount, of.Account, of.Livemode)
	if err != nil {
		return dispute{}, err
	}
	if err := book(ctx, tx, "dispute", d.ID, intent, -d.Amount, d.Currency); err != nil {
		return dispute{}, err
	}
	if err := s.record(ctx, tx, "charge.dispute.created", d.owner, d.fields(), nil); err != nil {
		return dispute{}, err
	}
	return d, s.record(ctx, tx, "charge.dispute.funds_withdrawn", d.owner, d.fields(), nil)
}

func (s *Simulator) endDispute(ctx context.Context, tx pgx.Tx, intent, status string) (dispute, error) {
	d, err := readRow[dispute](ctx, tx, `
		UPDATE stripesim.disputes SET status = $2, ended_at = clock_timestamp()
		WHERE payment_intent = $1 AND status = 'needs_response' RETURNING *`, intent, status)
	if err != nil {
		return dispute{}, err
	}
	if status == "won" {
		if err := book(ctx, tx, "dispute_reversal", d.ID, intent, d.Amount, d.Currency); err != nil {
			return dispute{}, err
		}
		if err := s.record(ctx, tx, "charge.dispute.funds_reinstated", d.owner, d.fields(), nil); err != nil {
			return dispute{}, err
		}
	}
	return d, s.record(ctx, tx, "charge.dispute.closed", d.owner, d.fields(), nil)
}
