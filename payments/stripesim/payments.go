package stripesim

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// pay completes an open session with a captured payment, and records the events. The error is [pgx.ErrNoRows] if the
// session is not open: exactly one of two concurrent statements ends a session, because both lock its row. While the
// knob sessions is complete_unpaid, the payment is captured later.
func (s *Simulator) pay(ctx context.Context, tx pgx.Tx, id string) (session, error) {
	row, err := readRow[session](ctx, tx, `
		UPDATE stripesim.sessions SET status = 'complete', payment_intent = $2, unpaid = $3
		WHERE id = $1 AND status = 'open' AND expires_at > clock_timestamp() RETURNING *`,
		id, newID("pi_"), s.knobs.get().Sessions == "complete_unpaid")
	if err != nil {
		return session{}, err
	}
	if !row.Unpaid {
		if err := s.capture(ctx, tx, row); err != nil {
			return session{}, err
		}
	}
	return row, s.record(ctx, tx, "checkout.session.completed", row.owner, s.object(row), nil)
}

// capture captures the payment of a complete session.
func (s *Simulator) capture(ctx context.Context, tx pgx.Tx, row session) error {
	intent := *row.PaymentIntent
	_, err := tx.Exec(ctx, `
		INSERT INTO stripesim.payment_intents (id, session_id, amount, currency) VALUES ($1, $2, $3, $4)`,
		intent, row.ID, row.AmountTotal, row.Currency)
	if err != nil {
		return err
	}
	if err := book(ctx, tx, "charge", chargeOf(intent), intent, row.AmountTotal, row.Currency); err != nil {
		return err
	}
	return s.recordCharge(ctx, tx, "charge.succeeded", row.owner, intent, nil)
}

// captureUnpaid captures the payments of sessions that are complete and not paid, unless the knob says that they stay
// so.
func (s *Simulator) captureUnpaid(ctx context.Context) error {
	return s.forEach(ctx, `SELECT id FROM stripesim.sessions WHERE unpaid ORDER BY seq LIMIT 1000`,
		func(tx pgx.Tx, id string) error {
			// The knob is read after the session, so the money never comes as an earlier setting said.
			if s.knobs.get().Sessions == "complete_unpaid" {
				return nil
			}
			row, err := readRow[session](ctx, tx, `
				UPDATE stripesim.sessions SET unpaid = false WHERE id = $1 AND unpaid RETURNING *`, id)
			if err != nil {
				return err
			}
			if err := s.capture(ctx, tx, row); err != nil {
				return err
			}
			return s.record(ctx, tx, "checkout.session.async_payment_succeeded", row.owner, s.object(row), nil)
		})
}

// askBank makes the customer's bank confirm the payment of an open session after [Config.BankDelay]. Until then the
// session is open, and may be expired or paid. A repeated call has no effect.
func (s *Simulator) askBank(ctx context.Context, id string) error {
	_, err := s.db.Exec(ctx, `
		UPDATE stripesim.sessions SET bank_pays_at = clock_timestamp() + $2::interval
		WHERE id = $1 AND status = 'open' AND bank_pays_at IS NULL`, id, s.cfg.BankDelay)
	return err
}

// confirmBankPayments pays the sessions whose banks confirm the payment now.
func (s *Simulator) confirmBankPayments(ctx context.Context) error {
	return s.forEach(ctx, `
		SELECT id FROM stripesim.sessions WHERE status = 'open' AND bank_pays_at <= clock_timestamp()
		ORDER BY bank_pays_at LIMIT 1000`,
		func(tx pgx.Tx, id string) error {
			_, err := s.pay(ctx, tx, id)
			return err
		})
}

// Payment is a session with its money, for the ledger.
type Payment struct {
	ClientReferenceID string  `json:"client_reference_id"`
	SessionID         string  `json:"session_id"`
	Status            string  `json:"status"`
	PaymentStatus     string  `json:"payment_status"`
	AmountCents       int64   `json:"amount_cents"`
	Currency          string  `json:"currency"`
	PaymentIntent     *string `json:"payment_intent,omitempty"`
	CapturedCents     int64   `json:"captured_cents"`
	RefundedCents     int64   `json:"refunded_cents"` // of refunds that have succeeded
	DisputedCents     int64   `json:"disputed_cents"` // of a dispute that is not won
}

// Ledger returns all sessions in the order of their creation.
func (s *Simulator) Ledger(ctx context.Context) ([]Payment, error) {
	return readRows[Payment](ctx, s.db, `
		SELECT coalesce(s.client_reference_id, '') AS client_reference_id, s.id AS session_id, s.status,
			CASE WHEN p.id IS NULL THEN 'unpaid' ELSE 'paid' END AS payment_status,
			s.amount_total AS amount_cents, s.currency, p.id AS payment_intent,
			coalesce(p.amount, 0) AS captured_cents,
			(SELECT coalesce(sum(r.amount), 0)::bigint FROM stripesim.refunds r
			 WHERE r.payment_intent = p.id AND r.status = 'succeeded') AS refunded_cents,
			coalesce((SELECT d.amount FROM stripesim.disputes d
			 WHERE d.payment_intent = p.id AND d.status <> 'won'), 0) AS disputed_cents
		FROM stripesim.sessions s LEFT JOIN stripesim.payment_intents p ON p.session_id = s.id
		ORDER BY s.created_at, s.id`)
}
