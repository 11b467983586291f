package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// The longest time for a new connection to a host, unless the URL has a connect_timeout.
const (
	connectTimeout = 5 * time.Second // to the only host of the URL
	hostTimeout    = time.Second     // to each of several hosts
)

// Connect returns a pool for migrations, which need one session at a time. Unlike those of [Open], its sessions have
// the settings of the server. A pooler is refused, because the lock of the migrations belongs to a session.
func Connect(databaseURL string) (*sql.DB, error) {
	c, err := newConnector(databaseURL, 1, map[string]string{}, errNoMigration, nil)
	if err != nil {
		return nil, err
	}
	return c.pool, nil
}

// connector makes the sessions of a pool. It connects to a host of the URL that accepts changes and is no old primary,
// whatever the target_session_attrs are. It tries the host of the last session first, and then the other hosts in their
// order. At most one of the hosts may accept changes.
//
// When another host accepts a connection, the host of the last session has failed. It may hang, so its connections are
// closed, and their statements end at once, instead of at their time limits.
//
// The connector tries the hosts itself, because pgx ends its search at a host that does not know the role or the
// database any more, such as an old primary after the password was changed. The time limit of pgx also begins anew for
// each address of a host.
type connector struct {
	hosts    []driver.Connector
	timeout  time.Duration // the longest time for a new connection to a host
	tracers  multitracer.Tracer
	pool     *sql.DB
	maxIdle  int      // the largest number of idle sessions of the pool
	sessions sync.Map // the open sessions; the keys are of type *session

	// turn has one value. The goroutine that has taken it makes a session, and owns the two fields below.
	turn chan failure
	good int // the index of the host that accepted the last connection
	seen timeline
}

// failure is the last attempt to make a session that failed.
type failure struct {
	at  time.Time
	err error
}

// newConnector returns a connector with a pool, in which at most maxIdle sessions are idle. The sessions have settings
// besides those of the URL. With a pooler, making a session fails with refusePooler, unless that is nil. For reread see
// [Open].
func newConnector(
	databaseURL string, maxIdle int, settings map[string]string, refusePooler error, reread func() (string, error),
) (*connector, error) {
	cfg, err := parse(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	switch cfg.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
	default: // the others cannot send arrays of UUIDs, or need two transactions for a statement
		return nil, fmt.Errorf("database URL: default_query_exec_mode is %s, want cache_statement or cache_describe",
			cfg.DefaultQueryExecMode)
	}
	maps.Copy(cfg.RuntimeParams, settings)
	c := &connector{turn: make(chan failure, 1), maxIdle: maxIdle}
	c.turn <- failure{}
	cfg.ValidateConnect = func(ctx context.Context, session *pgconn.PgConn) error {
		if err := checkWritable(session); err != nil {
			return err
		}
		if err := c.seen.check(ctx, session); err != nil {
			return err
		}
		return checkSession(ctx, session, settings, refusePooler)
	}
	staysOpen := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return err.Code != codeReadOnly && staysOpen(conn, err) // false: pgx closes the connection
	}
	cfg.OnNotice = func(session *pgconn.PgConn, notice *pgconn.Notice) {
		if notice.Routine == "SyncRepWaitForLSN" { // the server translates the text of the warning
			session.CustomData()[unreplicatedKey] = true
		}
	}
	cfg.Tracer = &c.tracers
	hosts := hostsOf(cfg)
	c.timeout = cmp.Or(cfg.ConnectTimeout, connectTimeout)
	if len(hosts) > 1 {
		c.timeout = cmp.Or(cfg.ConnectTimeout, hostTimeout)
	}
	for _, host := range hosts {
		c.hosts = append(c.hosts, stdlib.GetConnector(host, stdlib.OptionAfterConnect(scanUTC),
			stdlib.OptionBeforeConnect(func(_ context.Context, session *pgx.ConnConfig) error {
				setUser(session, reread)
				return nil
			})))
	}
	c.pool = sql.OpenDB(c)
	c.pool.SetMaxIdleConns(maxIdle)
	return c, nil
}

// setUser sets the user and the password of a URL that reread returns, if it can be read.
func setUser(session *pgx.ConnConfig, reread func() (string, error)) {
	if reread == nil {
		return
	}
	text, err := reread()
	if err != nil {
		return
	}
	if cfg, err := parse(text); err == nil {
		session.User, session.Password = cfg.User, cfg.Password
	}
}

// hostsOf returns the configuration of each host. A host has a fallback if the URL makes TLS optional.
func hostsOf(cfg *pgx.ConnConfig) (hosts []pgx.ConnConfig) {
	one := *cfg
	one.Fallbacks = nil
	for _, next := range cfg.Fallbacks {
		if next.Host == one.Host && next.Port == one.Port {
			one.Fallbacks = append(one.Fallbacks, next)
			continue
		}
		hosts = append(hosts, one)
		one.Host, one.Port, one.TLSConfig, one.Fallbacks = next.Host, next.Port, next.TLSConfig, nil
	}
	return append(hosts, one)
}

// Connect makes a session. The connector makes one session at a time, because after a failover all processes make all
// their sessions anew, and PostgreSQL starts a process for each session. Many at once would exceed their time limits
// and be repeated for minutes. When an attempt fails, the callers that waited for their turn get its error without an
// attempt of their own, unless the attempt failed because its caller gave up.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	began := time.Now()
	var last failure
	select {
	case last = <-c.turn:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another session to be made: %w", ctx.Err())
	}
	defer func() { c.turn <- last }()
	if last.at.After(began) {
		return nil, last.err
	}
	made, err := c.connect(ctx)
	// An error at the caller's own time limit says nothing about the servers. ctx may end a moment after the limit.
	deadline, limited := ctx.Deadline()
	if err != nil && ctx.Err() == nil && (!limited || time.Now().Before(deadline)) {
		last = failure{time.Now(), err}
	}
	return made, err
}

// connect makes a session with the first host that accepts one.
func (c *connector) connect(ctx context.Context) (driver.Conn, error) {
	var errs []error
	for i := range c.hosts {
		n := (c.good + i) % len(c.hosts)
		attempt, cancel := context.WithTimeout(ctx, c.timeout) // also for the look-up of the host's name
		connected, err := c.hosts[n].Connect(attempt)
		cancel()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if n != c.good {
			c.good = n
			c.closeSessions()
		}
		made := &session{connected.(*stdlib.Conn), c}
		c.sessions.Store(made, nil)
		return made, nil
	}
	return nil, errors.Join(errs...)
}

// closeSessions closes all sessions, even if they run a statement. It does not wait until their connections are closed,
// because TLS sends a last message, which may take seconds to a host that hangs.
func (c *connector) closeSessions() {
	for opened := range c.sessions.Range {
		go opened.(*session).Conn.Conn().PgConn().Conn().Close()
	}
	c.closeIdle()
}

// closeIdle closes the idle sessions of the pool. [sql.DB] has no other way to do that.
func (c *connector) closeIdle() {
	c.pool.SetMaxIdleConns(-1)
	c.pool.SetMaxIdleConns(c.maxIdle)
}

// Driver returns the driver of the sessions.
func (c *connector) Driver() driver.Driver { return tracedDriver{c.hosts[0].Driver(), &c.tracers} }

// checkWritable returns an error if the server of a session is a standby, or was made read-only. The server reports
// both after the next statement of a session, so this takes no round trip.
func checkWritable(session *pgconn.PgConn) error {
	for _, setting := range []string{"in_hot_standby", "default_transaction_read_only"} {
		if session.ParameterStatus(setting) == "on" {
			return fmt.Errorf("the server accepts no changes: its %s is on", setting)
		}
	}
	return nil
}
