// Package batch handles items in batches: items that wait at the same time share one transaction (group commit). A
// transaction for 200 items costs PostgreSQL little more than one for a single item, because it begins, commits and
// syncs the log once.
//
// A caller passes an item to [Queue.Do] and waits for its result. A lane is a goroutine that handles one batch after
// the other. No timer collects items: an item on an idle queue goes alone and at once, and a batch forms while all
// lanes are busy.
//
//	Do ─▶ queue ─▶ lane ─▶ Table.Handle ─▶ Do returns ─▶ Table.Handled
//	                         │      ▲
//	                         ▼      │
//	                         queues of locked rows
//
// An item that fails or waits does not concern the others of its batch:
//
//   - If an item causes an error, the batch is halved until the item is alone.
//   - If another session has locked a shared row for long, the items that need the row wait for it outside of the
//     lanes, and all of them in one session. A shared row is a row that the transactions of several items change, for
//     instance the stock of a product.
//
// A queue that grows without a bound answers every caller late. So the queue rejects items while its first item has
// waited for too long. [Queue.Admit] does so before anything else is done for an item, and also bounds the number of
// items under way.
//
// A service that handles its items one by one does not need this package: it calls what would be [Table.Handle] with
// one item, after it has entered a [postgres.Gate].
package batch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Table holds the functions that handle the items, usually rows of a table. T is the type of an item, and K is the type
// of the key of a shared row. The functions return the errors of PostgreSQL, wrapped or not, because [Queue] decides by
// their codes what to do next.
type Table[T comparable, K comparable] struct {
	// Handle handles the items of a batch in order of arrival, in one transaction if it can, and writes the results
	// into the items. With an error it returns in left the items that it has not handled, in their order. left is
	// ignored if the error is nil, because then all items are handled.
	//
	// Handle waits at most lockWait for a lock; 0 means the lock_timeout of the session. If it does not get the lock
	// in this time, it returns the error lock_not_available (55P03).
	Handle func(ctx context.Context, items []T, lockWait time.Duration) (left []T, err error)

	// Handled is called with the items that Handle has handled, for what happens after the commit. The callers of
	// [Queue.Do] do not wait for it, but the next batch of the lane does.
	Handled func(ctx context.Context, items []T)

	// Rows returns the keys of the shared rows that an item needs.
	Rows func(item T) []K

	// Locked returns those of the shared rows that another session has locked now. It waits for no lock.
	Locked func(ctx context.Context, rows []K) ([]K, error)

	// WaitFor waits until no other session has locked a shared row, at most for the lock_timeout of the session. It
	// keeps no lock.
	WaitFor func(ctx context.Context, row K) error

	// Gate bounds the number of sessions that wait for locks outside of the lanes. It is a [postgres.Gate].
	Gate interface {
		Enter(ctx context.Context) (leave func(), err error)
	}
}

// Config holds the bounds of a queue.
type Config struct {
	// Lanes is the largest number of batches under way at the same time. With two, PostgreSQL executes one batch
	// while it syncs the log for the other.
	Lanes int

	// Size is the largest number of items of a batch, because its transaction keeps the locks of their shared rows.
	Size int

	// MaxWait is the time for which the first item in the queue may wait. While it has waited longer, further items
	// are rejected.
	MaxWait time.Duration

	// MaxUnderWay is the largest number of items that Admit has admitted and that have not ended.
	MaxUnderWay int64

	// LockWait is the time for which a batch in a lane waits for a lock: longer than sessions usually keep these
	// locks.
	LockWait time.Duration

	// Timeout is the longest time for a batch. It also bounds the wait for a locked shared row together with the
	// batches of the items that waited for the row. It must be longer than the statement_timeout of the sessions, so
	// that PostgreSQL's error is seen, and shorter than the time that callers wait.
	Timeout time.Duration

	// OnReject is called with the reason when items are rejected, for the log: at most once in 10 s.
	OnReject func(reason string)
}

// ErrOverloaded is the error for an item that is rejected, because more items arrive than the queue handles. Nothing
// was done for the item.
var ErrOverloaded = errors.New("batch: more items arrive than the queue handles: nothing was done, try again in a moment")

// Queue handles items in batches.
type Queue[T comparable, K comparable] struct {
	cfg   Config
	table Table[T, K]
	lanes lanes[*waiter[T]]
	rows  lockedRows[T, K]

	underWay     atomic.Int64 // items that Admit has admitted and that have not ended
	rejectLogged atomic.Bool  // OnReject was called less than rejectLogInterval ago
}

// New returns a queue.
func New[T comparable, K comparable](cfg Config, table Table[T, K]) *Queue[T, K] {
	q := &Queue[T, K]{cfg: cfg, table: table}
	q.rows.waiting = make(map[K][]*waiter[T])
	q.lanes = lanes[*waiter[T]]{run: q.runLane, max: cfg.Lanes, size: cfg.Size, maxWait: cfg.MaxWait}
	return q
}

// waiter is an item whose caller waits in [Queue.Do].
type waiter[T comparable] struct {
	item    T
	arrived time.Time
	err     error         // why the item was not handled
	done    chan struct{} // closed when the item was handled, or err is set
}

// Do puts an item into the queue, and waits until it was handled in a batch. It returns nil after the item was handled,
// and [ErrOverloaded] if it is rejected, or if ctx ends before its batch begins. After any other error the item may or
// may not have been handled: if ctx has ended, it may still be handled later.
func (q *Queue[T, K]) Do(ctx context.Context, item T) error {
	w := &waiter[T]{item: item, arrived: time.Now(), done: make(chan struct{})}
	if !q.lanes.add(w) {
		return q.reject(waitsTooLong)
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		if q.lanes.remove(w) {
			return q.reject("a caller ended before its batch began")
		}
		return ctx.Err()
	}
}

// Admit admits an item. It returns [ErrOverloaded] while Do would reject the item, or too many items are under way.
// It costs little: call it when the item has been received, before anything else is done for it, and call done at the
// end.
func (q *Queue[T, K]) Admit() (done func(), err error) {
	switch {
	case q.underWay.Add(1) > q.cfg.MaxUnderWay:
		err = q.reject("too many are under way")
	case q.lanes.overloaded():
		err = q.reject(waitsTooLong)
	default:
		return func() { q.underWay.Add(-1) }, nil
	}
	q.underWay.Add(-1)
	return nil, err
}

// waitsTooLong is the reason for OnReject while MaxWait is exceeded.
const waitsTooLong = "the first one in the queue has waited too long for its batch"

// rejectLogInterval is the shortest time between two calls of OnReject.
const rejectLogInterval = 10 * time.Second

// reject returns [ErrOverloaded]. It passes the reason to OnReject, at most once in rejectLogInterval.
func (q *Queue[T, K]) reject(reason string) error {
	if q.rejectLogged.CompareAndSwap(false, true) {
		q.cfg.OnReject(reason)
		time.AfterFunc(rejectLogInterval, func() { q.rejectLogged.Store(false) })
	}
	return ErrOverloaded
}
