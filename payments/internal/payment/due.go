package payment

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/reconcile"
)

// The statements that find the rows of the three kinds.
var (
	//go:embed pending.sql
	pendingSQL string
	//go:embed refund_pending.sql
	refundPendingSQL string
)

// attempts describes the rows of [SettleKind]. Their ids are those of orders.
func (s *Service) attempts() reconcile.Rows {
	return reconcile.Rows{Pending: pendingSQL, Ask: s.asking(s.settle, leftSQL)}
}

// asked describes the rows of [ConfirmKind]. Their ids are those of orders.
func (s *Service) asked() reconcile.Rows {
	return reconcile.Rows{Pending: pendingAskedSQL, Ask: s.asking(s.settle, leftAskedSQL)}
}

// refunds describes the rows of [RefundKind].
func (s *Service) refunds() reconcile.Rows {
	return reconcile.Rows{Pending: refundPendingSQL, Ask: s.asking(s.sendRefunds, refundLeftSQL)}
}

const (
	// checkTime is the time after which no further batch of calls to the provider begins. The next sweep goes on with the
	// other rows, so a provider that does not answer delays a sweep for a bounded time.
	checkTime = 5 * time.Second
	// minWait is the shortest time after which a task is tried again. A row that another session has locked is due already:
	// without this time, the worker would try it many times before the session ends.
	minWait = 100 * time.Millisecond
)

// asking returns a function that checks rows at the provider. The due time of a row is the time of its next check, which the
// statement left returns after the check. A row that the provider cannot decide now is no failure: its next check is
// later.
func (s *Service) asking(
	check func(context.Context, []uuid.UUID, reconcile.Actor) error, left string,
) func(context.Context, []uuid.UUID, reconcile.Actor) ([]reconcile.Verdict, error) {
	return func(ctx context.Context, ids []uuid.UUID, actor reconcile.Actor) ([]reconcile.Verdict, error) {
		began := time.Now()
		for batch := range slices.Chunk(ids, BatchSize) {
			if err := check(ctx, batch, actor); err != nil {
				return nil, err
			}
			if time.Since(began) > checkTime {
				break
			}
		}
		waits, err := s.store.left(ctx, left, ids)
		if err != nil {
			return nil, err
		}
		verdicts := make([]reconcile.Verdict, len(ids))
		for i, id := range ids {
			verdicts[i] = reconcile.Verdict{ID: id.String(), State: reconcile.TimedOut}
			if wait, again := waits[id]; again {
				verdicts[i] = reconcile.Verdict{ID: id.String(), State: reconcile.NotDue, Left: max(wait, minWait)}
			}
		}
		return verdicts, nil
	}
}
