// Package check checks rows at the payment provider: attempts and refunds whose next check is due. It is what package
// reconcile asks about them.
package check

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
	"example.com/shop/payments/internal/provider"
)

const (
	// BatchSize is the largest number of tasks in a batch. All tasks of a batch call the provider at the same time, so
	// the handler has time for two calls that time out, one after the other.
	BatchSize = 16
	// checkTime is the time after which no further batch of calls to the provider begins, so that a provider that does
	// not answer delays a sweep for a bounded time. The next sweep goes on with the other rows.
	checkTime = 5 * time.Second
	// minWait is the shortest time after which a task is tried again. A row that another session has locked is due
	// already.
	minWait = 100 * time.Millisecond
)

// pendingSQL returns a page of the rows of a table that must be checked, as [timeout.Rows] describes.
const pendingSQL = `
	SELECT id, next_check AS due_at, (extract(epoch FROM next_check - clock_timestamp()) * 1000000)::bigint AS left_us
	FROM %s
	WHERE (next_check, id) > ($1::timestamptz, $2::uuid) AND next_check <= now() + $3::bigint * interval '1 microsecond'
	ORDER BY next_check, id
	LIMIT $4`

// leftSQL returns the microseconds until the next check of those rows of a table that have one.
const leftSQL = `
	SELECT id, (extract(epoch FROM next_check - clock_timestamp()) * 1000000)::bigint AS left_us
	FROM %s
	WHERE id = ANY ($1::uuid[]) AND next_check IS NOT NULL`

// Rows describes the rows of a table that are checked at the provider, each at its next_check. A row that the provider
// cannot decide now is no failure, because its next check is later.
func Rows(
	db *gorm.DB, table string, check func(context.Context, []uuid.UUID, timeout.Caller) error,
) timeout.Rows {
	left := fmt.Sprintf(leftSQL, table)
	ask := func(ctx context.Context, ids []uuid.UUID, actor timeout.Caller) ([]timeout.Result, error) {
		began := time.Now()
		for batch := range slices.Chunk(ids, BatchSize) {
			if err := check(ctx, batch, actor); err != nil {
				return nil, err
			}
			if time.Since(began) > checkTime {
				break
			}
		}
		var checks []struct {
			ID     uuid.UUID
			LeftUs int64
		}
		if _, err := postgres.Scan(ctx, db, &checks, left, ids); err != nil {
			return nil, fmt.Errorf("read next checks: %w", err)
		}
		waits := map[uuid.UUID]time.Duration{}
		for _, next := range checks {
			waits[next.ID] = time.Duration(next.LeftUs) * time.Microsecond
		}
		results := make([]timeout.Result, len(ids))
		for i, id := range ids {
			results[i] = timeout.Result{ID: id.String(), State: timeout.TimedOut}
			if wait, again := waits[id]; again {
				results[i] = timeout.Result{ID: id.String(), State: timeout.NotDue, Left: max(wait, minWait)}
			}
		}
		return results, nil
	}
	return timeout.Rows{Pending: fmt.Sprintf(pendingSQL, table), Ask: ask}
}

// Each calls do with the numbers 0 to n-1 of rows, at most [BatchSize] calls at the same time. It recovers from a
// panic of do, and logs it, because the worker recovers from panics only in its own goroutine. In another goroutine a
// panic would end the process, with the workers of all kinds.
func Each(ctx context.Context, log *slog.Logger, n int, do func(i int)) {
	var calls errgroup.Group
	calls.SetLimit(BatchSize)
	for i := range n {
		calls.Go(func() error {
			defer func() {
				if p := recover(); p != nil {
					log.ErrorContext(ctx, "the check of a payment panicked; it is tried again",
						"panic", p, "stack", string(debug.Stack()))
				}
			}()
			do(i)
			return nil
		})
	}
	_ = calls.Wait() // no call returns an error
}

// LogFailure logs why a row could not be settled. [provider.Calls] logs once when the provider cannot be used, and the
// guard why a call may not be made, so LogFailure logs no such errors. Nor does it log that there are too many calls:
// metrics count them. A provider that works and refuses the call is logged only here.
func LogFailure(ctx context.Context, log *slog.Logger, what string, id uuid.UUID, err error) {
	if err == nil || provider.IsClass(err, provider.NoAnswer, provider.Busy, provider.Denied, provider.Blocked) {
		return
	}
	log.WarnContext(ctx, "a payment could not be settled; it is tried again", what, id, "error", err)
}
