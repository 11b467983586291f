package postgres_test

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestFailover connects to a primary with a synchronous standby. The URL also names a server that hangs, one that is
// gone, and one of another cluster. It cancels the wait of a commit for the standby, makes the primary read-only, and
// promotes the standby: the pool uses the new primary then. It makes no session when the old primary accepts changes
// and the new one is away.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.PostgresPair(t, nil)
	hangs, gone := listen(t), listen(t)
	gone.Close()
	other, err := url.Parse(testenv.Postgres(t))
	testenv.Must(t, err)
	observer, err := sql.Open("pgx", primary.URL())
	testenv.Must(t, err)
	defer observer.Close()
	testenv.Exec(t, observer, `CREATE DATABASE `+strings.TrimPrefix(other.Path, "/"))
	hosts := []string{
		hangs.Addr().String(), gone.Addr().String(),
		testenv.HostOf(t, standby.URL()), testenv.HostOf(t, primary.URL()), other.Host,
	}
	address := "postgres://" + other.User.String() + "@" + strings.Join(hosts, ",") + other.Path + "?sslmode=disable"
	if user := other.User.Username(); user != "postgres" {
		testenv.Exec(t, observer, `CREATE ROLE `+user+` LOGIN SUPERUSER`)
	}
	db, err := postgres.Open(t.Context(), address, "test", 4, nil, nil)
	testenv.Must(t, err)
	sessions := pool(t, db)
	testenv.Exec(t, sessions, `CREATE TABLE numbers (n int); CREATE ROLE app LOGIN; GRANT INSERT ON numbers TO app`)
	checkSessions(t, sessions, testenv.HostOf(t, primary.URL()))

	checkCommitsWait(t, primary, observer, "postgres://app@"+testenv.HostOf(t, primary.URL())+other.Path)
	checkCancelledWait(t, db, primary, standby)
	// the pool pings a session before its second use, but not again within a second
	checkSessions(t, sessions, testenv.HostOf(t, primary.URL()))

	testenv.Must(t, primary.SetReadOnly(t.Context()))
	testenv.Eventually(t, "the pool has no session of the old primary, and makes none", func() bool {
		err := insert(t, db)
		if err != nil && !postgres.Unavailable(err) {
			t.Fatalf("the error is %v, want one that Unavailable reports", err)
		}
		return err != nil && strings.Contains(err.Error(), "the server accepts no changes")
	})
	testenv.Must(t, standby.Promote(t.Context()))
	began := time.Now()
	testenv.Must(t, insert(t, db))
	if took := time.Since(began); took > 10*time.Second { // a second for the server that hangs, on a machine that is not busy
		t.Errorf("the first change after the promotion took %v, want at most 10 s", took)
	}
	checkSessions(t, sessions, testenv.HostOf(t, standby.URL()))
	later, err := postgres.Open(t.Context(), address, "test", 1, nil, nil)
	testenv.Must(t, err)
	checkSessions(t, pool(t, later), testenv.HostOf(t, standby.URL()))

	testenv.Must(t, primary.Set(t.Context(), `default_transaction_read_only = off`))
	testenv.Must(t, standby.Stop())
	hangs.Close()
	err = insert(t, db)
	if err == nil || !postgres.Unavailable(err) || !strings.Contains(err.Error(), "old primary") ||
		!strings.Contains(err.Error(), "system identifier") {
		t.Errorf("the error is %v, want one that says why the old primary and the server of another cluster are refused", err)
	}
	testenv.Must(t, standby.Restart(t.Context()))
	testenv.Must(t, primary.Follow(t.Context(), standby))
	testenv.Must(t, standby.AwaitStandby(t.Context()))
	testenv.Must(t, insert(t, db)) // the old primary has it too
	checkSessions(t, sessions, testenv.HostOf(t, standby.URL()))
}

// checkCommitsWait makes a primary wait for a standby that is away, although another one is connected. A superuser
// sees that at once, an ordinary role when one of its commits has waited for a second.
func checkCommitsWait(t *testing.T, primary *devstack.Postgres, observer *sql.DB, app string) {
	t.Helper()
	db, err := postgres.Open(t.Context(), app, "test", 2, nil, nil)
	testenv.Must(t, err)
	pool := pool(t, db)
	wait := func(db *sql.DB) bool {
		waits, err := postgres.CommitsWait(t.Context(), db)
		testenv.Must(t, err)
		return waits
	}
	testenv.Eventually(t, "no commit waits", func() bool { return !wait(observer) })
	testenv.Must(t, primary.Set(t.Context(), `synchronous_standby_names = 'other'`))
	testenv.Eventually(t, "commits wait for a standby that is away", func() bool { return wait(observer) })
	done := make(chan error)
	go func() { done <- insert(t, db) }()
	testenv.Eventually(t, "a commit has waited for a second", func() bool { return wait(pool) })
	testenv.Must(t, primary.AwaitStandby(t.Context()))
	testenv.Must(t, <-done)
	if wait(observer) || wait(pool) {
		t.Error("commits wait although the standby is connected")
	}
}

// checkCancelledWait cancels the waits of commits for a standby that is away. PostgreSQL reports a success with a
// warning, and the pool an error that leaves open whether the change was committed.
func checkCancelledWait(t *testing.T, db *gorm.DB, primary, standby *devstack.Postgres) {
	t.Helper()
	observer, err := sql.Open("pgx", primary.URL())
	testenv.Must(t, err)
	defer observer.Close()
	testenv.Must(t, standby.Stop())
	const statement = `INSERT INTO numbers VALUES (1), (2) RETURNING n`
	db = db.WithContext(t.Context())
	for name, change := range map[string]func() error{
		"one round trip": func() error { return insert(t, db) },
		"a result":       func() error { return db.Exec(statement).Error },
		"all rows":       func() error { return db.Raw(statement).Scan(&[]int{}).Error },
		"one row":        func() error { return db.Raw(statement).Row().Scan(new(int)) },
		"no row": func() error {
			return db.Raw(`WITH inserted AS (` + statement + `) SELECT WHERE false`).Scan(&[]int{}).Error
		},
		"a transaction": func() error {
			return db.Transaction(func(tx *gorm.DB) error { return tx.Exec(statement).Error })
		},
	} {
		waits := make(chan error)
		go func() { waits <- change() }()
		testenv.Eventually(t, "the commit of "+name+" waits for the standby", func() bool {
			return testenv.Query[int](t, observer,
				`SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) == 1
		})
		if err := <-waits; err == nil || !postgres.Unavailable(err) {
			t.Errorf("%s: the error is %v, want one that Unavailable reports", name, err)
		}
	}
	testenv.Must(t, standby.Restart(t.Context()))
	testenv.Must(t, insert(t, db))
}

// insert changes the database in a transaction of one round trip.
func insert(t *testing.T, db *gorm.DB) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return postgres.Transact(ctx, db, func(tx *postgres.Tx) error {
		tx.Queue(`INSERT INTO numbers VALUES (1)`)
		return nil
	})
}

// checkSessions takes all sessions of a pool, and checks that they are sessions of a host.
func checkSessions(t *testing.T, pool *sql.DB, host string) {
	t.Helper()
	for range pool.Stats().MaxOpenConnections {
		session, err := pool.Conn(t.Context())
		testenv.Must(t, err)
		defer session.Close()
		var got string
		testenv.Must(t, session.QueryRowContext(t.Context(), `SELECT '127.0.0.1:' || inet_server_port()`).Scan(&got))
		if got != host {
			t.Errorf("a session is one of %s, want %s", got, host)
		}
	}
}

// TestSessionsAreMadeOneAtATime asks for 20 sessions of a server that hangs. Those that wait for their turn fail with
// the one that is tried.
func TestSessionsAreMadeOneAtATime(t *testing.T) {
	t.Parallel()
	hangs := listen(t)
	var tried, untilFailure atomic.Int64
	go func() {
		for {
			conn, err := hangs.Accept()
			if err != nil {
				return
			}
			tried.Add(1)
			defer conn.Close()
		}
	}()
	db, err := postgres.Connect("postgres://app@" + hangs.Addr().String() + "/app?sslmode=disable&connect_timeout=1")
	testenv.Must(t, err)
	defer db.Close()
	var sessions sync.WaitGroup
	for range 20 {
		sessions.Go(func() {
			if session, err := db.Conn(t.Context()); err == nil {
				session.Close()
				t.Error("a server that hangs makes a session")
			} else if !postgres.Unavailable(err) {
				t.Errorf("the error is %v, want one that Unavailable reports", err)
			}
			untilFailure.CompareAndSwap(0, tried.Load())
		})
	}
	sessions.Wait()
	// A session that is asked for after the first failure may be tried before the failure is seen here.
	if first, all := untilFailure.Load(), tried.Load(); first > 2 || all > 10 {
		t.Errorf("%d connections were made until one failed, and %d for 20 sessions, want one at a time", first, all)
	}
}

// listen returns a listener that accepts no connection: the kernel does, so a client waits for an answer.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}
