package stripesim

import (
	"context"
	"database/sql"
	"errors"
)

// pay completes an open session with a captured payment, and records the events. The error is [sql.ErrNoRows] if the
// session is not open: exactly one of two concurrent statements ends a session, because both lock its row. While the
// knob sessions is complete_unpaid, the payment is captured later.
func (s *Simulator) pay(ctx context.Context, id string) (session, error) {
	var row session
	err := s.transact(ctx, func(tx *sql.Tx) (err error) {
		row, err = scanSession(tx.QueryRowContext(ctx, `
			UPDATE stripesim.sessions SET status = 'complete', payment_intent = $2, unpaid = $3
			WHERE id = $1 AND status = 'open' AND expires_at > clock_timestamp()
			RETURNING `+sessionColumns, id, newID("pi_"), s.knobs.get().Sessions == "complete_unpaid"))
		if err != nil {
			return err
		}
		if !row.unpaid {
			err = s.capture(ctx, tx, row)
		}
		if err != nil {
			return err
		}
		return s.record(ctx, tx, "checkout.session.completed", row.owner, s.object(row), nil)
	})
	wake(s.wakeWebhook)
	return row, err
}

// capture captures the payment of a complete session.
func (s *Simulator) capture(ctx context.Context, tx *sql.Tx, row session) error {
	intent := row.paymentIntent.String
	_, err := tx.ExecContext(ctx, `INSERT INTO stripesim.payment_intents (id, session_id, amount, currency) VALUES ($1, $2, $3, $4)`,
		intent, row.id, row.amount, row.currency)
	if err != nil {
		return err
	}
	if err := book(ctx, tx, "charge", chargeOf(intent), intent, row.amount, row.currency); err != nil {
		return err
	}
	return s.recordCharge(ctx, tx, "charge.succeeded", row.owner, intent, nil)
}

// captureUnpaid captures the payments of sessions that are complete and not paid, unless the knob says that they stay so.
func (s *Simulator) captureUnpaid(ctx context.Context) error {
	ids, err := s.strings(ctx, `SELECT id FROM stripesim.sessions WHERE unpaid ORDER BY seq LIMIT 1000`)
	if err != nil || s.knobs.get().Sessions == "complete_unpaid" {
		return err
	}
	for _, id := range ids {
		err := s.transact(ctx, func(tx *sql.Tx) error {
			row, err := scanSession(tx.QueryRowContext(ctx, `
				UPDATE stripesim.sessions SET unpaid = false WHERE id = $1 AND unpaid RETURNING `+sessionColumns, id))
			if err != nil {
				return err
			}
			if err := s.capture(ctx, tx, row); err != nil {
				return err
			}
			return s.record(ctx, tx, "checkout.session.async_payment_succeeded", row.owner, s.object(row), nil)
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

// askBank makes the customer's bank confirm the payment of an open session after [Config.BankDelay]. Until then the
// session is open, and may be expired or paid. A repeated call has no effect.
func (s *Simulator) askBank(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `
		UPDATE stripesim.sessions SET bank_pays_at = clock_timestamp() + $2 * interval '1 microsecond'
		WHERE id = $1 AND status = 'open' AND bank_pays_at IS NULL`, id, s.cfg.BankDelay.Microseconds())
	return err
}

// confirmBankPayments pays the sessions whose banks confirm the payment now.
func (s *Simulator) confirmBankPayments(ctx context.Context) error {
	ids, err := s.strings(ctx, `
		SELECT id FROM stripesim.sessions WHERE status = 'open' AND bank_pays_at <= clock_timestamp() ORDER BY bank_pays_at LIMIT 1000`)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := s.pay(ctx, id); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return nil
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
	rows, err := s.db.QueryContext(ctx, `
		SELECT coalesce(s.client_reference_id, ''), s.id, s.status, CASE WHEN p.id IS NULL THEN 'unpaid' ELSE 'paid' END,
			s.amount_total, s.currency, p.id, coalesce(p.amount, 0),
			(SELECT coalesce(sum(r.amount), 0)::bigint FROM stripesim.refunds r
			 WHERE r.payment_intent = p.id AND r.status = 'succeeded'),
			coalesce((SELECT d.amount FROM stripesim.disputes d WHERE d.payment_intent = p.id AND d.status <> 'won'), 0)
		FROM stripesim.sessions s LEFT JOIN stripesim.payment_intents p ON p.session_id = s.id
		ORDER BY s.created_at, s.id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := []Payment{}
	for rows.Next() {
		var p Payment
		err := rows.Scan(&p.ClientReferenceID, &p.SessionID, &p.Status, &p.PaymentStatus, &p.AmountCents, &p.Currency,
			&p.PaymentIntent, &p.CapturedCents, &p.RefundedCents, &p.DisputedCents)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, rows.Err()
}
