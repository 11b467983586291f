package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// codeProtocolViolation is the code of the error with which PgBouncer rejects a setting that it does not know.
const codeProtocolViolation = "08P01"

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
	errOneSession = errors.New("the pooler lends one session of PostgreSQL at a time, and a sweep keeps one: raise " +
		"default_pool_size, pool_size or max_db_connections of PgBouncer")
	errForgets = errors.New("the pooler does not keep prepared statements: write " +
		"default_query_exec_mode=cache_describe in the database URL, or set max_prepared_statements of PgBouncer 1.21")
)

// poolerTimeout is the longest wait for a second session of a pooler, which lends them to other clients too.
const poolerTimeout = 5 * time.Second

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

// checkPooler returns an error if a pooler before PostgreSQL cannot lend two sessions at the same time, or, if the
// connections of the pool prepare statements, does not keep these. The pool may have two connections or more.
func checkPooler(ctx context.Context, pool *sql.DB, prepares bool) error {
	limited, cancel := context.WithTimeout(ctx, poolerTimeout)
	defer cancel()
	err := useTwoSessions(limited, pool)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w (%w)", errOneSession, err)
	}
	if err != nil {
		return fmt.Errorf("use two sessions at the same time: %w", err)
	}
	if !prepares {
		return nil
	}
	return checkStatementsKept(limited, pool)
}

// useTwoSessions runs a statement while a transaction keeps another session.
func useTwoSessions(ctx context.Context, pool *sql.DB) error {
	holder, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer holder.Rollback() //nolint:errcheck // the transaction changes nothing
	if _, err := holder.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = '1min'`); err != nil {
		return err
	}
	_, err = pool.ExecContext(ctx, `SELECT 1`)
	return err
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
