package shop_test

import (
	"errors"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
)

// sweep runs a sweep.
func sweep(t testing.TB, a *app.Process) {
	t.Helper()
	_, err := a.Kinds[0].Reconciler.Sweep(t.Context())
	testenv.Must(t, err)
}

// TestOneSweepAtATime has two processes, of which one sweeps, and then dies.
func TestOneSweepAtATime(t *testing.T) {
	databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
	a, b := openApp(t, databaseURL, redisURL, 1), openApp(t, databaseURL, redisURL, 1)
	if last, _, err := b.Kinds[0].Reconciler.Last(t.Context()); err != nil || last != nil {
		t.Errorf("before the first sweep the last report is %v, %v; want none", last, err)
	}
	holder, err := a.Pool.Conn(t.Context())
	testenv.Must(t, err)
	defer holder.Close()
	const lockName = "reconcile " + order.CancelKind
	if _, err := holder.ExecContext(t.Context(), `SELECT pg_advisory_lock(hashtextextended($1, 0))`,
		lockName); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Kinds[0].Reconciler.Sweep(t.Context()); !errors.Is(err, reconcile.ErrSweeping) {
		t.Errorf("a sweep during another one returned %v, want ErrSweeping", err)
	}
	// The session that holds the lock ends, as if its process had died.
	testenv.Exec(t, a.Pool, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`)
	testenv.Eventually(t, "the lock is free", func() bool {
		_, err := b.Kinds[0].Reconciler.Sweep(t.Context())
		return err == nil
	})
	if last, _, err := a.Kinds[0].Reconciler.Last(t.Context()); err != nil || last == nil ||
		last.Outcome != reconcile.OK {
		t.Errorf("the other instance's report is %v, %v; want one that is ok", last, err)
	}
}
