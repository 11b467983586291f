// Package postgres connects to PostgreSQL with session settings for short statements. It distinguishes errors of the
// server from errors of the statement, and repeats statements that a deadlock ended.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// sessionSettings are the settings of every session of the pool, whatever the defaults of the server, database and
// role are. The values are written as SHOW returns them. The file pgbouncer.ini has them too.
var sessionSettings = map[string]string{
	"timezone": "UTC",

	// The statements of the application are written for this level.
	"default_transaction_isolation": "read committed",

	// All statements should be short, because a long one blocks the statements that wait for its locks. PostgreSQL
	// looks for a deadlock after a second (deadlock_timeout), and with a shorter lock_timeout the statements of a
	// deadlock would end before that.
	"statement_timeout": "5s",
	"lock_timeout":      "3s",

	// A process that freezes between the statements of a transaction keeps its locks for at most this long.
	"idle_in_transaction_session_timeout": "1s",

	// A session of the pool is idle until a request needs it. If the server ended idle sessions, that request would
	// fail.
	"idle_session_timeout": "0",

	// The service answers 201 after a commit, and promises that the row survives a crash. With another default of the
	// server, PostgreSQL could report a commit before it is on disk.
	"synchronous_commit": "on",

	// When the wait of a commit for a standby is cancelled, PostgreSQL reports a success with a warning. Without the
	// warning the service would answer 201. See errUnreplicated.
	"client_min_messages": "warning",

	// The server detects after 25 s that a client has vanished, instead of after two hours. Then it ends the session
	// and releases its locks, the advisory lock of a reconciler among them.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "3",
}

// IndexPlans are settings for [Open]. They fit a program if each of its statements has one good plan, which uses an
// index and does not depend on the parameters. The file pgbouncer.ini has them too.
var IndexPlans = map[string]string{
	// PostgreSQL plans a statement once in each session. On SSDs a random read costs about as much as a sequential
	// one.
	"plan_cache_mode":  "force_generic_plan",
	"random_page_cost": "1.1",

	// A plan that is made while a table is empty reads the whole table, and a session keeps it until the table has
	// new statistics: for a minute or more after the first row.
	"enable_seqscan": "off",

	// PostgreSQL compiles a statement whose estimated cost is high. With enable_seqscan off, the estimate is high for
	// each statement that has no index to use, even on a table of one row. To compile it takes far longer than to run
	// it.
	"jit": "off",
}

// CheckURL returns an error if a text is not the URL of a database. The error does not have the password.
func CheckURL(databaseURL string) error {
	_, err := parse(databaseURL)
	return err
}

// parse is [pgx.ParseConfig]. It refuses a URL in which pgx would take a part of the password for the host, because the
// errors of the connection show the host.
func parse(databaseURL string) (*pgx.ConnConfig, error) {
	scheme, url, _ := strings.Cut(databaseURL, "://")
	beforeQuery, _, _ := strings.Cut(url, "?")
	authority, path, _ := strings.Cut(beforeQuery, "/")
	if (scheme == "postgres" || scheme == "postgresql") &&
		(strings.Count(authority, "@") > 1 || strings.Contains(path, "@")) {
		return nil, errors.New("want the special characters of the password percent-encoded, as in p%40ss for p@ss")
	}
	return pgx.ParseConfig(databaseURL) // its error masks the password
}

// Open connects to a database with at most conns connections. pg_stat_activity lists them under the name of the
// application. The session settings are for short statements, not for migrations: a statement may run for 5 s
// (statement_timeout) and wait for each lock for 3 s (lock_timeout), and a transaction may be idle between two
// statements for 1 s (idle_in_transaction_session_timeout). A transaction sets a shorter lock_timeout with
// set_config('lock_timeout', …, true). The program may add settings of its own, such as [IndexPlans], with values as
// SHOW returns them. The URL may name several hosts: Open uses the first one that accepts changes. An error names the
// addresses, but never the password.
//
// Before each connection Open reads the URL again by reread, if it is not nil, because the user and the password may
// have been changed since. While reread fails, Open uses the first ones.
func Open(
	ctx context.Context, databaseURL, application string, conns int, settings map[string]string,
	reread func() (string, error),
) (*gorm.DB, error) {
	all := maps.Clone(sessionSettings)
	maps.Copy(all, settings)
	all["application_name"] = application
	refusePooler := errPrepares
	if strings.Contains(databaseURL, "default_query_exec_mode") {
		refusePooler = nil // the operator says whether the pooler keeps prepared statements
	}
	c, err := newConnector(databaseURL, conns, all, refusePooler, reread)
	if err != nil {
		return nil, err
	}
	db := c.pool
	db.SetMaxOpenConns(conns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	db.SetConnMaxLifetime(time.Hour) // so that connections move to a server that was added or replaced

	err = db.PingContext(ctx)
	if err == nil && conns > 1 && strings.Contains(databaseURL, "cache_statement") {
		err = checkStatementsKept(ctx, db)
	}
	if err != nil {
		db.Close()
		if isUnknownSetting(err) {
			err = fmt.Errorf("%w: a pooler must ignore the settings of sessions, as in internal/postgres/pgbouncer.ini", err)
		}
		return nil, fmt.Errorf("connect to PostgreSQL: %w", oneLine{err})
	}
	// gorm neither prepares statements nor begins transactions: pgx caches prepared statements, and each statement of
	// the application is a transaction of its own.
	gdb, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{
		Logger:                 logger.Discard,
		SkipDefaultTransaction: true,
		DisableAutomaticPing:   true,
		QueryFields:            true, // a new column must not change the result of a cached statement
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open gorm: %w", err)
	}
	return gdb, nil
}

// oneLine is an error whose text is one line, without repetitions. The text of pgx has a line for each way to connect
// to a host, for example with TLS and without.
type oneLine struct{ error }

func (e oneLine) Error() string {
	var lines []string
	for line := range strings.Lines(e.error.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

func (e oneLine) Unwrap() error { return e.error }

// scanUTC makes pgx return times in UTC instead of the machine's zone.
func scanUTC(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}
