package postgres_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestPipelineAfterDeadlock has PostgreSQL roll a pipeline back to resolve a deadlock with another session. The
// pipeline is repeated, with statements whose results are read anew.
func TestPipelineAfterDeadlock(t *testing.T) {
	db := openGorm(t, 4)
	pool := pool(t, db)
	testenv.Exec(t, pool, `CREATE TABLE rows AS SELECT n AS id, 0 AS changes FROM generate_series(1, 2) n`)
	const change = `UPDATE rows SET changes = changes + 1 WHERE id = $1 RETURNING changes`
	letOn := testenv.HoldLock(t, pool, `SELECT pg_advisory_xact_lock(1)`)
	other, err := pool.BeginTx(t.Context(), nil)
	testenv.Must(t, err)
	defer func() { _ = other.Rollback() }()
	_, err = other.ExecContext(t.Context(), `SELECT set_config(name, value, true)
		FROM (VALUES ('deadlock_timeout', '1min'), ('lock_timeout', '0'), ('statement_timeout', '0'),
		             ('idle_in_transaction_session_timeout', '0')) AS s (name, value)`)
	testenv.Must(t, err)
	_, err = other.ExecContext(t.Context(), change, 2)
	testenv.Must(t, err)

	var got []int
	ended := make(chan error, 1)
	builds := 0
	otherEnded := make(chan struct{})
	build := func() *pgx.Batch {
		if builds++; builds > 1 {
			<-otherEnded // or the second try could cause another deadlock
		}
		got = nil
		var b pgx.Batch
		b.Queue(`SELECT set_config(name, value, true)
			FROM (VALUES ('deadlock_timeout', '10ms'), ('lock_timeout', '0'), ('statement_timeout', '0'))
			     AS s (name, value)`)
		queueInt(&b, &got, change, 1)
		b.Queue(`SELECT pg_advisory_xact_lock(1)`)
		queueInt(&b, &got, change, 2)
		return &b
	}
	go func() { ended <- postgres.Pipeline(t.Context(), db, build) }()
	waiting := func(n int) func() bool {
		return func() bool {
			return testenv.Query[int](t, pool, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`) == n
		}
	}
	testenv.Eventually(t, "a pipeline that has changed row 1 and waits", waiting(1))
	go func() {
		defer close(otherEnded)
		_, err := other.ExecContext(t.Context(), change, 1)
		if err == nil {
			err = other.Commit()
		}
		if err != nil {
			t.Errorf("the other session gets %v, want that the pipeline is rolled back", err)
		}
	}()
	testenv.Eventually(t, "another session that waits for row 1", waiting(2))
	letOn()
	<-otherEnded
	if err := <-ended; err != nil || builds != 2 || !slices.Equal(got, []int{2, 2}) {
		t.Errorf("Pipeline returns %v after %d builds, results %v; want the second change of each row",
			err, builds, got)
	}
}
