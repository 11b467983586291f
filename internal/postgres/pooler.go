package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// codeProtocolViolation is the code of the error with which PgBouncer rejects a setting that it does not know.
const codeProtocolViolation = "08P01"

// Errors of sessions with a pooler.
var (
	errPrepares = errors.New("a pooler stands before PostgreSQL: add default_query_exec_mode=cache_describe to the " +
		"database URL, or cache_statement if the pooler keeps prepared statements")
	errNoMigration = errors.New("a pooler stands before PostgreSQL: migrate with the address of PostgreSQL itself, " +
		"because the lock of the migrations belongs to a session")
)

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
