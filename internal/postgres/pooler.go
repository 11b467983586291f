package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// codeProtocolViolation is the code of the error with which PgBouncer rejects a setting that it does not know.
const codeProtocolViolation = "08P01"

// checkSession returns an error if a session lacks one of its settings: a pooler, such as PgBouncer, may drop them. A
// session with a pooler must not prepare statements, unless explicit says that the URL names the way of executing
// statements: the next transaction may have another session of the server, which does not know them.
//
// checkSession ignores the application_name, which PgBouncer may extend, and the tcp_keepalives. Beside a pooler the
// latter concern the connection from the pooler to the server, and a Unix socket has none.
func checkSession(ctx context.Context, conn *pgconn.PgConn, settings map[string]string, explicit bool) error {
	want, err := json.Marshal(settings)
	if err != nil {
		return err
	}
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
		return fmt.Errorf("the session lacks settings, set them in the pooler as docs/production.md says: %s", wrong)
	}
	if !explicit && isPooled(conn, string(answer.Rows[0][0])) {
		return fmt.Errorf("a pooler stands before PostgreSQL: add default_query_exec_mode=cache_describe to the database URL, " +
			"or what docs/production.md says")
	}
	return nil
}

// isPooled reports whether a connection leads to a pooler, which has given it another id than that of the server's process.
func isPooled(conn *pgconn.PgConn, pid string) bool {
	return pid != strconv.FormatUint(uint64(conn.PID()), 10)
}

// Pooled reports whether a pooler, such as PgBouncer, stands between this process and the server of a database.
func Pooled(ctx context.Context, db *sql.DB) (pooled bool, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close()
	err = conn.Raw(func(driver any) error {
		pgConn := driver.(*session).Conn.Conn().PgConn()
		answer := pgConn.ExecParams(ctx, `SELECT pg_backend_pid()`, nil, nil, nil, nil).Read()
		if answer.Err == nil {
			pooled = isPooled(pgConn, string(answer.Rows[0][0]))
		}
		return answer.Err
	})
	return pooled, err
}
