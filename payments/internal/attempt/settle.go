package attempt

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

//go:embed take.sql
var takeSQL string

const (
	// answeredSQL moves the next check of an attempt that goes on: a webhook, or the customer who comes back, tells of a
	// payment sooner. It does nothing if somebody has made the attempt due meanwhile, or if it is closing: then it is
	// asked for until it has ended.
	answeredSQL = `
		UPDATE payment_attempts SET next_check = least(closes_at, now() + interval '5 min' * (0.9 + random() * 0.2))
		WHERE id = $1 AND next_check = $2 AND closes_at > now()`
	// checkedSQL deletes the outbox row of the task that settles an attempt, because the check that tell.sql owes is
	// made. If the relay has the row, the task will find nothing to do.
	checkedSQL = `
		DELETE FROM outbox WHERE (kind, task_id) IN (
			SELECT kind, task_id FROM outbox WHERE kind = $1 AND task_id = $2 FOR UPDATE SKIP LOCKED)`
)

// taken is an attempt that is taken for a check: no other worker takes it before its next check.
type taken struct {
	ID         uuid.UUID
	OrderID    uuid.UUID
	State      State
	SessionID  string    // "" if the provider has not answered with a session
	Closing    bool      // reports whether the provider is to be asked to expire it
	Stale      bool      // reports whether it is older than maxCreating
	Told       bool      // reports whether an event or its customer has just told that its session may have ended
	OrderEnded bool      // reports whether the order is paid or cancelled
	NextCheck  time.Time // when it is checked again unless the provider answers
}

// settle asks the provider about those of the attempts that are due for a check. An attempt that cannot be
// settled now is checked again later, without end. The error is one of the database.
func (s *Service) settle(ctx context.Context, ids []uuid.UUID, actor timeout.Caller) error {
	var attempts []taken
	if _, err := postgres.Scan(ctx, s.db, &attempts, takeSQL, ids, maxCreating.Microseconds()); err != nil {
		return fmt.Errorf("take payment attempts: %w", err)
	}
	check.Each(ctx, s.log, len(attempts), func(i int) {
		a := attempts[i]
		_, step, err := s.settleOne(ctx, a, a.class(), order.Actor(actor))
		if err == nil && step == Wait {
			err = s.db.WithContext(ctx).Exec(answeredSQL, a.ID, a.NextCheck).Error
		}
		check.LogFailure(ctx, s.log, "attempt", a.ID, err)
	})
	return nil
}

// settleNow settles an attempt that tell.sql has taken, because its customer has most likely paid. If
// the provider cannot decide now, the worker asks again when the lease ends.
func (s *Service) settleNow(ctx context.Context, a taken) {
	_, _, err := s.settleOne(ctx, a, provider.ClassConfirm, order.Provider)
	check.LogFailure(ctx, s.log, "attempt", a.ID, err)
}

// settleOne asks the provider about an attempt and takes the step that follows. After an error the attempt stays due
// for its next check.
func (s *Service) settleOne(
	ctx context.Context, a taken, class provider.Class, actor order.Actor,
) (answer Answer, step Step, err error) {
	answer, session, err := s.ask(ctx, a, class)
	if err != nil {
		return answer, Wait, err
	}
	step = a.step(answer)
	if answer == UnknownSession {
		s.log.WarnContext(ctx, "the payment provider does not know the session of an attempt, or has it for another attempt",
			"attempt", a.ID, "session", a.SessionID, "state", a.State, "order_ended", a.OrderEnded)
	}
	switch step {
	case Close:
		err = s.close(ctx, a.ID, a.OrderID, a.State, actor)
	case Succeed:
		err = s.succeed(ctx, a.ID, a.OrderID, session, actor)
	case Finish:
		err = s.db.WithContext(ctx).Exec(
			`UPDATE payment_attempts SET next_check = NULL WHERE id = $1 AND state = 'closed' AND next_check = $2`,
			a.ID, a.NextCheck).Error
	}
	return answer, step, err
}

// class returns the class of the calls with which the worker asks about an attempt.
func (a taken) class() provider.Class {
	switch {
	case a.Closing || a.State == Closed:
		return provider.ClassExpire
	case a.Told:
		return provider.ClassConfirm
	default:
		return provider.ClassPoll
	}
}

// ask asks the provider about the session of an attempt. In the class expire it asks the provider to expire the
// session first. The provider refuses that unless the session is open, for example because the customer has paid
// before: then the session's own state decides.
func (s *Service) ask(
	ctx context.Context, a taken, class provider.Class,
) (answer Answer, session provider.Session, err error) {
	if a.SessionID == "" { // nobody can pay a session whose URL the shop does not know
		return NoSession, session, nil
	}
	if class == provider.ClassExpire {
		session, err = s.provider.Expire(ctx, a.SessionID)
	}
	if class != provider.ClassExpire || provider.IsClass(err, provider.Refused, provider.Missing) {
		session, err = s.provider.Retrieve(ctx, class, a.SessionID)
	}
	switch {
	case provider.IsClass(err, provider.Missing):
		// A key of another account gets this answer, too. The guard of calls that write knows such a key.
		return UnknownSession, session, s.provider.Allowed(ctx, provider.OpExpire)
	case err != nil:
		return Undecided, session, err
	case session.Attempt != a.ID.String():
		return UnknownSession, session, nil
	case session.Paid:
		return Paid, session, nil
	case session.Expired:
		return Expired, session, nil
	default:
		return Undecided, session, nil
	}
}

// locked is an attempt whose row, and whose order's row, are locked.
type locked struct {
	State       State
	AmountCents int64
	Currency    string
}

// isLive reports whether the attempt holds its order.
func (a locked) isLive() bool { return a.State == Creating || a.State == Open }

// end changes an attempt and its order in one transaction. decide changes the order, and queues the statements that
// write the attempt, and what follows from its end. It reports whether it has ended the attempt: end does nothing
// otherwise.
func (s *Service) end(
	ctx context.Context, id, orderID uuid.UUID, decide func(tx *postgres.Tx, o *order.Order, a locked) bool,
) (ended bool, err error) {
	var c order.Change
	err = postgres.Transact(ctx, s.db, func(tx *postgres.Tx) (err error) {
		var a locked
		c, err = s.orders.Update(ctx, tx, orderID, func(o *order.Order) error {
			if ended = decide(tx, o, a); ended {
				tx.Queue(checkedSQL, Kind, id.String())
			}
			return nil
		}, func(tx *postgres.Tx) {
			const lock = `SELECT state, amount_cents, currency FROM payment_attempts WHERE id = $1 FOR UPDATE`
			tx.Queue(lock, id).QueryRow(func(row pgx.Row) error {
				return row.Scan(&a.State, &a.AmountCents, &a.Currency)
			})
		})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("end payment attempt %s: %w", id, err)
	}
	if ended {
		s.orders.Announce(ctx, c)
		if !c.Changed {
			s.orders.Notify(c.CustomerID.String(), orderID.String())
		}
	}
	return ended, nil
}

// close closes an attempt that its customer can no longer pay, and releases its order, whose task cancels it when it is
// due. It does nothing if the attempt is not in the given state any more.
func (s *Service) close(ctx context.Context, id, orderID uuid.UUID, state State, actor order.Actor) error {
	closed, err := s.end(ctx, id, orderID, func(tx *postgres.Tx, o *order.Order, a locked) bool {
		if a.State != state {
			return false
		}
		tx.Queue(`
			UPDATE payment_attempts
			SET state = 'closed', ended_at = $2, next_check = NULL, checkout_url = NULL WHERE id = $1`,
			id, o.ServerTime)
		o.Release(actor)
		return true
	})
	if closed {
		s.metrics.ended.WithLabelValues(string(Closed)).Inc()
		s.log.InfoContext(ctx, "payment attempt closed", "attempt", id, "order_id", orderID, "was", state)
	}
	return err
}

// succeed stores the success of an attempt, and owes a refund of the money if the success does not pay the order. It
// does nothing if the success is stored already.
func (s *Service) succeed(
	ctx context.Context, id, orderID uuid.UUID, paid provider.Session, actor order.Actor,
) error {
	refundID := keyset.NewID()
	var reason refund.Reason
	stored, err := s.end(ctx, id, orderID, func(tx *postgres.Tx, o *order.Order, a locked) bool {
		if a.State == Succeeded {
			return false
		}
		reason = apply(o, a, paid, actor)
		tx.Queue(`
			UPDATE payment_attempts
			SET state = 'succeeded', applied = $2, session_id = $3, payment_intent = $4, captured_cents = $5,
			    checkout_url = NULL, ended_at = $6, next_check = NULL WHERE id = $1`,
			id, reason == "", paid.ID, paid.Intent, paid.AmountCents, o.ServerTime)
		if reason != "" {
			tx.Queue(`
				INSERT INTO refunds (id, attempt_id, reason, amount_cents, created_at, next_check)
				VALUES ($1, $2, $3, $4, $5, $5)`, refundID, id, reason, paid.AmountCents, o.ServerTime)
			tx.Queue(delay.OweSQL, refund.Kind, refundID.String(), o.ServerTime)
		}
		return true
	})
	switch {
	case err != nil || !stored:
		return err
	case reason == "":
		s.log.InfoContext(ctx, "order paid at the payment provider", "attempt", id, "order_id", orderID)
	default:
		s.log.WarnContext(ctx, "a payment did not pay its order and is refunded",
			"attempt", id, "order_id", orderID, "refund", refundID, "reason", reason)
		s.metrics.owed.WithLabelValues(string(reason)).Inc()
	}
	s.metrics.ended.WithLabelValues(string(Succeeded)).Inc()
	return nil
}

// apply has a success pay its order, or returns the reason why the money is returned. It then releases the order if
// this attempt holds it.
//
// A closed attempt that succeeds while its order is still pending is late, as far as the shop knows then. If another
// attempt pays the order afterwards, the customer has paid twice: what reads the reason sees that.
func apply(o *order.Order, a locked, paid provider.Session, actor order.Actor) (reason refund.Reason) {
	switch {
	case paid.AmountCents != a.AmountCents || paid.Currency != a.Currency:
		reason = refund.Mismatch
	case o.Status == order.Paid:
		reason = refund.Duplicate
	case a.isLive() && o.PayHeld():
		return ""
	default:
		reason = refund.Late
	}
	if a.isLive() {
		o.Release(actor)
	}
	return reason
}
