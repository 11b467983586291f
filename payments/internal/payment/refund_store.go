package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
)

var (
	//go:embed refund_take.sql
	refundTakeSQL string
	//go:embed refund_move.sql
	refundMoveSQL string
	//go:embed refund_pending.sql
	refundPendingSQL string
	//go:embed refund_left.sql
	refundLeftSQL string
	//go:embed refund_retry.sql
	refundRetrySQL string
	//go:embed refund_outside.sql
	refundOutsideSQL string
)

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

// takeRefunds takes those of the refunds that are due for a check.
func (s *Store) takeRefunds(ctx context.Context, ids []uuid.UUID) (refunds []takenRefund, err error) {
	if err := s.rows(ctx, &refunds, refundTakeSQL, ids, maxMissing.Microseconds()); err != nil {
		return nil, fmt.Errorf("take refunds: %w", err)
	}
	return refunds, nil
}

// refundStep is the state to which a refund moves.
type refundStep struct {
	state      RefundState
	providerID string
	err        string
	newKey     bool // the next try needs a new idempotency key, because no call with the present one can succeed
}

// moveRefund stores a step of a refund, and reports whether the state of the refund changed. It stores nothing if another
// session has moved the refund since it was taken.
func (s *Store) moveRefund(ctx context.Context, r takenRefund, step refundStep) (moved bool, err error) {
	var providerID, reason any // NULL if ""
	if step.providerID != "" {
		providerID = step.providerID
	}
	if step.err != "" {
		reason = step.err
	}
	var row struct{ ID uuid.UUID }
	moved, err = s.row(ctx, &row, refundMoveSQL, r.ID, r.State, r.Try, step.state, providerID, reason, step.newKey, r.NextCheck)
	if err != nil {
		return false, fmt.Errorf("store the state of refund %s: %w", r.ID, err)
	}
	return moved, nil
}

// retriedRefund is the row that refund_retry.sql returns.
type retriedRefund struct {
	Found      bool
	DueAt      *time.Time // nil: the refund had not failed
	OrderID    uuid.UUID
	CustomerID uuid.UUID
	ServerTime time.Time
}

// retryRefund makes a failed refund due now.
func (s *Store) retryRefund(ctx context.Context, id uuid.UUID) (retried retriedRefund, err error) {
	if _, err = s.row(ctx, &retried, refundRetrySQL, id, s.RowKind(RefundKind)); err != nil {
		return retried, fmt.Errorf("retry refund %s: %w", id, err)
	}
	return retried, nil
}

// settledOutside is the row that refund_outside.sql returns.
type settledOutside struct {
	Found, Settled bool
	OrderID        uuid.UUID // of a refund that was settled
	CustomerID     uuid.UUID
}

// settleOutside settles a failed refund outside of the provider.
func (s *Store) settleOutside(ctx context.Context, id uuid.UUID, note, actor string) (row settledOutside, err error) {
	if _, err = s.row(ctx, &row, refundOutsideSQL, id, note, actor); err != nil {
		return row, fmt.Errorf("settle refund %s outside: %w", id, err)
	}
	return row, nil
}
