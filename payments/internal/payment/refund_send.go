package payment

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

var (
	//go:embed refund_take.sql
	refundTakeSQL string
	//go:embed refund_move.sql
	refundMoveSQL string
)

// maxMissing is the age from which a refund fails if the provider does not know its payment. Before, somebody can
// replace a wrong key.
const maxMissing = time.Hour

// takenRefund is a refund that refund_take.sql has taken.
type takenRefund struct {
	ID            uuid.UUID
	State         RefundState
	Try           int
	Error         string
	AmountCents   int64
	NextCheck     time.Time
	PaymentIntent string
	OrderID       uuid.UUID
	CustomerID    uuid.UUID
	Old           bool // reports whether it is older than maxMissing
}

// refundStep is the state to which a refund moves.
type refundStep struct {
	state      RefundState
	providerID string
	err        string
	newKey     bool // the next try needs a new idempotency key, because no call with the present one can succeed
}

// send sends those of the refunds that are due to the provider, or asks whether the provider has confirmed them. A
// refund that cannot be sent now is sent again later, without end. The error is one of the database.
func (r *Refunds) send(ctx context.Context, ids []uuid.UUID, _ reconcile.Actor) error {
	var refunds []takenRefund
	if _, err := postgres.Scan(ctx, r.db, &refunds, refundTakeSQL, ids, maxMissing.Microseconds()); err != nil {
		return fmt.Errorf("take refunds: %w", err)
	}
	each(ctx, r.log, len(refunds), func(i int) {
		logFailure(ctx, r.log, "refund", refunds[i].ID, r.sendOne(ctx, refunds[i]))
	})
	return nil
}

// sendOne first asks the provider for the refunds of the payment, and sends one only if they return too little money.
// So it also counts a refund whose answer was lost, and one that an operator made at the provider.
func (r *Refunds) sendOne(ctx context.Context, t takenRefund) error {
	known, err := r.provider.Refunds(ctx, t.PaymentIntent)
	if err != nil {
		return r.unknownPayment(ctx, t, err)
	}
	next, missing := t.progress(known)
	if missing == 0 {
		return r.move(ctx, t, next)
	}
	sent, err := r.provider.Refund(ctx, Return{
		Refund: t.ID.String(), Try: t.Try, Intent: t.PaymentIntent, AmountCents: missing,
		Key: fmt.Sprintf("%s-%d", t.ID, t.Try),
	})
	switch {
	case isClass(err, Replayed), causeIs(err, LowBalance):
		// The provider repeats this answer to the key. After a low balance it has executed nothing. After a stored error
		// it may still execute the call, but it returns no more than was paid, and the refund is of the whole payment.
		next = refundStep{state: Owed, err: err.Error(), newKey: true}
	case isClass(err, Refused):
		next = refused(err)
	case err != nil:
		return r.unknownPayment(ctx, t, err)
	default:
		next, _ = t.progress(append([]ProviderRefund{sent}, known...))
	}
	return r.move(ctx, t, next)
}

// unknownPayment has an old refund fail if an error says that the provider does not know its payment. It returns other
// errors. A key of another account gets such an error, too: with it, the process may not send the refund either.
func (r *Refunds) unknownPayment(ctx context.Context, t takenRefund, err error) error {
	if !isClass(err, Missing) {
		return err
	}
	if blocked := r.provider.allowed(ctx, opRefund); blocked != nil {
		return blocked
	}
	if !t.Old { // this is an answer: the next check is later
		return errors.Join(err, r.move(ctx, t, refundStep{state: t.State, err: t.Error}))
	}
	text := "the payment provider does not know the payment: " + err.Error()
	return r.move(ctx, t, refundStep{state: Failed, err: text})
}

// refused returns the step of a refund that the provider refused for good: it failed, because a repeated call, with
// any key, would be refused as well. If an operator returned the money meanwhile, the next event about it confirms
// the refund.
func refused(err error) refundStep {
	text := "refused"
	if e, ok := errors.AsType[*ProviderError](err); ok && e.Cause != "" {
		text += " (" + string(e.Cause) + ")"
	}
	return refundStep{state: Failed, err: text + ": " + err.Error()}
}

// processing is the reason why most refunds wait. It tells an operator nothing.
const processing = "processing"

// progress compares a refund with the refunds of its payment at the provider. All of them count, because the refund
// is of the whole payment: also those that an operator made there, and those that the shop made before its database
// was restored. It returns the step that the refund takes if nothing more is sent, and the amount that must be sent.
// Nothing is sent for a refund that the provider has confirmed or that failed, even if its money is missing: an
// operator decides about it.
func (t takenRefund) progress(known []ProviderRefund) (step refundStep, missing int64) {
	var active, confirmed int64
	var id, waits, failure, failedByHand string // id: of the latest refund at the provider
	for _, k := range known {
		switch {
		case k.State != Failed:
			id = cmp.Or(id, k.ID)
			active += k.AmountCents
			if k.State == Confirmed {
				confirmed += k.AmountCents
			} else if k.Reason != "" && k.Reason != processing {
				waits = "the payment provider has not returned the money yet: " + k.Reason
			}
		case k.Refund != t.ID.String():
			failedByHand = "a refund that was made at the payment provider failed: " + k.Reason
		case k.Try == t.Try: // not an earlier one
			failure = "the payment provider could not return the money: " + k.Reason
		}
	}
	switch {
	case confirmed >= t.AmountCents:
		return refundStep{state: Confirmed, providerID: id}, 0
	case t.State == Failed:
		return refundStep{state: Failed, err: t.Error}, 0
	case t.State == Confirmed:
		less := "the payment provider has less of the refund than it confirmed"
		return refundStep{state: Failed, err: cmp.Or(failure, failedByHand, less)}, 0
	case active >= t.AmountCents:
		return refundStep{state: Sent, providerID: id, err: waits}, 0
	case failure != "":
		return refundStep{state: Failed, err: failure}, 0
	default:
		return refundStep{state: Sent, providerID: id}, t.AmountCents - active
	}
}

// move stores a step of a refund, unless another session has moved the refund since it was taken.
func (r *Refunds) move(ctx context.Context, t takenRefund, step refundStep) error {
	var row struct{ ID uuid.UUID }
	moved, err := postgres.Scan(ctx, r.db, &row, refundMoveSQL,
		t.ID, t.State, t.Try, step.state, step.providerID, step.err, step.newKey, t.NextCheck)
	if err != nil {
		return fmt.Errorf("store the state of refund %s: %w", t.ID, err)
	}
	if step.err != "" && step.err != t.Error {
		r.log.ErrorContext(ctx, "a refund did not succeed",
			"refund", t.ID, "order_id", t.OrderID, "state", step.state, "error", step.err)
	}
	if moved {
		r.notify.Notify(t.CustomerID.String(), t.OrderID.String())
	}
	return nil
}
