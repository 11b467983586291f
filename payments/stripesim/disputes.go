package stripesim

import (
	"context"
	"database/sql"
	"time"
)

// dispute is a row of the table disputes.
type dispute struct {
	id        string
	intent    string
	amount    int64
	currency  string
	status    string
	createdAt time.Time
	endedAt   sql.NullTime
	owner     owner
}

const disputeColumns = `id, payment_intent, amount, currency, status, created_at, ended_at, account, livemode`

func scanDispute(row interface{ Scan(...any) error }) (d dispute, err error) {
	err = row.Scan(&d.id, &d.intent, &d.amount, &d.currency, &d.status, &d.createdAt, &d.endedAt, &d.owner.account, &d.owner.live)
	return d, err
}

// fields returns the dispute as the API answers it. See https://docs.stripe.com/api/disputes/object.
func (d dispute) fields() fields {
	withdrawn := balanceTransaction{
		id: balanceID("dispute", d.id), category: "dispute", amount: -d.amount, currency: d.currency, createdAt: d.createdAt,
	}
	transactions := []fields{withdrawn.fields(d.id)}
	if d.status == "won" {
		reversed := balanceTransaction{
			id: balanceID("dispute_reversal", d.id), category: "dispute_reversal", amount: d.amount, currency: d.currency,
			createdAt: d.endedAt.Time,
		}
		transactions = append(transactions, reversed.fields(d.id))
	}
	return fields{
		"id":                         d.id,
		"object":                     "dispute",
		"amount":                     d.amount,
		"balance_transactions":       transactions,
		"charge":                     chargeOf(d.intent),
		"created":                    d.createdAt.Unix(),
		"currency":                   d.currency,
		"enhanced_eligibility_types": []any{},
		"evidence":                   fields{"enhanced_evidence": fields{}},
		"evidence_details": fields{
			"due_by": nil, "enhanced_eligibility": fields{}, "has_evidence": false, "past_due": false, "submission_count": 0,
		},
		"is_charge_refundable": d.status == "won",
		"livemode":             d.owner.live,
		"metadata":             fields{},
		"payment_intent":       d.intent,
		"reason":               "fraudulent",
		"status":               d.status,
	}
}

func findDispute(ctx context.Context, tx *sql.Tx, of owner, id string) (dispute, error) {
	return scanDispute(tx.QueryRowContext(ctx, `
		SELECT `+disputeColumns+` FROM stripesim.disputes WHERE id = $1 AND account = $2 AND livemode = $3`, id, of.account, of.live))
}

// dispute opens a dispute of a payment if it has none, and ends it if the state is won or lost. The amount 0 stands for
// what is not refunded, or for all if nothing is left. The error is [sql.ErrNoRows] if the payment's dispute is open already, or has ended. The caller
// has locked the payment.
func (s *Simulator) dispute(ctx context.Context, tx *sql.Tx, of owner, intent, state string, amount int64) (dispute, error) {
	var open bool
	err := tx.QueryRowContext(ctx, `
		SELECT EXISTS (SELECT FROM stripesim.disputes WHERE payment_intent = $1 AND status = 'needs_response')`, intent).Scan(&open)
	if err != nil {
		return dispute{}, err
	}
	var d dispute
	if !open {
		if d, err = s.openDispute(ctx, tx, of, intent, amount); err != nil {
			return dispute{}, err
		}
	}
	switch {
	case state == "open" && open:
		return dispute{}, sql.ErrNoRows
	case state == "open":
		return d, nil
	default:
		return s.endDispute(ctx, tx, intent, state)
	}
}

func (s *Simulator) openDispute(ctx context.Context, tx *sql.Tx, of owner, intent string, amount int64) (dispute, error) {
	// A customer may dispute a payment that is refunded, so the amount is not compared with the rest.
	d, err := scanDispute(tx.QueryRowContext(ctx, `
		INSERT INTO stripesim.disputes (id, payment_intent, amount, currency, account, livemode)
		SELECT $2, id, CASE WHEN $3::bigint > 0 THEN $3 ELSE coalesce(nullif(amount - (
				SELECT coalesce(sum(r.amount), 0)::bigint FROM stripesim.refunds r
				WHERE r.payment_intent = $1 AND r.status NOT IN ('failed', 'canceled')), 0), amount) END,
			currency, $4, $5
		FROM stripesim.payment_intents WHERE id = $1 AND amount >= $3
		ON CONFLICT DO NOTHING RETURNING `+disputeColumns, intent, newID("dp_"), amount, of.account, of.live))
	if err != nil {
		return dispute{}, err
	}
	if err := book(ctx, tx, "dispute", d.id, intent, -d.amount, d.currency); err != nil {
		return dispute{}, err
	}
	if err := s.record(ctx, tx, "charge.dispute.created", d.owner, d.fields(), nil); err != nil {
		return dispute{}, err
	}
	return d, s.record(ctx, tx, "charge.dispute.funds_withdrawn", d.owner, d.fields(), nil)
}

func (s *Simulator) endDispute(ctx context.Context, tx *sql.Tx, intent, status string) (dispute, error) {
	d, err := scanDispute(tx.QueryRowContext(ctx, `
		UPDATE stripesim.disputes SET status = $2, ended_at = clock_timestamp()
		WHERE payment_intent = $1 AND status = 'needs_response' RETURNING `+disputeColumns, intent, status))
	if err != nil {
		return dispute{}, err
	}
	if status == "won" {
		if err := book(ctx, tx, "dispute_reversal", d.id, intent, d.amount, d.currency); err != nil {
			return dispute{}, err
		}
		if err := s.record(ctx, tx, "charge.dispute.funds_reinstated", d.owner, d.fields(), nil); err != nil {
			return dispute{}, err
		}
	}
	return d, s.record(ctx, tx, "charge.dispute.closed", d.owner, d.fields(), nil)
}
