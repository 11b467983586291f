// Package batch handles items in batches: items that wait at the same time share one transaction (group commit). A
// transaction for 200 items costs PostgreSQL little more than one for a single item, because it begins, commits and
// syncs the log once.
//
// A caller passes an item to [Batcher.Do] and waits for its result. A lane is a goroutine that handles one batch after
// the other. No timer collects items: an item on an idle queue goes alone and at once, and a batch forms while all
// lanes are busy.
//
// An item that fails or waits does not concern the others of its batch. A batch that fails because of one of its items
// is done again item by item. An item that needs a row which another session has locked leaves its lane, waits for the
// row outside, and joins the queue again.
package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/shop/internal/postgres"
)

// ErrOverloaded is the error for an item that is rejected, because more items arrive than the queue handles. Nothing
// was done for the item.
var ErrOverloaded = errors.New("batch: more items arrive than the queue handles: nothing was done, try again in a moment")

// Batcher handles items in batches, by functions that return the errors of PostgreSQL, wrapped or not, because their
// codes decide what is done next. The exported fields are set before the first item.
type Batcher[T comparable] struct {
	// Run handles a batch in one transaction, in order of arrival, and writes the results into the items. It waits for
	// locks only for as long as sessions usually keep them, and then returns the error lock_not_available (55P03). With
	// skipLocked it leaves out the items that need a row which another session has locked, and returns them.
	//
	// After an error, Run may be called again with the same items, although its transaction may have been committed.
	Run func(ctx context.Context, items []T, skipLocked bool) (locked []T, err error)

	// Await waits until no other session has locked a row that an item needs, which Run has left out. It keeps no lock,
	// and bounds how many sessions wait.
	Await func(ctx context.Context, item T) error

	// AfterCommit is called with the items that were handled. The callers of Do do not wait for it, but the next batch
	// of the lane does.
	AfterCommit func(ctx context.Context, items []T)

	Lanes    int           // the most batches under way: with two, one syncs the log while the other is executed
	Size     int           // the most items of a batch, because its transaction keeps the locks of their rows
	MaxItems int64         // the most items that wait or are handled; further ones are rejected
	Timeout  time.Duration // of a batch, and of an item that leaves its lane

	items   atomic.Int64 // that wait or are handled
	mu      sync.Mutex
	waiting []*waiter[T] // in order of arrival
	busy    int          // lanes

	skipUntil atomic.Pointer[time.Time] // until then, batches leave out what is locked
	skipping  sync.Mutex                // so that one batch at a time does so, and none leaves out what another lane locks
}

// waiter is an item whose caller waits in [Batcher.Do].
type waiter[T comparable] struct {
	item    T
	arrived time.Time
	err     error         // why the item was not handled
	done    chan struct{} // closed when the item was handled, or err is set
}

// Admit returns [ErrOverloaded] while Do would reject an item. Call it before anything else is done for an item.
func (b *Batcher[T]) Admit() error {
	if b.items.Load() >= b.MaxItems {
		return ErrOverloaded
	}
	return nil
}

// Do puts an item into the queue, and waits until it was handled. It returns [ErrOverloaded] if the item is rejected.
// After any other error the item may or may not have been handled: if ctx has ended, it may still be handled later.
func (b *Batcher[T]) Do(ctx context.Context, item T) error {
	if b.items.Add(1) > b.MaxItems {
		b.items.Add(-1)
		return ErrOverloaded
	}
	w := &waiter[T]{item: item, arrived: time.Now(), done: make(chan struct{})}
	b.add(w)
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// add puts an item at the end of the queue, and starts a lane if one is idle.
func (b *Batcher[T]) add(w *waiter[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, w)
	if b.busy < b.Lanes {
		b.busy++
		go b.lane()
	}
}

// lane handles one batch after the other, until the queue is empty.
func (b *Batcher[T]) lane() {
	for batch := b.next(); len(batch) > 0; batch = b.next() {
		ctx, cancel := context.WithTimeout(context.Background(), b.Timeout)
		if handled := b.handle(ctx, batch); len(handled) > 0 {
			b.AfterCommit(ctx, handled)
		}
		cancel()
	}
}

// next removes a batch from the queue. If the queue is empty, the lane ends.
func (b *Batcher[T]) next() []*waiter[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), b.Size)
	if n == 0 {
		b.busy--
	}
	batch := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	return batch
}

// handle handles a batch, and returns the items that were handled in the lane.
func (b *Batcher[T]) handle(ctx context.Context, batch []*waiter[T]) (handled []T) {
	locked, err := b.run(ctx, batch)
	outage := postgres.Classify(err) == postgres.Outage || postgres.Deadlocked(err) || postgres.StatementTimedOut(err)
	if err != nil && !outage && len(batch) > 1 { // an item may be the cause, and the others must not fail with it
		for i := range batch {
			handled = append(handled, b.handle(ctx, batch[i:i+1])...)
		}
		return handled
	}
	for _, w := range batch {
		if slices.Contains(locked, w.item) {
			go b.await(w)
			continue
		}
		if err == nil {
			handled = append(handled, w.item)
		}
		b.end(w, err)
	}
	return handled
}

// run runs a batch. If the batch does not get its locks, it is run again and leaves out what is locked. So do the
// batches of the next second, because a row that was locked for long may stay so.
func (b *Batcher[T]) run(ctx context.Context, batch []*waiter[T]) (locked []T, err error) {
	items := make([]T, len(batch))
	for i, w := range batch {
		items[i] = w.item
	}
	if until := b.skipUntil.Load(); until == nil || time.Now().After(*until) {
		if locked, err = b.try(ctx, items, false); !postgres.LockTimedOut(err) {
			return locked, err
		}
		second := time.Now().Add(time.Second)
		b.skipUntil.Store(&second)
	}
	b.skipping.Lock()
	defer b.skipping.Unlock()
	return b.try(ctx, items, true)
}

// try calls Run, and makes a panic an error of the items. The panic would end the process otherwise.
func (b *Batcher[T]) try(ctx context.Context, items []T, skipLocked bool) (locked []T, err error) {
	defer recoverAs(&err)
	return b.Run(ctx, items, skipLocked)
}

// await waits for the rows of an item that a batch has left out. When they are free, the item joins the queue again, and
// batches wait for locks again, because others that want the rows now keep them only for a moment.
func (b *Batcher[T]) await(w *waiter[T]) {
	ctx, cancel := context.WithDeadline(context.Background(), w.arrived.Add(b.Timeout))
	defer cancel()
	err := func() (err error) {
		defer recoverAs(&err)
		return b.Await(ctx, w.item)
	}()
	if err = cmp.Or(err, ctx.Err()); err != nil {
		b.end(w, err)
		return
	}
	b.skipUntil.Store(nil)
	b.add(w)
}

func (b *Batcher[T]) end(w *waiter[T], err error) {
	b.items.Add(-1)
	w.err = err
	close(w.done)
}

func recoverAs(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic while an item was handled: %v\n%s", p, debug.Stack())
	}
}
