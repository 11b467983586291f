package testenv

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net/url"
	"strings"
	"testing"
)

// Query returns the one value that a statement selects.
func Query[T any](t testing.TB, db *sql.DB, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRowContext(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// hung makes no connection until the context ends.
type hung struct{ driver.Connector }

func (hung) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// HungDB returns a pool of a server that does not answer.
func HungDB(t testing.TB) *sql.DB {
	db := sql.OpenDB(hung{})
	t.Cleanup(func() { db.Close() })
	return db
}

// QueryAll returns the values that a statement selects, one a row.
func QueryAll[T any](t testing.TB, db *sql.DB, statement string, args ...any) (all []T) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	for rows.Next() {
		var v T
		Must(t, rows.Scan(&v))
		all = append(all, v)
	}
	Must(t, rows.Err())
	return all
}

// Exec executes a statement without the statement timeout of the service's sessions, because a test may insert many
// rows.
func Exec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	Must(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), `SET statement_timeout = 0`)
	Must(t, err)
	defer func() { _, _ = conn.ExecContext(t.Context(), `RESET statement_timeout`) }()
	if _, err := conn.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// DropChecks drops the CHECK constraints of all tables, so that a test can store what they exclude.
func DropChecks(t testing.TB, db *sql.DB) {
	t.Helper()
	for _, drop := range QueryAll[string](t, db, `
		SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint
		WHERE contype = 'c' AND connamespace = current_schema::regnamespace`) {
		Exec(t, db, drop)
	}
}

// HoldLock executes a statement in a transaction of its own. The transaction keeps its locks until release commits it,
// or the test ends.
func HoldLock(t testing.TB, db *sql.DB, statement string, args ...any) (release func()) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	Must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`)
	Must(t, err)
	_, err = tx.ExecContext(t.Context(), statement, args...)
	Must(t, err)
	return func() {
		t.Helper()
		Must(t, tx.Commit())
	}
}

// Explain returns the plan of a prepared statement in a session of the pool, whose settings influence the plan. params
// are SQL literals, separated by commas, or "" for a statement without parameters.
func Explain(t testing.TB, db *sql.DB, statement, params string) string {
	t.Helper()
	conn, err := db.Conn(t.Context()) // a prepared statement belongs to its session
	Must(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), `PREPARE examined AS `+statement)
	Must(t, err)
	defer func() { _, _ = conn.ExecContext(t.Context(), `DEALLOCATE examined`) }()
	execute := `EXPLAIN EXECUTE examined`
	if params != "" {
		execute += " (" + params + ")"
	}
	rows, err := conn.QueryContext(t.Context(), execute)
	Must(t, err)
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		Must(t, rows.Scan(&line))
		plan.WriteString(line + "\n")
	}
	Must(t, rows.Err())
	return plan.String()
}

// AwaitLockWait waits until a session of the database waits for a lock.
func AwaitLockWait(t testing.TB, db *sql.DB) {
	t.Helper()
	Eventually(t, "a session that waits for a lock", func() bool {
		return Query[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	})
}

// HostOf returns the host and the port of the server of a URL.
func HostOf(t testing.TB, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	Must(t, err)
	return u.Host
}

// Role creates a role that may only log in to the database at an address. asRole is the address with which it does. The
// role and its privileges end with the test, before db is closed.
func Role(t testing.TB, db *sql.DB, address string) (role, asRole string) {
	t.Helper()
	u, err := url.Parse(address)
	Must(t, err)
	role = "role_of_" + strings.TrimPrefix(u.Path, "/")
	Exec(t, db, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		if _, err := db.ExecContext(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	u.User = url.UserPassword(role, "secret")
	return role, u.String()
}
