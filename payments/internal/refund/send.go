package refund

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

var (
	//go:embed take.sql
	takeSQL string
	//go:embed move.sql
	moveSQL string
)

// maxMissing is the age from which a refund fails if the provider does not know its payment. Before, somebody can
// replace a wrong key.
const maxMissing = time.Hour

// taken is a refund that take.sql has taken.
type taken struct {
	ID            uuid.UUID
	State         provider.RefundState
	Try           int
	Error         string
	AmountCents   int64
	NextCheck     time.Time
	PaymentIntent string
	OrderID       uuid.UUID
	CustomerID    uuid.UUID
	Old           bool // reports whether it is older than maxMissing
}

// step is the state to which a refund moves.
type step struct {
	state      provider.RefundState
	providerID string
	err        string
	newKey     bool // the next try needs a new idempotency key, because no call with the present one can succeed
}

// send sends those of the refunds that are due to the provider, or asks whether the provider has confirmed them. A
// refund that cannot be sent now is sent again later, without end. The error is one of the database.
func (r *Service) send(ctx context.Context, ids []uuid.UUID, _ timeout.Caller) error {
	var refunds []taken
	if _, err := postgres.Scan(ctx, r.db, &refunds, takeSQL, ids, maxMissing.Microseconds()); err != nil {
		return fmt.Errorf("take refunds: %w", err)
	}
	check.Each(ctx, r.log, len(refunds), func(i int) {
		check.LogFailure(ctx, r.log, "refund", refunds[i].ID, r.sendOne(ctx, refunds[i]))
	})
	return nil
}

// sendOne first asks the provider for the refunds of the payment, and sends one only if they return too little money.
// So it also counts a refund whose answer was lost, and one that an operator made at the provider.
func (r *Service) sendOne(ctx context.Context, t taken) error {
	known, err := r.provider.Refunds(ctx, t.PaymentIntent)
	if err != nil {
		return r.unknownPayment(ctx, t, err)
	}
	next, missing := t.progress(known)
	if missing == 0 {
		return r.move(ctx, t, next)
	}
	sent, err := r.provider.Refund(ctx, provider.Return{
		Refund: t.ID.String(), Try: t.Try, Intent: t.PaymentIntent, AmountCents: missing,
		Key: fmt.Sprintf("%s-%d", t.ID, t.Try),
	})
	switch {
	case provider.IsClass(err, provider.Replayed), provider.CauseIs(err, provider.LowBalance):
		// The provider repeats this answer to the key. After a low balance it has executed nothing. After a stored
		// error it may still execute the call, but it returns no more than was paid, and the refund is of the whole
		// payment.
		next = step{state: provider.Owed, err: err.Error(), newKey: true}
	case provider.IsClass(err, provider.Refused):
		// A repeated call would be refused as well, with any key. If an operator returned the money meanwhile, the next
		// report of the books has the refund checked, which confirms it.
		next = step{state: provider.Failed, err: "refused: " + err.Error()}
	case err != nil:
		return r.unknownPayment(ctx, t, err)
	default:
		next, _ = t.progress(append([]provider.Refund{sent}, known...))
	}
	return r.move(ctx, t, next)
}

// unknownPayment has an old refund fail if an error says that the provider does not know its payment. It returns other
// errors. A key of another account gets such an error, too: with it, the process may not send the refund either.
func (r *Service) unknownPayment(ctx context.Context, t taken, err error) error {
	if !provider.IsClass(err, provider.Missing) {
		return err
	}
	if blocked := r.provider.Allowed(ctx, provider.OpRefund); blocked != nil {
		return blocked
	}
	if !t.Old { // this is an answer: the next check is later
		return errors.Join(err, r.move(ctx, t, step{state: t.State, err: t.Error}))
	}
	text := "the payment provider does not know the payment: " + err.Error()
	return r.move(ctx, t, step{state: provider.Failed, err: text})
}

// processing is the reason why most refunds wait. It tells an operator nothing.
const processing = "processing"

// progress compares a refund with the refunds of its payment at the provider. All of them count, because the refund
// is of the whole payment: also those that an operator made there, and those that the shop made before its database
// was restored. It returns the step that the refund takes if nothing more is sent, and the amount that must be sent.
// Nothing is sent for a refund that the provider has confirmed or that failed, even if its money is missing: an
// operator decides about it.
func (t taken) progress(known []provider.Refund) (next step, missing int64) {
	var active, confirmed int64
	var id, waits, failure, failedByHand string // id: of the latest refund at the provider
	for _, k := range known {
		switch {
		case k.State != provider.Failed:
			id = cmp.Or(id, k.ID)
			active += k.AmountCents
			if k.State == provider.Confirmed {
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
		return step{state: provider.Confirmed, providerID: id}, 0
	case t.State == provider.Failed:
		return step{state: provider.Failed, err: t.Error}, 0
	case t.State == provider.Confirmed:
		less := "the payment provider has less of the refund than it confirmed"
		return step{state: provider.Failed, err: cmp.Or(failure, failedByHand, less)}, 0
	case active >= t.AmountCents:
		return step{state: provider.Sent, providerID: id, err: waits}, 0
	case failure != "":
		return step{state: provider.Failed, err: failure}, 0
	default:
		return step{state: provider.Sent, providerID: id}, t.AmountCents - active
	}
}

// move stores a step of a refund, unless another session has moved the refund since it was taken.
func (r *Service) move(ctx context.Context, t taken, next step) error {
	var row struct{ ID uuid.UUID }
	moved, err := postgres.Scan(ctx, r.db, &row, moveSQL,
		t.ID, t.State, t.Try, next.state, next.providerID, next.err, next.newKey, t.NextCheck)
	if err != nil {
		return fmt.Errorf("store the state of refund %s: %w", t.ID, err)
	}
	if next.err != "" && next.err != t.Error {
		r.log.ErrorContext(ctx, "a refund did not succeed",
			"refund", t.ID, "order_id", t.OrderID, "state", next.state, "error", next.err)
	}
	if moved {
		r.notify.Notify(t.CustomerID.String(), t.OrderID.String())
	}
	return nil
}
