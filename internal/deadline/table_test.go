package deadline

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
)

func TestHandle(t *testing.T) {
	l := newLibrary(t, 4)
	book := l.book(t)
	due, early, ended, locked := l.loan(t, book, -time.Minute), l.loan(t, book, time.Hour), l.loan(t, book, -time.Minute), l.loan(t, book, -time.Minute)
	l.exec(t, `UPDATE loans SET status = 'returned' WHERE id = $1`, ended)
	l.lock(t, `SELECT FROM loans WHERE id = $1 FOR UPDATE`, locked)

	outcomes, err := l.Handle(t.Context(), tasksOf(due, "no uuid", ended, keyset.NewID().String(), strings.ToUpper(early), early, locked))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if outcomes[i] != delay.Done() {
			t.Errorf("outcome %d is %+v, want done", i, outcomes[i])
		}
	}
	retryBetween(t, outcomes[5], 59*time.Minute, time.Hour)
	retryBetween(t, outcomes[6], lockedRetry, lockedRetry)
	if n := l.free(t, book); n != 1 {
		t.Errorf("the book was freed %d times, want once", n)
	}
	i := slices.IndexFunc(l.observed, func(v Verdict) bool { return v.ID == due })
	if i < 0 || len(l.observed) != 7 || l.actor != Worker {
		t.Fatalf("%d verdicts were observed, by the %s; want 7 by the worker, one of them on %s", len(l.observed), l.actor, due)
	}
	got := l.observed[i]
	if got.Late < time.Minute || got.Late > 2*time.Minute {
		t.Errorf("the loan was timed out %v late, want about a minute", got.Late)
	}
	if got.Late = 0; got != (Verdict{ID: due, State: TimedOut, Owner: book, Reason: "overdue"}) {
		t.Errorf("the verdict on the loan that is due is %+v", got)
	}
	if text := l.logged.String(); strings.Count(text, "level=WARN") != 2 || strings.Count(text, "kind=loan.expire") != 2 {
		t.Errorf("the log of three tasks without a row is\n%s\nwant two warnings with the kind", text)
	}
	if outcomes, err := l.Handle(t.Context(), tasksOf(due)); err != nil || outcomes[0] != delay.Done() || l.free(t, book) != 1 {
		t.Errorf("a second call returns %v, %v, and the book was freed %d times; want done, and once", outcomes, err, l.free(t, book))
	}
}

// TestLockedSharedRow locks a book. The reconciler waits for the lock only a short time, times out the loans of the other
// book, and leaves the lock_timeout of the session as it was.
func TestLockedSharedRow(t *testing.T) {
	l := newLibrary(t, 1)
	lockedBook, freeBook := l.book(t), l.book(t)
	ids := []string{l.loan(t, lockedBook, -time.Minute), l.loan(t, freeBook, -time.Minute)}
	release := l.lock(t, `UPDATE books SET free = 0 WHERE id = $1`, lockedBook)
	for call, want := range []struct{ done, locked int }{{1, 1}, {0, 1}} {
		if n, left, err := l.TimeOut(t.Context(), ids); n != want.done || left != want.locked || err != nil {
			t.Errorf("call %d: %d timed out, %d locked, %v; want %d and %d", call, n, left, err, want.done, want.locked)
		}
	}
	if n := l.free(t, freeBook); n != 1 {
		t.Errorf("the free book was freed %d times, want once", n)
	}
	var limit string
	if err := l.db.QueryRowContext(t.Context(), `SHOW lock_timeout`).Scan(&limit); err != nil || limit != "3s" {
		t.Errorf("the lock_timeout of the session is %s, %v; want 3s", limit, err)
	}
	release()
	l.waits = lockWaits{} // as after skipFor
	if n, left, err := l.TimeOut(t.Context(), ids); n != 1 || left != 0 || err != nil {
		t.Errorf("after the lock is released: %d timed out, %d locked, %v; want 1 and 0", n, left, err)
	}
}

func TestHandleWithoutDatabase(t *testing.T) {
	l := newLibrary(t, 2)
	id := l.loan(t, l.book(t), -time.Minute)
	retried := func(t *testing.T, ctx context.Context, least, most time.Duration) {
		t.Helper()
		outcomes, err := l.Handle(ctx, tasksOf(id, keyset.NewID().String()))
		if err != nil || len(outcomes) != 2 {
			t.Fatalf("returned %v, %v; want 2 outcomes", outcomes, err)
		}
		for _, o := range outcomes {
			retryBetween(t, o, least, most)
		}
	}
	t.Run("the worker stops", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		retried(t, ctx, 0, 0)
	})
	t.Run("the database hangs", func(t *testing.T) {
		defer l.lock(t, `LOCK loans`)()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		retried(t, ctx, 500*time.Millisecond, 1500*time.Millisecond)
	})
	t.Run("the database is gone", func(t *testing.T) {
		testenv.DisablePostgres(t, l.url)
		retried(t, t.Context(), 500*time.Millisecond, 1500*time.Millisecond)
		if _, _, err := l.TimeOut(t.Context(), []string{id}); !errors.Is(err, reconcile.ErrUnavailable) {
			t.Errorf("TimeOut returns %v, want an error that wraps reconcile.ErrUnavailable", err)
		}
		if _, _, err := l.Pending(t.Context(), "", reconcile.All, 10); err == nil {
			t.Error("Pending returns no error")
		}
	})
}
