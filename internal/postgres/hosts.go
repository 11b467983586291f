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
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// The longest time for a new connection to a host, unless the URL has a connect_timeout: to the only host of the URL, or to
// each of several. With a longer time, callers wait longer for a server that is gone. A shorter one would fail while a server
// is slow for a moment.
const (
	connectTimeout = 5 * time.Second
	hostTimeout    = time.Second
)

// Connect returns a pool for migrations. Unlike those of [Open], its sessions have the settings of the server. A pooler is
// refused, because the lock of the migrations belongs to a session.
func Connect(databaseURL string) (*sql.DB, error) {
	c, err := newConnector(databaseURL, map[string]string{}, errNoMigration)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// connector connects to a host of a URL that accepts changes and is no old primary, whatever its target_session_attrs are. It
// tries the host of the last session first, and then the others in their order. At most one of the hosts may accept changes.
//
// A server may change its role while it has sessions. So a session has a generation, and the pool does not use it again once a
// later generation has begun. One begins when a session of the present generation finds that its server accepts no changes,
// does not answer a ping, or ends the connection, and when another host accepts a connection.
//
// When another host accepts a connection, the last one has failed. It may hang, so its connections are closed: their statements
// end at once, instead of at their time limits.
type connector struct {
	hosts      []driver.Connector
	timeout    time.Duration // the longest time for a new connection to a host
	good       int           // the index of the host that accepted the last connection; it is tried first
	sessions   sync.Map      // the open sessions, the keys are of type *session
	generation atomic.Int64
	lineage    lineage
	tracers    multitracer.Tracer
	turn       chan struct{}           // has capacity 1; who has put a value into it makes a session, and owns good
	failed     atomic.Pointer[failure] // the last attempt to make a session that failed; nil: none
}

// failure is an attempt to make a session that failed.
type failure struct{ error }

// newConnector returns a connector whose sessions have settings besides those of the URL. With a pooler, making a session
// fails with refusePooler, unless that is nil.
func newConnector(databaseURL string, settings map[string]string, refusePooler error) (*connector, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx masks the password
	}
	if mode := cfg.DefaultQueryExecMode; mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeCacheDescribe {
		// The others cannot send arrays of UUIDs, or need two transactions for a statement.
		return nil, fmt.Errorf("database URL: default_query_exec_mode is %s, want cache_statement or cache_describe", mode)
	}
	maps.Copy(cfg.RuntimeParams, settings)
	c := &connector{turn: make(chan struct{}, 1)}
	cfg.ValidateConnect = func(ctx context.Context, session *pgconn.PgConn) error {
		if err := checkWritable(session); err != nil {
			return err
		}
		if err := c.lineage.check(ctx, session); err != nil {
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
	hosts := hostsOf(cfg)
	c.timeout = cmp.Or(cfg.ConnectTimeout, connectTimeout)
	if len(hosts) > 1 {
		c.timeout = cmp.Or(cfg.ConnectTimeout, hostTimeout)
	}
	cfg.Tracer = &c.tracers
	for _, host := range hosts {
		one := *cfg
		one.Host, one.Port, one.TLSConfig, one.Fallbacks = host[0].Host, host[0].Port, host[0].TLSConfig, host[1:]
		c.hosts = append(c.hosts, stdlib.GetConnector(one, stdlib.OptionAfterConnect(scanUTC),
			stdlib.OptionShouldPing(c.pingIdle), stdlib.OptionResetSession(c.check)))
	}
	return c, nil
}

// hostsOf returns the configurations of each host. A host has two if the URL makes TLS optional.
func hostsOf(cfg *pgx.ConnConfig) (hosts [][]*pgconn.FallbackConfig) {
	last := &pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}
	hosts = append(hosts, []*pgconn.FallbackConfig{last})
	for _, f := range cfg.Fallbacks {
		if f.Host == last.Host && f.Port == last.Port {
			hosts[len(hosts)-1] = append(hosts[len(hosts)-1], f)
		} else {
			hosts = append(hosts, []*pgconn.FallbackConfig{f})
		}
		last = f
	}
	return hosts
}

// Connect makes a session. The connector makes one at a time: after a failover all processes make all their sessions again, and each
// costs the new primary a process. Many at once would take so long that each exceeds its time limit and is tried again, for
// minutes. An attempt that fails counts for all who waited for their turn meanwhile, unless its own caller gave up.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	before := c.failed.Load()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another session to be made: %w", ctx.Err())
	}
	if last := c.failed.Load(); last != before {
		return nil, last.error
	}
	made, err := c.connect(ctx)
	// An error at the caller's own time limit says nothing about the servers. ctx may end a moment after that limit.
	if deadline, limited := ctx.Deadline(); err != nil && ctx.Err() == nil && (!limited || time.Now().Before(deadline)) {
		c.failed.Store(&failure{err})
	}
	return made, err
}

// connect makes a session with the first host that is possible. The caller has the turn. The timeout covers the look-up
// of a host's name and all its addresses. The timeout of pgx would not cover the look-up, and would begin anew for each
// address.
func (c *connector) connect(ctx context.Context) (driver.Conn, error) {
	generation := c.generation.Load()
	var errs []error
	for i := range c.hosts {
		n := (c.good + i) % len(c.hosts)
		attempt, cancel := context.WithTimeout(ctx, c.timeout)
		connected, err := c.hosts[n].Connect(attempt)
		cancel()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if n != c.good {
			generation = c.generation.Add(1)
			c.closeSessions()
			c.good = n
		}
		made := &session{connected.(*stdlib.Conn), c}
		made.Conn.Conn().PgConn().CustomData()[generationKey] = generation
		c.sessions.Store(made, nil)
		return made, nil
	}
	return nil, errors.Join(errs...)
}

// closeSessions closes the connections of all sessions. It does not wait, because TLS sends a last message, which may
// take seconds to a host that hangs.
func (c *connector) closeSessions() {
	for opened := range c.sessions.Range {
		go opened.(*session).Conn.Conn().PgConn().Conn().Close()
	}
}

// Driver returns the driver of the sessions.
func (c *connector) Driver() driver.Driver { return tracedDriver{c.hosts[0].Driver(), &c.tracers} }

// Keys of the custom data of a session.
const (
	generationKey   = "generation"
	unreplicatedKey = "unreplicated" // the wait of a commit for a standby was cancelled
)

// endGeneration begins a new generation, unless one has begun since the session was made.
func (c *connector) endGeneration(session *pgconn.PgConn) {
	if generation, ok := session.CustomData()[generationKey].(int64); ok {
		c.generation.CompareAndSwap(generation, generation+1)
	}
}

// check returns an error if the pool must not use a session again.
func (c *connector) check(_ context.Context, conn *pgx.Conn) error {
	session := conn.PgConn()
	if checkWritable(session) != nil {
		c.endGeneration(session)
	}
	data := session.CustomData()
	if conn.IsClosed() || data[generationKey] != c.generation.Load() || data[unreplicatedKey] != nil {
		return driver.ErrBadConn
	}
	return nil
}

// checkWritable returns an error if the server of a session is a standby, or was made read-only. The server reports both
// after the next statement of a session, so this takes no round trip.
func checkWritable(session *pgconn.PgConn) error {
	for _, setting := range []string{"in_hot_standby", "default_transaction_read_only"} {
		if session.ParameterStatus(setting) == "on" {
			return fmt.Errorf("the server accepts no changes: its %s is on", setting)
		}
	}
	return nil
}

// pingTimeout is the longest time for a ping, which usually takes a millisecond. With a longer one, a request waits longer when
// its connection is dead. With a shorter one, the pool drops connections to a server that is slow for a moment.
const pingTimeout = time.Second

// pingIdle pings a connection that was idle, before a request uses it. A firewall may have dropped the connection silently, or
// the server may hang. A ping without a limit would then take all the time of the request, and so would the pings of
// further connections. pingIdle returns false, so that the pool does not ping again.
func (c *connector) pingIdle(ctx context.Context, p stdlib.ShouldPingParams) bool {
	if p.IdleDuration <= time.Second || c.check(ctx, p.Conn) != nil {
		return false
	}
	ping, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if p.Conn.PgConn().Ping(ping) != nil && ctx.Err() == nil {
		c.endGeneration(p.Conn.PgConn())
	}
	return false
}
