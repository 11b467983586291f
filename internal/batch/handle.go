package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"example.com/shop/internal/postgres"
)

// runLane handles a batch in a lane. An item that needs a shared row for which other items wait is put into their
// queue.
func (q *Queue[T, K]) runLane(batch []*waiter[T]) {
	batch = q.rows.enqueue(batch, q.table.Rows)
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), q.cfg.Timeout)
	defer cancel()
	q.handleInParts(ctx, batch, q.cfg.LockWait)
}

// handleInParts handles a batch, in parts if it fails as a whole: a part has some of the items. The items that would
// wait for a lock longer than lockWait go to goroutines of their own. With a lockWait of 0 there are no such
// goroutines, and all items wait as long as the lock_timeout of the session.
func (q *Queue[T, K]) handleInParts(ctx context.Context, batch []*waiter[T], lockWait time.Duration) {
	var handled []T
	var alone []*waiter[T]
	for parts := [][]*waiter[T]{batch}; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		done, left, err := q.handlePart(ctx, part, lockWait)
		handled = append(handled, done...)
		switch {
		case len(left) == 0:
		case postgres.LockTimedOut(err) && lockWait > 0:
			next, waits := q.queueLocked(ctx, left)
			parts, alone = append(next, parts...), append(alone, waits...)
		case len(left) == 1, postgres.Away(err), postgres.Deadlocked(err), postgres.StatementTimedOut(err),
			errors.As(err, new(panicError)):
			fail(left, err) // the item, the database or a bug causes the error
		default: // an item may cause the error, and the others must not fail with it
			parts = append(halves(left), parts...)
		}
	}
	// The other items go first, because an item that waits for a row of its own keeps the locks of its shared rows
	// meanwhile.
	for _, w := range alone {
		go q.handleAlone(w)
	}
	if len(handled) > 0 {
		q.table.Handled(ctx, handled)
	}
}

// handlePart handles a part of a batch. It returns in handled the items whose callers have their results now, and in
// left the other items.
func (q *Queue[T, K]) handlePart(
	ctx context.Context, part []*waiter[T], lockWait time.Duration,
) (handled []T, left []*waiter[T], err error) {
	items := make([]T, len(part))
	for i, w := range part {
		items[i] = w.item
	}
	leftItems, err := q.surviveHandle(ctx, items, lockWait)
	for _, w := range part {
		if err != nil && slices.Contains(leftItems, w.item) {
			left = append(left, w)
			continue
		}
		handled = append(handled, w.item)
		close(w.done)
	}
	return handled, left, err
}

// surviveHandle calls [Table.Handle], and makes a panic an error of all items. Otherwise the panic would end the
// process, because nothing else recovers in the goroutine of a batch. The items are not handled again, because the
// panic may have come after the commit.
func (q *Queue[T, K]) surviveHandle(ctx context.Context, items []T, lockWait time.Duration) (left []T, err error) {
	defer func() {
		if p := recover(); p != nil {
			left, err = items, panicError{p, debug.Stack()}
		}
	}()
	return q.table.Handle(ctx, items, lockWait)
}

// panicError is a panic of [Table.Handle].
type panicError struct {
	value any
	stack []byte
}

func (e panicError) Error() string {
	return fmt.Sprintf("panic while a batch was handled: %v\n%s", e.value, e.stack)
}

// queueLocked is called with a part of a batch that has waited for a lock for too long. It puts the items that need a
// locked row into the queue of the row. It returns the other items, in next as parts to handle next, and in alone if
// they are to be handled alone at the end.
func (q *Queue[T, K]) queueLocked(ctx context.Context, part []*waiter[T]) (next [][]*waiter[T], alone []*waiter[T]) {
	free, locked, err := q.splitByLocks(ctx, part)
	switch {
	case err != nil:
		fail(part, err)
		return nil, nil
	case len(locked) == 0 && len(part) == 1: // it waits for a row that is not shared
		return nil, part
	case len(locked) == 0: // one of the items waits for a row that is not shared
		return halves(part), nil
	}
	for row, items := range locked {
		if q.rows.enqueueFor(row, items) {
			go q.handleWhenFree(row)
		}
	}
	if len(free) == 0 {
		return nil, nil
	}
	return [][]*waiter[T]{free}, nil
}

// splitByLocks separates the items whose shared rows are free from those that need a row which another session has
// locked now. locked has the items that need a locked row, by the key of that row.
func (q *Queue[T, K]) splitByLocks(
	ctx context.Context, part []*waiter[T],
) (free []*waiter[T], locked map[K][]*waiter[T], err error) {
	var rows []K
	for _, w := range part {
		rows = append(rows, q.table.Rows(w.item)...)
	}
	lockedRows, err := q.table.Locked(ctx, rows)
	if err != nil {
		return nil, nil, err
	}
	locked = make(map[K][]*waiter[T])
	for _, w := range part {
		rows := q.table.Rows(w.item)
		i := slices.IndexFunc(rows, func(row K) bool { return slices.Contains(lockedRows, row) })
		if i < 0 {
			free = append(free, w)
		} else {
			locked[rows[i]] = append(locked[rows[i]], w)
		}
	}
	return free, locked, nil
}

// halves returns the two halves of a part with at least two items.
func halves[T comparable](part []*waiter[T]) [][]*waiter[T] {
	half := len(part) / 2
	return [][]*waiter[T]{part[:half], part[half:]}
}

// fail tells the callers that their items were not handled.
func fail[T comparable](part []*waiter[T], err error) {
	for _, w := range part {
		w.err = err
		close(w.done)
	}
}
