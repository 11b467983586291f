package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/batch"
)

const (
	size        = 12
	maxWait     = 500 * time.Millisecond
	maxUnderWay = 20
	lockWait    = 200 * time.Millisecond
	timeLimit   = 7 * time.Second

	lockTimeout = 3 * time.Second        // of a session of the fake table
	handleTime  = 10 * time.Millisecond  // of a batch
	publishTime = 100 * time.Millisecond // of a call of Handled
)

// The errors of the fake table.
var (
	errBad           = errors.New("a bad item")
	errLockTimeout   = &pgconn.PgError{Code: "55P03", Message: "lock timeout"}
	errUnavailable   = &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01", Message: "terminating connection"}
	errUnknownLocked = errors.New("the locks cannot be read")
)

// item is an item for the fake table. Its name begins with "bad" if it makes a transaction fail.
type item struct {
	name    string
	rows    []string // the shared rows that it needs
	private string   // another row that it needs
}

func (i *item) needs(row string) bool { return i.private == row || slices.Contains(i.rows, row) }

// table is a table in memory whose rows other sessions can lock. It records the calls of its functions.
type table struct {
	mu          sync.Mutex
	locks       map[string]chan struct{} // closed when the lock is released
	calls       []string                 // "handle a b", "handled a b"
	waits       []string                 // "wait row"; they run beside the calls, in no order with them
	done        []string                 // the names of the handled items
	unavailable bool
	lockedErr   error // of Locked
	splitFirst  int   // after an error, Handle has handled this many items nevertheless
	inGate      int
	reasons     []string // of OnReject
}

// newQueue returns a queue, and its table. With one lane, a test can tell which calls follow each other.
func newQueue(lanes int) (*batch.Queue[*item, string], *table) {
	table := &table{locks: map[string]chan struct{}{}}
	return batch.New(batch.Config{
		Lanes: lanes, Size: size, MaxWait: maxWait, MaxUnderWay: maxUnderWay, LockWait: lockWait, Timeout: timeLimit,
		OnReject: func(reason string) {
			table.mu.Lock()
			defer table.mu.Unlock()
			table.reasons = append(table.reasons, reason)
		},
	}, batch.Table[*item, string]{
		Handle: table.handle,
		Handled: func(_ context.Context, items []*item) {
			table.record("handled", items...)
			<-time.After(publishTime)
		},
		Rows:    func(i *item) []string { return i.rows },
		Locked:  table.locked,
		WaitFor: table.waitFor,
		Gate:    table,
	}), table
}

// allCalls returns the calls since the last check.
func (t *table) allCalls() []string { return snapshot(t, &t.calls) }

// doneItems returns the names of the handled items.
func (t *table) doneItems() []string { return snapshot(t, &t.done) }

// allReasons returns the reasons that OnReject was called with.
func (t *table) allReasons() []string { return snapshot(t, &t.reasons) }

func snapshot(t *table, list *[]string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(*list)
}

// sessionsInGate returns how many sessions are in the gate.
func (t *table) sessionsInGate() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inGate
}

func (t *table) record(call string, items ...*item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range items {
		call += " " + i.name
	}
	t.calls = append(t.calls, call)
}

// handle fails if an item is bad, or if it does not get a lock in time. It panics if an item is very bad.
func (t *table) handle(ctx context.Context, items []*item, lockWait time.Duration) (left []*item, err error) {
	t.record("handle", items...)
	<-time.After(handleTime)
	if lockWait == 0 {
		lockWait = lockTimeout
	}
	for _, i := range items {
		if err = errors.Join(err, t.await(ctx, i.needs, lockWait)); err != nil {
			break
		}
		if strings.HasPrefix(i.name, "bad") {
			err = errBad
		}
		if strings.HasPrefix(i.name, "very bad") {
			panic(errBad)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unavailable {
		err = errUnavailable
	}
	if err != nil {
		handled := min(t.splitFirst, len(items)-1)
		t.splitFirst = 0
		left, items = items[handled:], items[:handled]
	}
	for _, i := range items {
		t.done = append(t.done, i.name)
	}
	return left, err
}

// await waits until the locks of the needed rows are released.
func (t *table) await(ctx context.Context, needs func(row string) bool, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t.mu.Lock()
	var needed []chan struct{}
	for row, released := range t.locks {
		if needs(row) {
			needed = append(needed, released)
		}
	}
	t.mu.Unlock()
	for _, released := range needed {
		select {
		case <-released:
		case <-ctx.Done():
			return errLockTimeout
		}
	}
	return nil
}

// lock locks a row in another session.
func (t *table) lock(row string) (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	released := make(chan struct{})
	t.locks[row] = released
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.locks, row)
		close(released)
	}
}

func (t *table) locked(_ context.Context, rows []string) (locked []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, row := range rows {
		if t.locks[row] != nil {
			locked = append(locked, row)
		}
	}
	return locked, t.lockedErr
}

func (t *table) waitFor(ctx context.Context, row string) error {
	t.mu.Lock()
	t.waits = append(t.waits, "wait "+row)
	t.mu.Unlock()
	return t.await(ctx, func(other string) bool { return other == row }, lockTimeout)
}

// Enter implements the Gate of a table. Two callers can be in the gate at the same time.
func (t *table) Enter(ctx context.Context) (leave func(), err error) {
	for {
		t.mu.Lock()
		if t.inGate < 2 {
			t.inGate++
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.inGate--
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// checkCalls compares the calls since the last check, and then the waits, with those wanted.
func (t *table) checkCalls(tt *testing.T, when string, want ...string) {
	tt.Helper()
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if got := slices.Concat(t.calls, t.waits); !slices.Equal(got, want) {
		tt.Errorf("%s: the calls are %q, want %q", when, got, want)
	}
	t.calls, t.waits = nil, nil
}

// result is the result of an item.
type result struct {
	err   error
	after time.Duration
	done  chan struct{}
}

// start adds items to the queue in their order, so that they make up one batch. It returns their results, which are
// set when their done is closed.
func start(q *batch.Queue[*item, string], items ...*item) []*result {
	resume := q.Pause()
	defer resume()
	began := time.Now()
	results := make([]*result, len(items))
	for n, i := range items {
		r := &result{done: make(chan struct{})}
		results[n] = r
		go func() {
			defer close(r.done)
			r.err = q.Do(context.Background(), i)
			r.after = time.Since(began)
		}()
		synctest.Wait()
	}
	return results
}

// named returns items without shared rows.
func named(names ...string) (items []*item) {
	for _, name := range names {
		items = append(items, &item{name: name})
	}
	return items
}

// TestDoReturnsBeforeHandled checks the sequence of the calls for a batch: Do returns after Handle and does not wait
// for Handled.
func TestDoReturnsBeforeHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		for n, r := range start(q, named("a", "b", "c")...) {
			<-r.done
			if r.err != nil || r.after != handleTime {
				t.Errorf("item %d: Do returns %v after %v, want nil after %v", n, r.err, r.after, handleTime)
			}
		}
		table.checkCalls(t, "a batch", "handle a b c", "handled a b c")
		<-time.After(publishTime)
	})
}

// TestBadItemFailsAlone handles batches with items that make the transaction fail. The others are handled once, and
// the call of Handled is one.
func TestBadItemFailsAlone(t *testing.T) {
	for _, bad := range [][]int{{0}, {5}, {11}, {0, 1}, {2, 7, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, table := newQueue(2)
				var names, good []string
				for n := range size {
					name := fmt.Sprint("item", n)
					if slices.Contains(bad, n) {
						name = "bad" + name
					} else {
						good = append(good, name)
					}
					names = append(names, name)
				}
				for n, r := range start(q, named(names...)...) {
					<-r.done
					if isBad := slices.Contains(bad, n); isBad != errors.Is(r.err, errBad) || !isBad && r.err != nil {
						t.Errorf("item %q: Do returns %v", names[n], r.err)
					}
				}
				<-time.After(time.Second)
				if !slices.Equal(table.doneItems(), good) {
					t.Errorf("%q are handled, want %q", table.doneItems(), good)
				}
				var handled []string
				for _, call := range table.allCalls() {
					if names, found := strings.CutPrefix(call, "handled "); found {
						handled = append(handled, names)
					}
				}
				if strings.Join(handled, " ") != strings.Join(good, " ") || len(handled) > 1 {
					t.Errorf("Handled is called with %q, want one call with %q", handled, good)
				}
			})
		})
	}
}

// TestPanicFailsWholeBatch has an item that makes Handle panic. All items of its batch fail, and are not handled
// again. The process goes on.
func TestPanicFailsWholeBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(2)
		for _, r := range start(q, named("first", "very bad", "last")...) {
			<-r.done
			if r.err == nil || !strings.Contains(r.err.Error(), "panic while a batch was handled: a bad item") {
				t.Errorf("Do returns %v, want the panic", r.err)
			}
		}
		for _, r := range start(q, named("later")...) {
			if <-r.done; r.err != nil {
				t.Errorf("Do returns %v for a later item", r.err)
			}
		}
		<-time.After(time.Second)
		if calls := table.allCalls(); !slices.Equal(calls,
			[]string{"handle first very bad last", "handle later", "handled later"}) {
			t.Errorf("the calls are %q, want one with all items, and one with the later item", calls)
		}
	})
}

// TestUnavailableDatabaseFailsWholeBatch checks that a batch is not halved if no part of it could succeed.
func TestUnavailableDatabaseFailsWholeBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		table.unavailable = true
		for n, r := range start(q, named("a", "b", "c")...) {
			<-r.done
			if !errors.Is(r.err, errUnavailable) {
				t.Errorf("item %d: Do returns %v, want %v", n, r.err, errUnavailable)
			}
		}
		table.checkCalls(t, "the database is unavailable", "handle a b c")
	})
}

// TestBatchHandledInPart has Handle return an error after it has handled a part of a batch. Only the rest is handled
// again.
func TestBatchHandledInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		table.splitFirst = 2
		results := start(q, named("a", "b", "c", "bad", "d")...)
		for n, r := range results {
			<-r.done
			if want := n == 3; want != (r.err != nil) {
				t.Errorf("item %d: Do returns %v", n, r.err)
			}
		}
		table.checkCalls(t, "a bad item", "handle a b c bad d", "handle c", "handle bad d", "handle bad", "handle d",
			"handled a b c d")
		if results[0].after != handleTime {
			t.Errorf("the first item was handled after %v, want %v", results[0].after, handleTime)
		}
		<-time.After(publishTime)
	})
}

// TestLockedRowDelaysNoOthers locks a shared row for long. Items without the row are handled meanwhile. Those with
// the row wait in one session, and are then handled in order of arrival.
func TestLockedRowDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		release := table.lock("row")
		needsRow := func(name string) *item { return &item{name: name, rows: []string{"other", "row"}} }
		first := start(q, needsRow("a"), &item{name: "b", rows: []string{"other"}}, needsRow("c"))
		<-first[1].done
		if got, want := first[1].after, lockWait+2*handleTime; got != want {
			t.Errorf("an item without the row in the first batch took %v, want %v", got, want)
		}
		<-time.After(publishTime)
		table.checkCalls(t, "the first batch", "handle a b c", "handle b", "handled b", "wait row")
		var later []*result
		for _, name := range []string{"d", "e"} {
			results := start(q, needsRow(name), &item{name: name + "'"})
			<-results[1].done
			if results[1].after != handleTime {
				t.Errorf("an item without the row in a later batch took %v, want %v", results[1].after, handleTime)
			}
			later = append(later, results[0])
		}
		<-time.After(time.Second)
		table.checkCalls(t, "later batches", "handle d'", "handled d'", "handle e'", "handled e'")
		for _, r := range append(later, first[0], first[2]) {
			if r.after != 0 {
				t.Errorf("Do returns after %v for an item with the locked row", r.after)
			}
		}
		release()
		for _, r := range append(later, first[0], first[2]) {
			if <-r.done; r.err != nil {
				t.Error(r.err)
			}
		}
		<-time.After(publishTime)
		table.checkCalls(t, "the row is free", "handle a c d e", "handled a c d e")
		start(q, needsRow("f"))
		<-time.After(publishTime + handleTime)
		table.checkCalls(t, "the row was free", "handle f", "handled f")
	})
}

// TestItemsOfLockedRowFormBatches has more items wait for a row than a batch has. Another session locks the row again
// between two batches.
func TestItemsOfLockedRowFormBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		release := table.lock("row")
		var results []*result
		for n := range 4 {
			var items []*item
			for m := range size - 2 {
				items = append(items, &item{name: fmt.Sprintf("%d%c", n, 'a'+m), rows: []string{"row"}})
			}
			results = append(results, start(q, items...)...)
			<-time.After(lockWait + 2*handleTime)
		}
		release()
		synctest.Wait()
		<-time.After(handleTime / 2) // the first batch is under way
		release = table.lock("row")
		<-time.After(time.Second)
		release()
		for _, r := range results {
			if <-r.done; r.err != nil {
				t.Error(r.err)
			}
		}
		<-time.After(publishTime)
		for _, call := range table.allCalls() {
			if n := len(strings.Fields(call)) - 1; n > size {
				t.Errorf("a batch has %d items, want at most %d: %s", n, size, call)
			}
		}
		if len(table.doneItems()) != len(results) || !slices.IsSorted(table.doneItems()) {
			t.Errorf("%d items are handled in the sequence %v, want %d in order of arrival", len(table.doneItems()),
				table.doneItems(), len(results))
		}
	})
}

// TestBatchesOfLockedRowShareOneSession has batches in two lanes wait for a lock of the same row. One session waits
// for both.
func TestBatchesOfLockedRowShareOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(2)
		release := table.lock("row")
		for _, name := range []string{"a", "b"} {
			go func() {
				if err := q.Do(t.Context(), &item{name: name, rows: []string{"row"}}); err != nil {
					t.Errorf("item %s: Do returns %v, want nil", name, err)
				}
			}()
			<-time.After(handleTime)
		}
		<-time.After(time.Second)
		table.checkCalls(t, "two batches", "handle a", "handle b", "wait row")
		if n := table.sessionsInGate(); n != 1 {
			t.Errorf("%d sessions wait for the row, want 1", n)
		}
		release()
		<-time.After(handleTime + publishTime)
		table.checkCalls(t, "the row is free", "handle a b", "handled a b")
	})
}

// TestRowLockedTooLong locks a shared row for longer than the lock_timeout. The items that wait for it fail, those
// that came later too.
func TestRowLockedTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		release := table.lock("row")
		results := start(q, &item{name: "a", rows: []string{"row"}})
		<-time.After(2 * time.Second)
		results = append(results, start(q, &item{name: "b", rows: []string{"row"}})...)
		for n, r := range results {
			if <-r.done; !errors.Is(r.err, errLockTimeout) {
				t.Errorf("item %d: Do returns %v, want %v", n, r.err, errLockTimeout)
			}
		}
		if got, want := results[0].after, handleTime+lockWait+lockTimeout; got != want {
			t.Errorf("the first item failed after %v, want %v", got, want)
		}
		release()
		table.checkCalls(t, "a row that is locked too long", "handle a", "wait row")
		if table.sessionsInGate() != 0 {
			t.Errorf("%d sessions are in the gate, want 0", table.sessionsInGate())
		}
	})
}

// TestLocksCannotBeRead has Locked fail: all items of the batch fail with its error.
func TestLocksCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		release := table.lock("row")
		defer release()
		table.lockedErr = errUnknownLocked
		for n, r := range start(q, &item{name: "a", rows: []string{"row"}}, &item{name: "b"}) {
			if <-r.done; !errors.Is(r.err, errUnknownLocked) {
				t.Errorf("item %d: Do returns %v, want %v", n, r.err, errUnknownLocked)
			}
		}
	})
}

// TestLockedRowThatIsNotShared locks a row that one item of a batch needs and that Rows does not name. The others are
// handled, and the item waits alone, as long as the lock_timeout of the session.
func TestLockedRowThatIsNotShared(t *testing.T) {
	for name, test := range map[string]struct {
		locked time.Duration
		err    error
	}{
		"released in time": {2 * time.Second, nil},
		"locked too long":  {time.Minute, errLockTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, table := newQueue(1)
				time.AfterFunc(test.locked, table.lock("customer"))
				results := start(q, &item{name: "a"}, &item{name: "b"}, &item{name: "c", private: "customer"},
					&item{name: "d"})
				for n, r := range results {
					<-r.done
					if n != 2 && (r.err != nil || r.after > 4*lockWait) {
						t.Errorf("item %d: Do returns %v after %v, want nil while the row is locked", n, r.err, r.after)
					}
					if n == 2 && (!errors.Is(r.err, test.err) || r.after < min(test.locked, lockTimeout)) {
						t.Errorf("the item with the row: Do returns %v after %v, want %v when the lock is released "+
							"or times out", r.err, r.after, test.err)
					}
				}
				<-time.After(2 * time.Minute)
				if table.sessionsInGate() != 0 {
					t.Errorf("%d sessions are in the gate, want 0", table.sessionsInGate())
				}
			})
		})
	}
}

// TestGateBoundsWaits locks more rows than sessions may wait for. An item whose wait for the gate takes too long
// fails.
func TestGateBoundsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		leave, _ := table.Enter(t.Context())
		defer leave()
		leaveToo, _ := table.Enter(t.Context())
		defer table.lock("row")()
		results := start(q, &item{name: "a", rows: []string{"row"}}, &item{name: "b", private: "row"})
		for n, r := range results {
			if <-r.done; !errors.Is(r.err, context.DeadlineExceeded) || r.after < timeLimit {
				t.Errorf("item %d: Do returns %v after %v, want %v after %v", n, r.err, r.after,
					context.DeadlineExceeded, timeLimit)
			}
		}
		leaveToo()
		if table.doneItems() != nil {
			t.Errorf("%v are handled, want none", table.doneItems())
		}
	})
}

// TestItemsWhoseCallersHaveGone has items wait for a row for longer than the time limit: they are not handled. Items
// that came later are.
func TestItemsWhoseCallersHaveGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		leave, _ := table.Enter(t.Context())
		leaveToo, _ := table.Enter(t.Context())
		release := table.lock("row")
		results := start(q, &item{name: "a", rows: []string{"row"}})
		<-time.After(5 * time.Second)
		results = append(results, start(q, &item{name: "b", rows: []string{"row"}})...)
		// the time limit of the session began with the wait for the row
		<-time.After(timeLimit - 5*time.Second + lockWait/2)
		leave()
		leaveToo()
		release()
		<-results[0].done
		<-results[1].done
		if !errors.Is(results[0].err, context.DeadlineExceeded) || results[1].err != nil {
			t.Errorf("Do returns %v and %v, want %v for the first item and nil for the second",
				results[0].err, results[1].err, context.DeadlineExceeded)
		}
		<-time.After(publishTime)
		if fmt.Sprint(table.doneItems()) != "[b]" {
			t.Errorf("%v are handled, want [b]", table.doneItems())
		}
	})
}

// TestDoWithEndedContext ends the contexts of two callers: the item of one is in the queue, that of the other in a
// batch.
func TestDoWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		ctx, cancel := context.WithTimeout(t.Context(), handleTime/2)
		defer cancel()
		errs := make(chan error, 1)
		go func() { errs <- q.Do(ctx, &item{name: "in a batch"}) }()
		synctest.Wait()
		if err := q.Do(ctx, &item{name: "in the queue"}); !errors.Is(err, batch.ErrOverloaded) {
			t.Errorf("in the queue: Do returns %v, want %v", err, batch.ErrOverloaded)
		}
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, batch.ErrOverloaded) {
			t.Errorf("in a batch: Do returns %v, want %v", err, context.DeadlineExceeded)
		}
		<-time.After(handleTime + publishTime)
		table.checkCalls(t, "one item was removed", "handle in a batch", "handled in a batch")
		<-time.After(batch.RejectLogInterval)
	})
}

// TestAdmit admits items until too many are under way, and while the first one in the queue waits too long.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		var ends []func()
		for range maxUnderWay {
			done, err := q.Admit()
			if err != nil {
				t.Fatalf("item %d: Admit returns %v, want nil", len(ends), err)
			}
			ends = append(ends, done)
		}
		for range 3 {
			if _, err := q.Admit(); !errors.Is(err, batch.ErrOverloaded) {
				t.Errorf("Admit returns %v for one item too many, want %v", err, batch.ErrOverloaded)
			}
		}
		for _, end := range ends {
			end()
		}
		for range maxUnderWay + 1 {
			done, err := q.Admit()
			if err != nil {
				t.Fatalf("Admit returns %v after all items have ended, want nil", err)
			}
			done()
		}
		<-time.After(batch.RejectLogInterval)

		resume := q.Pause()
		errs := make(chan error, 1)
		go func() { errs <- q.Do(t.Context(), &item{name: "a"}) }()
		<-time.After(maxWait + 1)
		for range maxUnderWay + 1 { // a rejected item is not under way
			if _, err := q.Admit(); !errors.Is(err, batch.ErrOverloaded) {
				t.Errorf("Admit returns %v while an item waits too long, want %v", err, batch.ErrOverloaded)
			}
		}
		if err := q.Do(t.Context(), &item{name: "b"}); !errors.Is(err, batch.ErrOverloaded) {
			t.Errorf("Do returns %v while an item waits too long, want %v", err, batch.ErrOverloaded)
		}
		resume()
		if err := <-errs; err != nil {
			t.Errorf("the item that has waited: Do returns %v, want nil", err)
		}
		if done, err := q.Admit(); err != nil {
			t.Errorf("Admit returns %v after the queue has moved, want nil", err)
		} else {
			done()
		}
		<-time.After(batch.RejectLogInterval)
		want := []string{"too many are under way", "the first one in the queue has waited too long for its batch"}
		if !slices.Equal(table.allReasons(), want) {
			t.Errorf("OnReject is called with the reasons %q, want %q", table.allReasons(), want)
		}
	})
}

// TestOnRejectInterval checks that OnReject is called at most once in 10 s.
func TestOnRejectInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newQueue(1)
		for range maxUnderWay {
			if _, err := q.Admit(); err != nil {
				t.Fatal(err)
			}
		}
		for range 250 { // in 25 s
			_, _ = q.Admit()
			<-time.After(100 * time.Millisecond)
		}
		if len(table.allReasons()) != 3 {
			t.Errorf("OnReject is called %d times in 25 s, want 3", len(table.allReasons()))
		}
		<-time.After(batch.RejectLogInterval)
	})
}
