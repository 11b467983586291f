package attempt

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

// Each step of an attempt is one statement, which is one round trip and one transaction.
var (
	//go:embed pending.sql
	pendingSQL string
	//go:embed take.sql
	takeSQL string
	//go:embed left.sql
	leftSQL string
	//go:embed answered.sql
	answeredSQL string
	//go:embed close.sql
	closeSQL string
	//go:embed succeed.sql
	succeedSQL string
)

// taken is an attempt that is taken for a check: no other worker takes it before its next check.
type taken struct {
	ID         uuid.UUID
	OrderID    uuid.UUID
	State      State
	SessionID  string    // "" if the provider has not answered with a session
	Closing    bool      // reports whether the provider is to be asked to expire it
	Stale      bool      // reports whether it is older than maxCreating
	Told       bool      // reports whether an event has told of its end, or its customer has just returned
	OrderEnded bool      // reports whether the order is paid or cancelled
	NextCheck  time.Time // when it is checked again unless the provider answers
}

// settlement is the row that close.sql and succeed.sql return: the order of the attempt, and what is due now.
type settlement struct {
	OrderID      uuid.UUID
	CustomerID   uuid.UUID
	RefundReason refund.Reason // why the success is refunded; "": it is not, or the attempt did not succeed
	RefundDueAt  time.Time     // when the refund is due, if there is one
	CancelDueAt  *time.Time    // when the order that was released is due to be cancelled; nil: it was not released
	ServerTime   time.Time
}

// settle asks the provider about those attempts of the orders that are due for a check. An attempt that cannot be
// settled now is checked again later, without end. The error is one of the database.
func (s *Service) settle(ctx context.Context, orders []uuid.UUID, actor reconcile.Actor) error {
	var attempts []taken
	if _, err := postgres.Scan(ctx, s.db, &attempts, takeSQL, orders, maxCreating.Microseconds()); err != nil {
		return fmt.Errorf("take payment attempts: %w", err)
	}
	check.Each(ctx, s.log, len(attempts), func(i int) {
		a := attempts[i]
		_, step, err := s.settleOne(ctx, a, a.class(), actor)
		if err == nil && step == Wait {
			err = s.db.WithContext(ctx).Exec(answeredSQL, a.ID, a.NextCheck).Error
		}
		check.LogFailure(ctx, s.log, "attempt", a.ID, err)
	})
	return nil
}

// settleNow settles an attempt that hear.sql or returned.sql has taken, because its customer has most likely paid. If
// the provider cannot decide now, the worker asks again when the lease ends.
func (s *Service) settleNow(ctx context.Context, a taken) {
	const byProvider reconcile.Actor = "provider"
	_, _, err := s.settleOne(ctx, a, provider.ClassConfirm, byProvider)
	check.LogFailure(ctx, s.log, "attempt", a.ID, err)
}

// settleOne asks the provider about an attempt and takes the step that follows. After an error the attempt stays due
// for its next check.
func (s *Service) settleOne(
	ctx context.Context, a taken, class provider.Class, actor reconcile.Actor,
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
		err = s.close(ctx, a.ID, a.State, actor)
	case Succeed:
		err = s.succeed(ctx, a.ID, session, actor)
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

// close closes an attempt and has its order cancelled when that is due. It does nothing if the attempt is not in the
// given state any more.
func (s *Service) close(ctx context.Context, id uuid.UUID, state State, actor reconcile.Actor) error {
	done, err := one[settlement](ctx, s.db, "close a payment attempt", closeSQL,
		id, state, s.tasks.RowKind(order.CancelKind), actor, Kind)
	if err != nil || done == nil {
		return err
	}
	s.metrics.ended.WithLabelValues(string(Closed)).Inc()
	s.log.InfoContext(ctx, "payment attempt closed", "attempt", id, "order_id", done.OrderID, "was", state)
	s.announce(ctx, done)
	return nil
}

// succeed stores the success of an attempt, and has the money returned if the success did not pay the order. It does
// nothing if the success is stored already.
func (s *Service) succeed(ctx context.Context, id uuid.UUID, paid provider.Session, actor reconcile.Actor) error {
	refundID := keyset.NewID()
	done, err := one[settlement](ctx, s.db, "store the success of a payment attempt", succeedSQL,
		id, paid.ID, paid.Intent, paid.AmountCents, paid.Currency, refundID,
		s.tasks.RowKind(order.CancelKind), s.tasks.RowKind(refund.Kind), actor, Kind)
	if err != nil || done == nil {
		return err
	}
	s.metrics.ended.WithLabelValues(string(Succeeded)).Inc()
	if done.RefundReason == "" {
		s.metrics.paid.Inc()
		s.log.InfoContext(ctx, "order paid at the payment provider", "attempt", id, "order_id", done.OrderID)
	} else {
		s.log.WarnContext(ctx, "a payment did not pay its order and is refunded",
			"attempt", id, "order_id", done.OrderID, "refund", refundID, "reason", done.RefundReason)
		s.refunds.Owed(ctx, refundID, done.RefundReason, done.RefundDueAt, done.ServerTime)
	}
	s.announce(ctx, done)
	return nil
}

// announce notifies the customer of an attempt that has ended. If its order was released, announce also publishes the
// task that cancels the order.
func (s *Service) announce(ctx context.Context, done *settlement) {
	if done.CancelDueAt != nil {
		s.cancels.Publish(ctx, delay.At(done.OrderID.String(), *done.CancelDueAt, done.ServerTime))
	}
	s.notify.Notify(done.CustomerID.String(), done.OrderID.String())
}
