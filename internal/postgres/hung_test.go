package postgres_test

import (
	"context"
	"database/sql"
	"net/url"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestHungHost connects to a server by two hosts, of which the first one begins to hang. The next statement does not
// wait for this host for long, and then uses the other host. A statement that is under way at the host that hangs
// ends then.
func TestHungHost(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testenv.Postgres(t))
	testenv.Must(t, err)
	observer, err := sql.Open("pgx", address.String())
	testenv.Must(t, err)
	defer observer.Close()
	defer testenv.Exec(t, observer,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hung'`)
	first, second := faulttest.NewProxy(t, address.Host), faulttest.NewProxy(t, address.Host)
	address.Host = first.Addr() + "," + second.Addr()
	db, err := postgres.Open(t.Context(), address.String(), "hung", 2, nil, nil)
	testenv.Must(t, err)
	pool := pool(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	session, err := pool.Conn(ctx)
	testenv.Must(t, err)
	defer session.Close()
	_, err = session.ExecContext(ctx, `SET statement_timeout = 0`)
	testenv.Must(t, err)
	underWay := make(chan error, 1)
	go func() {
		_, err := session.ExecContext(ctx, `SELECT pg_sleep(60)`)
		underWay <- err
	}()
	testenv.Must(t, pool.PingContext(ctx)) // on a second connection, which is idle afterwards
	testenv.Eventually(t, "a statement is under way, and a connection was idle for more than a second", func() bool {
		return testenv.Query[int](t, observer, `
			SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hung' AND datname = current_database()
				AND (wait_event = 'PgSleep' OR state = 'idle'
					AND state_change < clock_timestamp() - interval '1100 ms')`) == 2
	})
	first.HalfOpen()
	began := time.Now()
	if _, err := pool.ExecContext(ctx, `SELECT 1`); err != nil {
		t.Errorf("the next statement fails: %v, want it to use the other host", err)
	}
	if err := <-underWay; !postgres.Unavailable(err) {
		t.Errorf("the statement that was under way returns %v, want an error that Unavailable reports", err)
	}
	// A second for the ping, and one for a connection to the first host, on a machine that is not busy.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the statements took %v, want at most 20 s", took)
	}
}

// TestFailedPing ends all sessions of a pool, which are idle for more than a second. The next statement pings one of
// them. It uses a new session then, and the pool has closed the others.
func TestFailedPing(t *testing.T) {
	t.Parallel()
	const conns = 4
	address := testenv.Postgres(t)
	db, err := postgres.Open(t.Context(), address, "idle", conns, nil, nil)
	testenv.Must(t, err)
	pool := pool(t, db)
	var sessions []*sql.Conn
	for range conns {
		session, err := pool.Conn(t.Context())
		testenv.Must(t, err)
		sessions = append(sessions, session)
	}
	for _, session := range sessions {
		testenv.Must(t, session.Close())
	}
	observer, err := sql.Open("pgx", address)
	testenv.Must(t, err)
	defer observer.Close()
	testenv.Eventually(t, "all sessions were idle for more than a second", func() bool {
		return testenv.Query[int](t, observer, `
			SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle' AND datname = current_database()
				AND state_change < clock_timestamp() - interval '1100 ms'`) == conns
	})
	testenv.Exec(t, observer, `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'idle' AND datname = current_database()`)
	testenv.Exec(t, pool, `SELECT 1`)
	if n := pool.Stats().OpenConnections; n != 1 {
		t.Errorf("the pool has %d sessions, want 1", n)
	}
}
