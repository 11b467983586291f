package payment

import (
	"context"
	_ "embed"
	"fmt"
)

// ConfirmKind is the kind of the tasks that settle attempts for which somebody waits: a customer who has paid, or who has
// come back from the checkout. The id of a task is the id of an order. These tasks have a queue and a worker of their own,
// so they never wait for the polls of unpaid checkouts, however many there are. What owes such a task also owes one of
// [SettleKind], because the next check of the attempt, at which that task is due, is earlier now.
const ConfirmKind = "payment.confirm"

// The statements of the checks that somebody waits for.
var (
	//go:embed pending_asked.sql
	pendingAskedSQL string
	//go:embed left_asked.sql
	leftAskedSQL string
	//go:embed answered.sql
	answeredSQL string
)

// class returns the class of the calls about an attempt.
func (a taken) class() Class {
	switch {
	case a.AskedAt != nil:
		return ClassConfirm
	case a.Closing || a.State == Closed:
		return ClassExpire
	default:
		return ClassPoll
	}
}

// confirm returns the session of an attempt that somebody waits for. It asks for the session first, because its customer
// has most likely paid: the provider would refuse to expire it.
func (s *Service) confirm(ctx context.Context, a taken) (Session, error) {
	current, err := s.provider.Retrieve(ctx, ClassConfirm, a.SessionID)
	if err != nil || current.Paid || current.Expired || !a.Closing && a.State != Closed {
		return current, err
	}
	expired, err := s.provider.Expire(ctx, a.SessionID)
	if isClass(err, Refused) { // paid meanwhile: the next check finds it
		return current, nil
	}
	return expired, err
}

// answered stores that the provider has answered for an attempt that was taken, and that the attempt goes on.
func (s *Store) answered(ctx context.Context, a taken) error {
	if err := s.db.WithContext(ctx).Exec(answeredSQL, a.ID, a.AskedAt, a.NextCheck).Error; err != nil {
		return fmt.Errorf("store that the provider has answered for attempt %s: %w", a.ID, err)
	}
	return nil
}
