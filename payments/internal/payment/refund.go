package payment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
)

// sendRefunds sends those of the refunds that are due to the provider, or asks whether the provider has confirmed them. A
// refund that cannot be sent now is sent again later, without end. The error is one of the database.
func (s *Service) sendRefunds(ctx context.Context, ids []uuid.UUID, _ reconcile.Actor) error {
	refunds, err := s.store.takeRefunds(ctx, ids)
	if err != nil {
		return err
	}
	each(ctx, len(refunds), s.log, func(i int) {
		logFailure(ctx, s.log, "refund", refunds[i].ID, s.sendRefund(ctx, refunds[i]))
	})
	return nil
}

// maxMissing is the age from which a refund fails if the provider does not know its payment. With a shorter time, a wrong key
// would have refunds fail before somebody can replace it; with a longer one, an operator would learn of it later.
const maxMissing = time.Hour

// sendRefund first asks the provider for the refunds of the payment, and sends one only if they return too little money.
// So it also counts a refund whose answer was lost, and one that an operator made at the provider.
func (s *Service) sendRefund(ctx context.Context, r takenRefund) error {
	known, err := s.provider.Refunds(ctx, r.PaymentIntent)
	if err != nil {
		return s.unknownPayment(ctx, r, err)
	}
	next, missing := r.progress(known)
	if missing > 0 {
		sent, err := s.provider.Refund(ctx, Return{
			Refund: r.ID.String(), Try: r.Try, Intent: r.PaymentIntent, AmountCents: missing, Key: fmt.Sprintf("%s-%d", r.ID, r.Try),
		})
		switch {
		case isClass(err, Replayed), causeIs(err, LowBalance):
			// The provider repeats this answer to the key. After a low balance it has executed nothing. After a stored error
			// it may still execute the call, but it returns no more than was paid, and the refund is of the whole payment.
			return s.moveRefund(ctx, r, refundStep{state: Owed, err: err.Error(), newKey: true})
		case isClass(err, Refused):
			if next, err = s.refused(ctx, r, missing, err); err != nil {
				return err
			}
		case err != nil:
			return s.unknownPayment(ctx, r, err)
		default:
			next, _ = r.progress(append([]ProviderRefund{sent}, known...))
		}
	}
	return s.moveRefund(ctx, r, next)
}

// unknownPayment has an old refund fail if an error says that the provider does not know its payment. It returns other
// errors. A key of another account gets such an error, too: with it, the process may not send the refund either.
func (s *Service) unknownPayment(ctx context.Context, r takenRefund, err error) error {
	if !isClass(err, Missing) {
		return err
	}
	if blocked := s.provider.allowed(ctx, opRefund); blocked != nil {
		return blocked
	}
	if r.State == Confirmed {
		s.log.WarnContext(ctx, "the payment provider does not know the payment of a refund that it has confirmed; if the refund fails after all, only the books tell",
			"refund", r.ID, "error", err)
		return s.moveRefund(ctx, r, refundStep{state: Confirmed, err: r.Error})
	}
	if !r.Old { // this is an answer: the next check is later
		return errors.Join(err, s.moveRefund(ctx, r, refundStep{state: r.State, err: r.Error}))
	}
	return s.moveRefund(ctx, r, refundStep{state: Failed, err: "the payment provider does not know the payment: " + err.Error()})
}

// refused returns the step of a refund that the provider refused for good: it failed, because a repeated call, with any
// key, would be refused as well. But if another refund of the payment was made meanwhile, less is missing than was sent.
func (s *Service) refused(ctx context.Context, r takenRefund, missing int64, refusal error) (refundStep, error) {
	known, err := s.provider.Refunds(ctx, r.PaymentIntent)
	if err != nil {
		return refundStep{}, err
	}
	step, left := r.progress(known)
	switch {
	case left == 0:
		return step, nil
	case left < missing:
		return refundStep{state: Owed, err: refusal.Error(), newKey: true}, nil
	}
	text := "refused"
	if e, ok := errors.AsType[*ProviderError](refusal); ok && e.Cause != "" {
		text += " (" + string(e.Cause) + ")"
	}
	return refundStep{state: Failed, err: text + ": " + refusal.Error()}, nil
}

// processing is the reason why most refunds wait. It tells an operator nothing.
const processing = "processing"

// progress compares a refund with the refunds of its payment at the provider. All of them count, because the refund is of
// the whole payment: also those that an operator made there, and those that the shop made before its database was restored.
// It returns the step that the refund takes if nothing more is sent, and the amount that must be sent. Nothing is sent for a
// refund that the provider has confirmed or that failed, even if its money is missing: an operator decides about it.
func (r takenRefund) progress(known []ProviderRefund) (step refundStep, missing int64) {
	var active, confirmed int64
	var id, waits, failure, failedByHand string // id: of the latest refund at the provider
	for _, k := range known {
		switch {
		case k.State != Failed:
			if id == "" {
				id = k.ID
			}
			active += k.AmountCents
			if k.State == Confirmed {
				confirmed += k.AmountCents
			} else if k.Reason != "" && k.Reason != processing {
				waits = "the payment provider has not returned the money yet: " + k.Reason
			}
		case k.Refund != r.ID.String():
			failedByHand = "a refund that was made at the payment provider failed: " + k.Reason
		case k.Try == r.Try: // not an earlier one
			failure = "the payment provider could not return the money: " + k.Reason
		}
	}
	switch {
	case confirmed >= r.AmountCents:
		return refundStep{state: Confirmed, providerID: id}, 0
	case r.State == Failed:
		return refundStep{state: Failed, err: r.Error}, 0
	case r.State == Confirmed:
		return refundStep{state: Failed, err: cmp.Or(failure, failedByHand, "the payment provider has less of the refund than it confirmed")}, 0
	case active >= r.AmountCents:
		return refundStep{state: Sent, providerID: id, err: waits}, 0
	case failure != "":
		return refundStep{state: Failed, err: failure}, 0
	default:
		return refundStep{state: Sent, providerID: id}, r.AmountCents - active
	}
}

// moveRefund stores a step of a refund, unless another session has moved the refund since it was taken.
func (s *Service) moveRefund(ctx context.Context, r takenRefund, step refundStep) error {
	changed, err := s.store.moveRefund(ctx, r, step)
	if err != nil {
		return err
	}
	if step.err != "" && step.err != r.Error {
		s.log.ErrorContext(ctx, "a refund did not succeed", "refund", r.ID, "order_id", r.OrderID, "state", step.state, "error", step.err)
	}
	if changed {
		s.metrics.refunds.WithLabelValues(string(step.state)).Inc()
		s.notify.Notify(r.CustomerID.String(), r.OrderID.String())
	}
	return nil
}

// RetryRefund sends a failed refund again, for an operator.
func (s *Service) RetryRefund(ctx context.Context, id uuid.UUID) error {
	again, err := s.store.retryRefund(ctx, id)
	switch {
	case err != nil:
		return err
	case !again.Found:
		return rest.NotFound.Errorf("There is no refund %s.", id)
	case again.DueAt == nil:
		return NotFailed.Errorf("The refund %s has not failed. It has ended in another way, or is sent without your help.", id)
	}
	s.metrics.refunds.WithLabelValues(string(Owed)).Inc()
	s.notify.Notify(again.CustomerID.String(), again.OrderID.String())
	s.publish.Refund.Publish(ctx, delay.At(id.String(), *again.DueAt, again.ServerTime))
	return nil
}
