package timeout

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gormpg "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
)

// TestLockedSharedRow locks a book. A statement waits for the lock only a short time. Then the loans of the other book
// are timed out, and the others are blocked. The lock_timeout of the session stays as it was.
func TestLockedSharedRow(t *testing.T) {
	l := newLibrary(t, 1)
	lockedBook, freeBook := l.book(t), l.book(t)
	ids := []string{l.loan(t, lockedBook, -time.Minute), l.loan(t, freeBook, -time.Minute)}
	release := testenv.HoldLock(t, l.other, `UPDATE books SET free = 0 WHERE id = $1`, lockedBook)
	outcomes, err := l.Handle(t.Context(), tasksOf(ids[0], ids[1], "no uuid"))
	if err != nil || len(outcomes) != 3 || outcomes[1] != delay.Done() || outcomes[2] != delay.Done() {
		t.Fatalf("Handle returns %+v, %v; want the loan of the free book and the task without a loan done", outcomes,
			err)
	}
	retryBetween(t, outcomes[0], 500*time.Millisecond, 1500*time.Millisecond)
	if n := testenv.Query[int](t, l.db, `SELECT free FROM books WHERE id = $1`, freeBook); n != 1 {
		t.Errorf("the free book was freed %d times, want once", n)
	}
	if n, left, err := l.TimeOut(t.Context(), ids); n != 0 || left != 1 || err != nil {
		t.Errorf("TimeOut returns %d timed out, %d locked, %v; want 0 and 1", n, left, err)
	}
	if limit := testenv.Query[string](t, l.db, `SHOW lock_timeout`); limit != "3s" {
		t.Errorf("the lock_timeout of the session is %s, want 3s", limit)
	}
	release()
	l.lastLockTimeout.Store(nil) // as after a second, in which another session could have locked the book for a moment
	if n, left, err := l.TimeOut(t.Context(), ids); n != 1 || left != 0 || err != nil {
		t.Errorf("after the lock is released: %d timed out, %d locked, %v; want 1 and 0", n, left, err)
	}
}

// TestManyRowsOfALockedSharedRow times out batch after batch of loans of a locked book. At most one batch in a second
// waits for the lock.
func TestManyRowsOfALockedSharedRow(t *testing.T) {
	l := newLibrary(t, 1)
	book := l.book(t)
	testenv.HoldLock(t, l.other, `UPDATE books SET free = 0 WHERE id = $1`, book)
	const batches = 30
	waits := map[time.Time]bool{}
	began := time.Now()
	for range batches {
		outcomes, err := l.Handle(t.Context(), tasksOf(l.loan(t, book, -time.Minute)))
		testenv.Must(t, err)
		retryBetween(t, outcomes[0], 500*time.Millisecond, 1500*time.Millisecond)
		waits[*l.lastLockTimeout.Load()] = true
	}
	if most := int(time.Since(began)/noWaitFor) + 1; len(waits) > most {
		t.Errorf("%d of %d batches waited for the lock, want at most %d in %v", len(waits), batches, most,
			time.Since(began))
	}
}

// TestLockTimeoutIsBlocked lets each statement end with a lock timeout, also the second one on the rows whose shared
// rows are free. All rows are blocked, and no attempt counts as failed.
func TestLockTimeoutIsBlocked(t *testing.T) {
	l := newLibrary(t, 1)
	ids := []string{l.loan(t, l.book(t), -time.Minute), l.loan(t, l.book(t), -time.Minute)}
	for _, free := range []string{loanRows.Free, ""} {
		l.rows = Rows{TimeOut: failing("55P03"), Free: free}
		outcomes, err := l.Handle(t.Context(), tasksOf(ids...))
		testenv.Must(t, err)
		for _, o := range outcomes {
			retryBetween(t, o, 500*time.Millisecond, 1500*time.Millisecond)
		}
		if n, left, err := l.TimeOut(t.Context(), ids); n != 0 || left != 2 || err != nil {
			t.Errorf("TimeOut returns %d timed out, %d locked, %v; want 0 and 2", n, left, err)
		}
	}
}

// failing returns a statement that times out no row and returns the error of PostgreSQL with this code.
func failing(code string) string {
	return `SELECT * FROM fail('` + code + `') WHERE $1::uuid[] IS NOT NULL AND $2::text <> ''`
}

func TestHandleWithoutDatabase(t *testing.T) {
	l := newLibrary(t, 2)
	id := l.loan(t, l.book(t), -time.Minute)
	away := func(t *testing.T, ctx context.Context) {
		t.Helper()
		_, err := l.Handle(ctx, tasksOf(id, keyset.NewID().String()))
		if answered, ok := delay.IsOutage(err); !ok || answered {
			t.Errorf("Handle returns %v, want an outage without an answer", err)
		}
	}
	t.Run("the database hangs", func(t *testing.T) {
		defer testenv.HoldLock(t, l.other, `LOCK loans`)()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		away(t, ctx)
	})
	t.Run("the database is gone", func(t *testing.T) {
		testenv.DisablePostgres(t, l.url)
		away(t, t.Context())
		_, _, err := l.TimeOut(t.Context(), []string{id})
		if answered, ok := delay.IsOutage(err); !ok || answered {
			t.Errorf("TimeOut returns %v, want an outage without an answer", err)
		}
		if _, _, err := l.Pending(t.Context(), keyset.Cursor{}, 0, 10); err == nil {
			t.Error("Pending returns no error")
		}
	})
}

// TestHungDatabase makes no connection to the database. No call of a reconciler waits for it for ever, so that later
// sweeps can try again.
func TestHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := gorm.Open(gormpg.New(gormpg.Config{Conn: testenv.HungDB(t)}),
			&gorm.Config{DisableAutomaticPing: true, Logger: logger.Discard})
		testenv.Must(t, err)
		table := NewTable(db, "loan.expire", loanRows, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, _, pendingErr := table.Pending(ctx, keyset.Cursor{}, 0, 10)
		_, _, timeOutErr := table.TimeOut(ctx, []string{keyset.NewID().String()})
		if _, outage := delay.IsOutage(timeOutErr); pendingErr == nil || !outage || ctx.Err() != nil {
			t.Errorf("Pending returns %v and TimeOut %v, and an hour has passed: %v; want errors before, the second "+
				"one an outage",
				pendingErr, timeOutErr, ctx.Err() != nil)
		}
	})
}

// TestHandleAfterErrors checks which errors of a statement are outages for a worker, and for a reconciler.
func TestHandleAfterErrors(t *testing.T) {
	l := newLibrary(t, 1)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	type outage struct{ is, answered bool }
	of := func(err error) (o outage) {
		o.answered, o.is = delay.IsOutage(err)
		return o
	}
	const noPrivilege, statementTimeout, poisoned = "42501", "57014", "23514"
	for name, test := range map[string]struct {
		ctx             context.Context
		code            string
		handle, timeOut outage
	}{
		"unavailable":           {t.Context(), noPrivilege, outage{true, true}, outage{true, true}},
		"slow statement":        {t.Context(), statementTimeout, outage{true, true}, outage{}},
		"the worker stops":      {stopped, noPrivilege, outage{true, false}, outage{true, false}},
		"the error of some row": {t.Context(), poisoned, outage{}, outage{}},
	} {
		l.rows.TimeOut = failing(test.code)
		ids := []string{keyset.NewID().String(), keyset.NewID().String()}
		if _, err := l.Handle(test.ctx, tasksOf(ids...)); err == nil || of(err) != test.handle {
			t.Errorf("%s: Handle returns %v, %+v; want %+v", name, err, of(err), test.handle)
		}
		if _, _, err := l.TimeOut(test.ctx, ids); err == nil || of(err) != test.timeOut {
			t.Errorf("%s: TimeOut returns %v, %+v; want %+v", name, err, of(err), test.timeOut)
		}
	}
}

// TestHandleWithoutAResult uses a statement that returns no result for one of its rows. Handle returns an error, so
// that the task of this row is not acknowledged.
func TestHandleWithoutAResult(t *testing.T) {
	l := newLibrary(t, 1)
	l.rows.TimeOut = `SELECT ($1::uuid[])[1] AS id, 'timed_out' AS state, 0 AS late_us, 0 AS left_us
		WHERE $2::text <> ''`
	if outcomes, err := l.Handle(t.Context(), tasksOf(keyset.NewID().String(), keyset.NewID().String())); err == nil {
		t.Errorf("outcomes %v, want an error", outcomes)
	}
}

func TestStatesBecomeOutcomes(t *testing.T) {
	for state, want := range map[RowState]delay.Outcome{
		TimedOut: delay.Done(), AlreadyEnded: delay.Done(), Gone: delay.Done(),
		NotDue: delay.RetryIn(time.Minute), Locked: delay.RetryIn(lockedRetry),
	} {
		if got := (Result{State: state, Left: time.Minute}).outcome(t.Context()); got != want {
			t.Errorf("the outcome of %s is %+v, want %+v", state, got, want)
		}
	}
	if got := (Result{State: "canceled"}).outcome(t.Context()); got.Err() == nil ||
		!strings.Contains(got.Err().Error(), "canceled") {
		t.Errorf("the outcome of an unknown state is %+v, want Fail with an error that names it", got)
	}
}

func TestTimeOutWithoutIDs(t *testing.T) {
	l := newLibrary(t, 1)
	l.rows.TimeOut = failing("XX000")
	if done, locked, err := l.TimeOut(t.Context(), nil); done != 0 || locked != 0 || err != nil {
		t.Errorf("without ids: %d timed out, %d locked, %v", done, locked, err)
	}
}

// TestRowsWithoutOwner times out rows that have no owner and no reason, and whose column of due times has another name.
func TestRowsWithoutOwner(t *testing.T) {
	l := newLibrary(t, 1)
	testenv.Exec(t, l.db,
		`CREATE TABLE seats (id uuid PRIMARY KEY, status text NOT NULL, held_until timestamptz NOT NULL, freed_at timestamptz)`)
	seat := func(in time.Duration) string {
		id := keyset.NewID().String()
		testenv.Exec(t, l.db, `INSERT INTO seats VALUES ($1, 'pending', now() + $2 * interval '1 microsecond')`, id,
			in.Microseconds())
		return id
	}
	due, early := seat(-time.Minute), seat(time.Minute)
	rows := Rows{Table: "seats", Due: "held_until", Observe: l.observe, TimeOut: `
		WITH ended AS (
			UPDATE seats SET status = 'free', freed_at = clock_timestamp()
			WHERE id = ANY ($1::uuid[]) AND held_until <= now() AND $2::text <> ''
			RETURNING id, held_until AS due_at, freed_at AS ended_at
		)`}
	table := NewTable(l.Table.db, "seat.free", rows, slog.New(slog.DiscardHandler))
	testenv.Must(t, table.Check(t.Context()))
	page, _, err := table.Pending(t.Context(), keyset.Cursor{}, time.Hour, 10)
	if err != nil || len(page) != 2 || page[0].ID != due || page[1].ID != early || page[0].Left() > -time.Minute {
		t.Errorf("the pending rows are %v, %v; want the overdue one and then the other", page, err)
	}
	if done, locked, err := table.TimeOut(t.Context(), []string{early, due}); done != 1 || locked != 0 || err != nil {
		t.Errorf("TimeOut returns %d timed out, %d locked, %v; want 1 and none", done, locked, err)
	}
	for _, v := range l.observed {
		late, left := v.Late >= time.Minute && v.Late < 2*time.Minute, v.Left > 0 && v.Left <= time.Minute
		switch {
		case v.ID == due && v.State == TimedOut && late && v.Owner == "" && v.Reason == "":
		case v.ID == early && v.State == NotDue && left:
		default:
			t.Errorf("unexpected result %+v", v)
		}
	}
}

// TestCheckNamesWrongStatement checks that the check of a table whose statements do not fit the schema names the
// statement, and what is wrong.
func TestCheckNamesWrongStatement(t *testing.T) {
	l := newLibrary(t, 1)
	for range 3 { // in one session
		testenv.Must(t, l.Check(t.Context()))
	}
	for name, test := range map[string]struct {
		change func(*Rows)
		want   string
	}{
		"table": {func(r *Rows) { r.Table = "loan" }, `relation "loan" does not exist`},
		"due":   {func(r *Rows) { r.Due = "due" }, `column "due" does not exist`},
		"ended": {func(r *Rows) { r.TimeOut = `WITH done AS (SELECT $2::text)` }, `relation "ended" does not exist`},
		"due_at": {func(r *Rows) { r.TimeOut = `WITH ended AS (SELECT $2::text AS id)` },
			`column "due_at" does not exist`},
		"pending": {func(r *Rows) { r.Pending = `SELECT x` }, `"SELECT x"`},
		"free":    {func(r *Rows) { r.Free = `SELECT x` }, `"SELECT x"`},
	} {
		rows := loanRows
		test.change(&rows)
		err := NewTable(l.Table.db, "loan.expire", rows, slog.New(slog.DiscardHandler)).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Check returns %v, want %q in it", name, err, test.want)
		}
	}
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
