package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// The codes of the errors of a session that another client has used between two statements of one client.
const (
	codeStatementExists = "42P05"
	codeNoStatement     = "26000"
)

// Errors of sessions with a pooler.
var (
	errPrepares = errors.New("a pooler stands before PostgreSQL: add default_query_exec_mode=cache_describe to the " +
		"database URL, or cache_statement if the pooler keeps prepared statements")
	errNoMigration = errors.New("a pooler stands before PostgreSQL: migrate with the address of PostgreSQL itself, " +
		"because the lock of the migrations belongs to a session")
	errForgets = errors.New("the pooler does not keep prepared statements: write " +
		"default_query_exec_mode=cache_describe in the database URL, or set max_prepared_statements of PgBouncer 1.21")
)

// sessionsTimeout bounds how long [CheckSessions] waits, and keeps sessions that others may need.
const sessionsTimeout = 3 * time.Second

// isUnknownSetting reports whether an error is that of PgBouncer which does not know a setting. PgBouncer gives the code
// to most of its errors.
func isUnknownSetting(err error) bool {
	return hasCode(err, "08P01") && strings.Contains(err.Error(), "startup parameter")
}

// checkSession returns an error if a session lacks one of its settings, because a pooler, such as PgBouncer, may drop
// them. It returns refusePooler if there is a pooler: a pooler gives the session's process another id than the server
// does. A session with a pooler must not prepare statements, unless the URL says so, because the next transaction may
// have another session of the server, which does not know them.
//
// checkSession ignores the application_name, which PgBouncer may extend, and the tcp_keepalives. Behind a pooler the
// tcp_keepalives concern the connection from the pooler to the server, and a Unix socket has none.
func checkSession(ctx context.Context, conn *pgconn.PgConn, settings map[string]string, refusePooler error) error {
	want, _ := json.Marshal(settings) // a map of texts causes no error
	answer := conn.ExecParams(ctx, `
		SELECT pg_backend_pid(), (
			SELECT string_agg(format('%s is %s, want %s', key, current_setting(key), value), '; ')
			FROM json_each_text($1)
			WHERE current_setting(key) <> value AND key NOT LIKE 'tcp%' AND key <> 'application_name')`,
		[][]byte{want}, nil, nil, nil).Read()
	if answer.Err != nil {
		return fmt.Errorf("read the settings of the session: %w", answer.Err)
	}
	if wrong := string(answer.Rows[0][1]); wrong != "" {
		return fmt.Errorf("the session lacks settings, set them as in internal/postgres/pgbouncer.ini: %s", wrong)
	}
	if string(answer.Rows[0][0]) != strconv.FormatUint(uint64(conn.PID()), 10) {
		return refusePooler
	}
	return nil
}

// CheckSessions returns an error if a pool does not get a number of sessions at the same time, for instance because a
// pooler before PostgreSQL lends fewer.
func CheckSessions(ctx context.Context, pool *sql.DB, sessions int) error {
	limited, cancel := context.WithTimeout(ctx, sessionsTimeout)
	defer cancel()
	for n := range sessions {
		tx, err := beginIdle(limited, pool)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("want %d sessions of PostgreSQL at the same time, because each sweep keeps one, and got %d "+
				"within %v: if a pooler lends them, raise its default_pool_size, pool_size or max_db_connections",
				sessions, n, sessionsTimeout)
		}
		if err != nil {
			return fmt.Errorf("begin a transaction: %w", err)
		}
		defer tx.Rollback() //nolint:errcheck // the transaction changes nothing
	}
	return nil
}

// beginIdle begins a transaction that may be idle for longer than [CheckSessions] waits.
func beginIdle(ctx context.Context, pool *sql.DB) (*sql.Tx, error) {
	tx, err := pool.BeginTx(ctx, nil)
	if err == nil {
		_, err = tx.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = '1min'`)
	}
	return tx, err
}

// checkStatementsKept has two connections prepare the same statements, and use them.
func checkStatementsKept(ctx context.Context, pool *sql.DB) error {
	first, err := pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer first.Close()
	second, err := pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect again: %w", err)
	}
	defer second.Close()
	for range 10 { // at first the pooler may lend the two connections different sessions
		statement := `SELECT '` + uuid.NewString() + `', $1::int` // its text is its name
		for _, conn := range []*sql.Conn{first, second, first} {
			_, err := conn.ExecContext(ctx, statement, 1)
			if hasCode(err, codeStatementExists) || hasCode(err, codeNoStatement) {
				return errForgets
			}
			if err != nil {
				return fmt.Errorf("prepare a statement: %w", err)
			}
		}
	}
	return nil
}
