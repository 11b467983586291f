package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/batch"
)

const (
	size      = 12
	maxItems  = 20
	timeLimit = 7 * time.Second

	runTime    = 10 * time.Millisecond  // of a batch
	lockWait   = 200 * time.Millisecond // of a batch
	commitTime = 100 * time.Millisecond // of a call of AfterCommit
)

// The errors of the fake table.
var (
	errBad         = errors.New("a bad item")
	errLockTimeout = &pgconn.PgError{Code: "55P03", Message: "lock timeout"}
	errUnavailable = &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01", Message: "terminating connection"}
)

// item is an item for the fake table. The first word of its name says what happens to it: "bad" fails, "panics" panics,
// "locked" needs a row that another session has locked and that can be skipped, and "stuck" one that cannot.
type item struct{ name string }

func (i *item) is(kind string) bool { return strings.HasPrefix(i.name, kind+" ") }

// table handles items in memory, and records the calls: "run a b", "skip a b" with skipLocked, "after a b".
type table struct {
	mu          sync.Mutex
	calls       []string
	unavailable bool

	unlock chan struct{} // closed when the rows of the locked items are free
}

// newBatcher returns a batcher and its table. With one lane, a test can tell which calls follow each other.
func newBatcher(lanes int) (*batch.Batcher[*item], *table) {
	t := &table{unlock: make(chan struct{})}
	return &batch.Batcher[*item]{
		Run: t.run, Await: t.await, AfterCommit: func(_ context.Context, items []*item) {
			t.record("after", items...)
			<-time.After(commitTime)
		},
		Lanes: lanes, Size: size, MaxItems: maxItems, Timeout: timeLimit,
	}, t
}

func (t *table) record(call string, items ...*item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range items {
		call += " " + i.name
	}
	t.calls = append(t.calls, call)
}

// takeCalls returns the calls since it was called last.
func (t *table) takeCalls() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls
	t.calls = nil
	return calls
}

// check checks the calls since takeCalls was called last.
func (t *table) check(tb testing.TB, what string, want ...string) {
	tb.Helper()
	if got := t.takeCalls(); !slices.Equal(got, want) {
		tb.Errorf("%s: the calls are %q, want %q", what, got, want)
	}
}

func (t *table) run(_ context.Context, items []*item, skipLocked bool) (locked []*item, err error) {
	if skipLocked {
		t.record("skip", items...)
	} else {
		t.record("run", items...)
	}
	<-time.After(runTime)
	for _, i := range items {
		switch {
		case t.unavailable:
			return nil, errUnavailable
		case i.is("bad"):
			return nil, errBad
		case i.is("panics"):
			panic(errBad)
		case i.is("locked") && t.isFree():
		case i.is("locked") && skipLocked:
			locked = append(locked, i)
		case i.is("locked"), i.is("stuck"):
			<-time.After(lockWait)
			return nil, fmt.Errorf("run: %w", errLockTimeout)
		}
	}
	return locked, nil
}

func (t *table) isFree() bool {
	select {
	case <-t.unlock:
		return true
	default:
		return false
	}
}

// await waits until the rows are free.
func (t *table) await(ctx context.Context, i *item) error {
	t.record("wait", i)
	select {
	case <-t.unlock:
		if i.name == "locked panics" {
			panic(errBad)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// result is what Do returned for an item, and when.
type result struct {
	done  chan struct{}
	err   error
	after time.Duration
}

// start passes items to a queue, in their order.
func start(q *batch.Batcher[*item], names ...string) (results []*result) {
	began := time.Now()
	for _, name := range names {
		r := &result{done: make(chan struct{})}
		results = append(results, r)
		go func() {
			defer close(r.done)
			r.err = q.Do(context.Background(), &item{name})
			r.after = time.Since(began)
		}()
		synctest.Wait()
	}
	return results
}

// TestBatches has items arrive while all lanes are busy: they form batches in order of arrival. Do returns after the
// batch has run, and the lane begins the next one after AfterCommit.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newBatcher(2)
		var names []string
		for n := range 2 + size + 1 {
			names = append(names, fmt.Sprint(n))
		}
		for n, r := range start(q, names...) {
			<-r.done
			want := runTime
			if n >= 2 {
				want = runTime + commitTime + runTime
			}
			if r.err != nil || r.after != want {
				t.Errorf("item %d: Do returns %v after %v, want nil after %v", n, r.err, r.after, want)
			}
		}
		<-time.After(time.Second)
		calls := table.takeCalls()
		slices.Sort(calls)
		if want := []string{"after 0", "after 1", "after 14", "after 2 3 4 5 6 7 8 9 10 11 12 13", "run 0", "run 1",
			"run 14", "run 2 3 4 5 6 7 8 9 10 11 12 13"}; !slices.Equal(calls, want) {
			t.Errorf("the calls are %q, want %q", calls, want)
		}
	})
}

// TestBadItemFailsAlone has items fail or panic in a batch. The others are handled, and AfterCommit is called once.
func TestBadItemFailsAlone(t *testing.T) {
	for name, kinds := range map[string]string{
		"first":        "b.....",
		"two":          ".b..b.",
		"all":          "bbbbbb",
		"a panic":      "...p..",
		"both":         "b....p",
		"stuck":        "..s...",
		"stuck, a bad": "..s.b.",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, table := newBatcher(1)
				names, good := []string{"x"}, []string{"x"}
				for n, kind := range kinds {
					name := map[rune]string{'b': "bad ", 'p': "panics ", 's': "stuck "}[kind] + fmt.Sprint(n)
					names = append(names, name)
					if kind == '.' {
						good = append(good, name)
					}
				}
				for n, r := range start(q, names...) {
					<-r.done
					switch {
					case slices.Contains(good, names[n]) != (r.err == nil):
						t.Errorf("item %q: Do returns %v", names[n], r.err)
					case strings.HasPrefix(names[n], "panics") &&
						!strings.Contains(r.err.Error(), "panic while an item was handled: a bad item"):
						t.Errorf("item %q: Do returns %v, want the panic", names[n], r.err)
					}
				}
				<-time.After(time.Second)
				var after []string
				for _, call := range table.takeCalls() {
					if names, found := strings.CutPrefix(call, "after "); found {
						after = append(after, names)
					}
				}
				want := []string{"x", strings.Join(good[1:], " ")}
				if len(good) == 1 {
					want = want[:1]
				}
				if !slices.Equal(after, want) {
					t.Errorf("AfterCommit is called with %q, want %q", after, want)
				}
			})
		})
	}
}

// TestOutageFailsWholeBatch checks that a batch is not run item by item if no item could be handled.
func TestOutageFailsWholeBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newBatcher(1)
		table.unavailable = true
		for n, r := range start(q, "a", "b", "c") {
			if <-r.done; !errors.Is(r.err, errUnavailable) {
				t.Errorf("item %d: Do returns %v, want %v", n, r.err, errUnavailable)
			}
		}
		table.check(t, "an outage", "run a", "run b c")
	})
}

// TestLockedRowDelaysNoOthers locks the row of some items for long. The other items of their batch wait for a moment,
// and those of later batches do not wait, except for one batch in a second.
func TestLockedRowDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newBatcher(1)
		first := start(q, "x", "locked a", "b", "locked c")
		if <-first[2].done; first[2].err != nil || first[2].after != runTime+commitTime+runTime+lockWait+runTime {
			t.Errorf("the item beside the locked ones: Do returns %v after %v", first[2].err, first[2].after)
		}
		<-time.After(commitTime)
		calls := table.takeCalls()
		slices.Sort(calls[4:]) // the items that are left out are handled beside the lane
		if want := []string{"run x", "after x", "run locked a b locked c", "skip locked a b locked c", "after b",
			"wait locked a", "wait locked c"}; !slices.Equal(calls, want) {
			t.Errorf("the calls are %q, want %q", calls, want)
		}
		for _, name := range []string{"d", "e"} {
			r := start(q, name)[0]
			if <-r.done; r.err != nil || r.after != runTime {
				t.Errorf("item %s: Do returns %v after %v, want nil after %v", name, r.err, r.after, runTime)
			}
			<-time.After(commitTime)
			table.check(t, "a later batch", "skip "+name, "after "+name)
		}
		<-time.After(time.Second)
		start(q, "f")
		<-time.After(time.Second)
		table.check(t, "a second later", "run f", "after f")

		close(table.unlock)
		for _, n := range []int{1, 3} {
			if <-first[n].done; first[n].err != nil {
				t.Errorf("item %d, whose row was locked: Do returns %v", n, first[n].err)
			}
		}
		<-time.After(time.Second)
		calls = table.takeCalls()
		handled := strings.Count(strings.Join(calls, "\n"), "after") // they join the queue in any order
		if !strings.HasPrefix(calls[0], "run locked") || handled < 1 || handled > 2 {
			t.Errorf("the calls are %q, want batches that wait for locks, with the two items", calls)
		}
	})
}

// TestRowLockedForLong locks the row of an item for longer than the time limit. A panic outside of the lanes is an
// error, too.
func TestRowLockedForLong(t *testing.T) {
	for name, test := range map[string]struct {
		item string
		free time.Duration
		want string
	}{
		"for ever": {"locked a", time.Hour, context.DeadlineExceeded.Error()},
		"a panic":  {"locked panics", time.Second, "panic while an item was handled: a bad item"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, table := newBatcher(1)
				time.AfterFunc(test.free, func() { close(table.unlock) })
				r := start(q, test.item)[0]
				if <-r.done; r.err == nil || !strings.Contains(r.err.Error(), test.want) || r.after > 2*timeLimit {
					t.Errorf("Do returns %v after %v, want %s", r.err, r.after, test.want)
				}
				<-time.After(test.free)
			})
		})
	}
}

// TestOneBatchSkipsAtATime has two lanes skip what is locked. They take turns, because each would otherwise leave out
// the items whose rows the other lane has locked.
func TestOneBatchSkipsAtATime(t *testing.T) {
	var running, most, skipped atomic.Int64
	q := &batch.Batcher[*item]{
		Run: func(_ context.Context, _ []*item, skipLocked bool) ([]*item, error) {
			if !skipLocked {
				return nil, errLockTimeout
			}
			most.Store(max(most.Load(), running.Add(1)))
			<-time.After(time.Millisecond)
			running.Add(-1)
			skipped.Add(1)
			return nil, nil
		},
		AfterCommit: func(context.Context, []*item) {},
		Lanes:       2, Size: 1, MaxItems: 100, Timeout: timeLimit,
	}
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			if err := q.Do(t.Context(), &item{}); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if most.Load() != 1 || skipped.Load() != 50 {
		t.Errorf("%d batches skip what is locked, %d at the same time; want 50, and one at a time", skipped.Load(),
			most.Load())
	}
}

// TestBoundOnItems has more items arrive than the bound, which counts those that have left their lanes, and those whose
// callers have gone.
func TestBoundOnItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, table := newBatcher(1)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, maxItems)
		for n := range maxItems {
			if err := q.Admit(); err != nil {
				t.Fatalf("item %d: Admit returns %v, want nil", n, err)
			}
			go func() { left <- q.Do(ctx, &item{fmt.Sprint("locked ", n)}) }()
			synctest.Wait()
		}
		leave()
		<-time.After(time.Second)
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("Do returns %v to a caller who leaves, want %v", err, context.Canceled)
		}
		calls := len(table.takeCalls())
		if err := q.Admit(); !errors.Is(err, batch.ErrOverloaded) {
			t.Errorf("Admit returns %v, want %v", err, batch.ErrOverloaded)
		}
		if err := q.Do(t.Context(), &item{"too many"}); !errors.Is(err, batch.ErrOverloaded) || calls == 0 {
			t.Errorf("Do returns %v, want %v", err, batch.ErrOverloaded)
		}
		close(table.unlock)
		<-time.After(time.Second)
		if err := errors.Join(q.Admit(), q.Do(t.Context(), &item{"later"})); err != nil {
			t.Errorf("after the overload: %v", err)
		}
		<-time.After(time.Second)
		handled := 0
		for _, call := range table.takeCalls() {
			if names, found := strings.CutPrefix(call, "after "); found {
				handled += strings.Count(names, "locked") + strings.Count(names, "later")
			}
		}
		if handled != maxItems+1 {
			t.Errorf("AfterCommit is called with %d items, want each once, %d", handled, maxItems+1)
		}
	})
}
