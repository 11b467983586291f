package deadline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
)

// fakeRows is rows in memory. A statement on a row that needs a locked shared row waits until its limit and
// does not get the lock.
type fakeRows struct {
	states map[string]RowState // the state of each row, by id; TimeOut returns Gone for other ids
	shared map[string]string   // the key of the shared row that a row needs, by id
	locked map[string]bool     // the shared rows that another session has locked, by key
	err    error               // the error of each statement

	waits    []time.Duration // the limits of the statements that did not get the lock
	splits   int
	observed []Verdict
	actor    Actor
}

// Errors of PostgreSQL.
var (
	errShutdown         = &pgconn.PgError{Code: "57P01"}
	errLockTimeout      = &pgconn.PgError{Code: "55P03"}
	errStatementTimeout = &pgconn.PgError{Code: "57014"}
)

const sessionLockTimeout = 3 * time.Second

func (f *fakeRows) table() *Table {
	return &Table{timeOutRows: f.timeOut, splitRows: f.split, observe: f.observe, log: slog.New(slog.DiscardHandler)}
}

func (f *fakeRows) timeOut(ctx context.Context, ids []string, _ Actor, lockWait time.Duration) ([]Verdict, error) {
	if f.err != nil {
		return nil, f.err
	}
	if slices.ContainsFunc(ids, func(id string) bool { return f.locked[f.shared[id]] }) {
		f.waits = append(f.waits, lockWait)
		if lockWait == 0 {
			lockWait = sessionLockTimeout
		}
		select {
		case <-time.After(lockWait):
		case <-ctx.Done():
		}
		return nil, fmt.Errorf("statement: %w", errLockTimeout)
	}
	verdicts := make([]Verdict, len(ids))
	for i, id := range ids {
		verdicts[i] = Verdict{ID: id, State: Gone}
		if state, ok := f.states[id]; ok {
			verdicts[i].State = state
		}
		switch verdicts[i].State {
		case TimedOut:
			f.states[id] = AlreadyEnded
		case NotDue:
			verdicts[i].Left = time.Minute
		}
	}
	return verdicts, nil
}

func (f *fakeRows) split(_ context.Context, ids []string) (free []string, locked map[string][]string, err error) {
	f.splits++
	locked = map[string][]string{}
	for _, id := range ids {
		if key := f.shared[id]; f.locked[key] {
			locked[key] = append(locked[key], id)
		} else {
			free = append(free, id)
		}
	}
	return free, locked, f.err
}

func (f *fakeRows) observe(_ context.Context, verdicts []Verdict, actor Actor) {
	f.observed, f.actor = append(f.observed, verdicts...), actor
}

func tasksOf(ids ...string) []delay.Task {
	tasks := make([]delay.Task, len(ids))
	for i, id := range ids {
		tasks[i].ID = id
	}
	return tasks
}

// retryBetween fails the test if an outcome does not return its task to the queue within the given limits.
func retryBetween(t *testing.T, o delay.Outcome, least, most time.Duration) {
	t.Helper()
	if in, ok := o.Retry(); !ok || in < least || in > most {
		t.Errorf("the task is due again in %v (%v), want %v to %v", in, ok, least, most)
	}
}

func TestHandleTurnsVerdictsIntoOutcomes(t *testing.T) {
	rows := &fakeRows{states: map[string]RowState{
		"due": TimedOut, "ended": AlreadyEnded, "early": NotDue, "locked": Locked, "blocked": Blocked, "odd": "canceled",
	}}
	var log bytes.Buffer
	table := rows.table()
	table.log = slog.New(slog.NewTextHandler(&log, nil))
	foreign := strings.Repeat("x", 1000)
	outcomes, err := table.Handle(t.Context(), tasksOf("due", foreign, "ended", "early", "locked", "blocked", "gone", "odd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 1, 2, 6} {
		if outcomes[i] != delay.Done() {
			t.Errorf("outcome %d is %+v, want done", i, outcomes[i])
		}
	}
	retryBetween(t, outcomes[3], time.Minute, time.Minute)
	retryBetween(t, outcomes[4], lockedRetry, lockedRetry)
	retryBetween(t, outcomes[5], 500*time.Millisecond, 1500*time.Millisecond)
	if err := outcomes[7].Err(); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the outcome of an unknown state is %+v, want Fail with an error that names it", outcomes[7])
	}
	if len(rows.observed) != 8 || rows.actor != Worker {
		t.Errorf("%d verdicts were observed, by the %s; want 8 by the worker", len(rows.observed), rows.actor)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 2 || strings.Contains(text, foreign) ||
		!strings.Contains(text, "tasks=1") {
		t.Errorf("the log of two tasks without a row is\n%s", text)
	}
}

func TestHandleAfterErrors(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, test := range map[string]struct {
		ctx         context.Context
		err         error
		postponed   bool
		least, most time.Duration
	}{
		"unavailable":           {t.Context(), errShutdown, true, 500 * time.Millisecond, 1500 * time.Millisecond},
		"slow statement":        {t.Context(), errStatementTimeout, true, 500 * time.Millisecond, 1500 * time.Millisecond},
		"the worker stops":      {stopped, errShutdown, true, 0, 0},
		"the error of some row": {t.Context(), errors.New("poisoned"), false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rows := &fakeRows{err: fmt.Errorf("statement: %w", test.err)}
			outcomes, err := rows.table().Handle(test.ctx, tasksOf("a", "b"))
			if !test.postponed {
				if !errors.Is(err, test.err) {
					t.Errorf("%v, %v; want the error", outcomes, err)
				}
				return
			}
			if err != nil || len(outcomes) != 2 {
				t.Fatalf("%v, %v; want 2 outcomes", outcomes, err)
			}
			for _, outcome := range outcomes {
				retryBetween(t, outcome, test.least, test.most)
			}
		})
	}
}

// TestHandleWithoutAVerdict uses a statement that returns no verdict for one of its rows. Handle returns an error, so
// that the task of this row is not acknowledged.
func TestHandleWithoutAVerdict(t *testing.T) {
	table := &Table{timeOutRows: func(_ context.Context, ids []string, _ Actor, _ time.Duration) ([]Verdict, error) {
		return []Verdict{{ID: ids[0], State: TimedOut}}, nil
	}}
	if outcomes, err := table.Handle(t.Context(), tasksOf("a", "b")); err == nil {
		t.Errorf("outcomes %v, want an error", outcomes)
	}
}

func TestTimeOutForTheReconciler(t *testing.T) {
	rows := &fakeRows{states: map[string]RowState{"a": TimedOut, "b": TimedOut, "c": Locked, "d": Blocked, "e": NotDue}}
	table := rows.table()
	done, locked, err := table.TimeOut(t.Context(), []string{"a", "b", "c", "d", "e", "gone"})
	if done != 2 || locked != 2 || err != nil || rows.actor != Reconciler {
		t.Errorf("%d timed out, %d locked, %v, by the %s; want 2 and 2 by the reconciler", done, locked, err, rows.actor)
	}
	rows.err = errors.New("must not be called")
	if done, locked, err := table.TimeOut(t.Context(), nil); done != 0 || locked != 0 || err != nil {
		t.Errorf("without ids: %d timed out, %d locked, %v", done, locked, err)
	}
	for _, test := range []struct {
		err         error
		unavailable bool
	}{{errShutdown, true}, {errLockTimeout, true}, {errStatementTimeout, false}, {errors.New("poisoned"), false}} {
		rows.err = test.err
		table.waits.startSplitting() // so that splitRows returns the error
		if _, _, err := table.TimeOut(t.Context(), []string{"a"}); errors.Is(err, reconcile.ErrUnavailable) != test.unavailable {
			t.Errorf("%v wraps ErrUnavailable: %v, want %v", err, !test.unavailable, test.unavailable)
		}
	}
}

// TestLockedSharedRows uses sessions that keep locks of shared rows for a long time. A row that needs no locked row
// times out in each call. A statement waits for each locked row. The waits become short after several locks were not
// available, and stop for a while after each lock that was not available.
func TestLockedSharedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &fakeRows{states: map[string]RowState{}, shared: map[string]string{}, locked: map[string]bool{}}
		ids := []string{"free"}
		for i := range manySkipped + 2 {
			id := fmt.Sprint("locked-", i)
			ids = append(ids, id)
			rows.shared[id], rows.locked["key of "+id] = "key of "+id, true
		}
		table := rows.table()
		call := func(name string, wantBlocked int, wantWaits ...time.Duration) {
			t.Helper()
			for _, id := range ids {
				rows.states[id] = TimedOut
			}
			rows.waits = nil
			outcomes, err := table.Handle(t.Context(), tasksOf(ids...))
			if err != nil || outcomes[0] != delay.Done() {
				t.Fatalf("%s: %v, %v; want the free row timed out", name, outcomes, err)
			}
			blocked := 0
			for _, o := range outcomes {
				if _, again := o.Retry(); again {
					blocked++
				}
			}
			if blocked != wantBlocked || !slices.Equal(rows.waits, wantWaits) {
				t.Errorf("%s: %d rows are blocked, after waits of %v; want %d after %v", name, blocked, rows.waits, wantBlocked, wantWaits)
			}
		}
		all := len(ids) - 1
		call("first", all, 0, maxLockWait, maxLockWait, maxLockWait, minLockWait, minLockWait)
		call("second", all)
		<-time.After(skipFor + time.Second)
		call("after the skip", all, maxLockWait, maxLockWait, maxLockWait, minLockWait, minLockWait)
		clear(rows.locked)
		call("released", 0)
		splits := rows.splits
		<-time.After(splitFor)
		call("no longer split", 0)
		if rows.splits != splits {
			t.Error("the rows were split although no statement has lately failed to get a lock")
		}
	})
}

// TestLogOfALockedSharedRow has a session lock the shared row of 800 due rows for a minute, while their tasks come back
// again and again. The log has a line for each time that a statement waited for the lock, and the lines count each attempt.
func TestLogOfALockedSharedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := &fakeRows{states: map[string]RowState{}, shared: map[string]string{}, locked: map[string]bool{"book": true}}
		var ids []string
		for i := range 800 {
			ids = append(ids, strconv.Itoa(i))
			rows.states[ids[i]], rows.shared[ids[i]] = TimedOut, "book"
		}
		var log bytes.Buffer
		table := rows.table()
		table.log = slog.New(slog.NewTextHandler(&log, nil))
		for began := time.Now(); time.Since(began) < time.Minute; <-time.After(time.Second) {
			for batch := range slices.Chunk(ids, 10) {
				if _, err := table.Handle(t.Context(), tasksOf(batch...)); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-time.After(skipFor)
		if _, err := table.Handle(t.Context(), tasksOf("0")); err != nil {
			t.Fatal(err)
		}
		lines, logged := 0, 0
		for _, found := range regexp.MustCompile(`shared_row=book postponed=(\d+)\n`).FindAllStringSubmatch(log.String(), -1) {
			n, _ := strconv.Atoi(found[1])
			lines, logged = lines+1, logged+n
		}
		if most := int(time.Minute/skipFor) + 1; lines > most || lines != strings.Count(log.String(), "\n") || logged != len(rows.observed) {
			t.Errorf("%d lines count %d of %d attempts, want at most %d lines that count each attempt:\n%.2000s",
				lines, logged, len(rows.observed), most, log.String())
		}
		<-time.After(2*skipFor + time.Second)
		if table.waits.limit("another", 1); len(table.waits.skips) > 0 {
			t.Errorf("%d locks are kept long after their last skip, want none", len(table.waits.skips))
		}
	})
}

// TestLockTimeoutWithoutSplit uses rows without shared rows. After a lock timeout all rows are blocked.
func TestLockTimeoutWithoutSplit(t *testing.T) {
	rows := &fakeRows{err: errLockTimeout}
	table := rows.table()
	table.splitRows, table.observe = nil, nil
	for range 2 {
		outcomes, err := table.Handle(t.Context(), tasksOf("a", "b"))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range outcomes {
			retryBetween(t, o, 500*time.Millisecond, 1500*time.Millisecond)
		}
	}
}
