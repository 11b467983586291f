package payment

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/reconcile"
)

// settle asks the provider about those attempts of the orders that are due for a check: first about those that somebody
// waits for, then about those whose orders hold stock after the deadline, then about the others. An attempt that cannot be
// settled now is checked again later, without end. The error is one of the database.
func (s *Service) settle(ctx context.Context, orders []uuid.UUID, actor reconcile.Actor) error {
	attempts, err := s.store.take(ctx, orders)
	if err != nil {
		return err
	}
	slices.SortStableFunc(attempts, func(a, b taken) int {
		return cmp.Compare(slices.Index(classes, a.class()), slices.Index(classes, b.class()))
	})
	s.each(ctx, len(attempts), func(i int) {
		s.logFailure(ctx, "attempt", attempts[i].ID, s.settleOne(ctx, attempts[i], actor))
	})
	return nil
}

// each calls do with the numbers 0 to n-1 of rows, at most [BatchSize] calls at the same time. It recovers from a panic of
// do, and logs it, because the worker recovers from panics only in its own goroutine. In another goroutine a panic would
// end the process, with the workers of all kinds.
func (s *Service) each(ctx context.Context, n int, do func(i int)) {
	var calls errgroup.Group
	calls.SetLimit(BatchSize)
	for i := range n {
		calls.Go(func() error {
			defer func() {
				if p := recover(); p != nil {
					s.log.ErrorContext(ctx, "the check of a payment panicked; it is tried again", "panic", p, "stack", string(debug.Stack()))
				}
			}()
			do(i)
			return nil
		})
	}
	_ = calls.Wait() // no call returns an error
}

// logFailure logs why a row could not be settled. [Calls] logs once when the provider cannot be used, and the guard why a
// call may not be made, so logFailure logs no such errors. Nor does it log that there are too many calls: metrics count them.
// A provider that works and refuses the call, for example because it does not know the session, is logged only here.
func (s *Service) logFailure(ctx context.Context, what string, id uuid.UUID, err error) {
	if isClass(err, NoAnswer, Busy, Denied, Blocked) {
		return
	}
	if err != nil {
		s.log.WarnContext(ctx, "a payment could not be settled; it is tried again", what, id, "error", err)
	}
}

// settleOne settles one attempt that take.sql has taken. After an error the attempt stays due for the check that take.sql
// has stored, some seconds later.
func (s *Service) settleOne(ctx context.Context, a taken, actor reconcile.Actor) error {
	if a.SessionID == "" { // nobody can pay a session whose URL the shop does not know
		if a.State == Creating && (a.Closing || a.Stale) {
			return s.close(ctx, a.ID, a.State, actor)
		}
		return s.store.answered(ctx, a)
	}
	current, err := s.ask(ctx, a)
	if isClass(err, Missing) && (a.State != Open || a.OrderEnded) && a.class() != ClassExpire {
		// A key of another account gets this answer, too. Only a call that writes is not made with such a key.
		current, err = s.provider.Expire(ctx, a.SessionID)
	}
	switch {
	case a.State != Open && (isClass(err, Missing) || err == nil && current.Attempt != a.ID.String()):
		s.log.WarnContext(ctx, "the payment provider does not know the session of an attempt that is not open, or has it for another attempt; the shop asks for it no more",
			"attempt", a.ID, "session", a.SessionID)
		return s.store.forget(ctx, a.ID, a.SessionID)
	case a.OrderEnded && isClass(err, Missing): // for example after a restore of the provider
		// Before the order has ended, a process whose key is of another account could make a payment late.
		s.log.WarnContext(ctx, "the payment provider does not know the session of an ended order's attempt; the attempt is closed",
			"attempt", a.ID, "session", a.SessionID)
		return s.close(ctx, a.ID, a.State, actor)
	case err != nil:
		return err
	case current.Attempt != a.ID.String():
		return fmt.Errorf("session %s at the payment provider belongs to attempt %q, want %s", current.ID, current.Attempt, a.ID)
	case current.Paid:
		return s.succeed(ctx, a.ID, current, actor)
	case current.Expired && a.State == Closed:
		return s.store.endChecks(ctx, a.ID)
	case current.Expired:
		return s.close(ctx, a.ID, a.State, actor)
	}
	return s.store.answered(ctx, a)
}

// ask returns the session of an attempt. If the attempt is closing, or was closed, ask asks the provider to expire the
// session, and its answer is final. The provider refuses if the session is not open, for example because the customer has
// paid before; then the session's own state decides. Without an answer, ask makes no other call.
func (s *Service) ask(ctx context.Context, a taken) (Session, error) {
	switch a.class() {
	case ClassConfirm:
		return s.confirm(ctx, a)
	case ClassExpire:
		expired, err := s.provider.Expire(ctx, a.SessionID)
		if !isClass(err, Refused, Missing) {
			return expired, err
		}
		return s.provider.Retrieve(ctx, ClassExpire, a.SessionID)
	default:
		return s.provider.Retrieve(ctx, ClassPoll, a.SessionID)
	}
}

// close closes an attempt and has its order cancelled when that is due. It does nothing if the attempt is not in the
// given state any more.
func (s *Service) close(ctx context.Context, id uuid.UUID, state State, actor reconcile.Actor) error {
	done, err := s.store.close(ctx, id, state, actor)
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
func (s *Service) succeed(ctx context.Context, id uuid.UUID, paid Session, actor reconcile.Actor) error {
	refund := keyset.NewID()
	done, err := s.store.succeed(ctx, id, paid, refund, actor)
	if err != nil || done == nil {
		return err
	}
	s.metrics.ended.WithLabelValues(string(Succeeded)).Inc()
	if done.RefundReason == "" {
		s.metrics.paid.Inc()
		s.log.InfoContext(ctx, "order paid at the payment provider", "attempt", id, "order_id", done.OrderID)
	} else {
		s.metrics.refunds.WithLabelValues(string(Owed)).Inc()
		s.metrics.owed.WithLabelValues(string(done.RefundReason)).Inc()
		s.log.WarnContext(ctx, "a payment did not pay its order and is refunded",
			"attempt", id, "order_id", done.OrderID, "refund", refund, "reason", done.RefundReason)
		s.publish.Refund.Publish(ctx, delay.At(refund.String(), done.RefundDueAt, done.ServerTime))
	}
	s.announce(ctx, done)
	return nil
}

// announce notifies the customer of an attempt that has ended. If its order was released, announce also publishes the
// task that cancels the order.
func (s *Service) announce(ctx context.Context, done *settlement) {
	if done.CancelDueAt != nil {
		s.publish.Cancel.Publish(ctx, delay.At(done.OrderID.String(), *done.CancelDueAt, done.ServerTime))
	}
	s.notify.Notify(done.CustomerID.String(), done.OrderID.String())
}
