package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/migrations"
)

// The roles of a process. A process has one or more of them.
const (
	API        = "api"        // serves the routes of the parts
	Relay      = "relay"      // publishes the outbox rows that the fast path has left
	Worker     = "worker"     // handles tasks
	Reconciler = "reconciler" // compares the tables with the queues, and repairs
)

// Config configures a process.
type Config struct {
	Name    string // the application_name of the sessions in PostgreSQL, and the prefix of the metrics
	Version string // of the program, for /healthz

	DatabaseURL   string
	DatabaseConns int // the most connections to PostgreSQL; at least 2
	RedisURL      string
	// The files that have the URLs; empty: none. They are read again before each connection.
	DatabaseURLFile, RedisURLFile string
	QueueShards                   int // of each kind's queue; the same for all processes

	PublicURL string // of the site, if a proxy changes the Host; may be empty
	Roles     []string
	Reconcile reconcile.Config
	Drain     time.Duration // how long the process serves after the context of Run has ended
}

// Has reports whether the process has a role.
func (c *Config) Has(role string) bool { return slices.Contains(c.Roles, role) }

// Base is what the constructors of a process share. They do not change it.
type Base struct {
	Config
	DB       *gorm.DB // its sessions have the settings of package postgres, and prefer indexes
	Pool     *sql.DB  // the connections of DB
	Redis    redis.UniversalClient
	Log      *slog.Logger
	Registry *prometheus.Registry  // gathers all metrics of the process
	Metrics  prometheus.Registerer // of the Registry, with the prefix of the process

	// Newer has a text for each set of migrations of which the database has a newer schema than the binary.
	Newer []string
}

// Connect connects a process to the database and to Redis. It returns an error if the database is down, or if its
// schema lacks a migration of the binary: of the core, or of the sets of the program's other modules. It accepts a
// newer schema: during a rolling update processes of the older version continue to run, and after a rollback they
// start. Redis may be down.
func Connect(ctx context.Context, cfg Config, log *slog.Logger, others ...migrations.Set) (*Base, error) {
	reread := rereader("database-url", cfg.DatabaseURLFile)
	db, err := OpenDatabase(ctx, cfg.DatabaseURL, cfg.Name, cfg.DatabaseConns, postgres.IndexPlans, reread)
	if err != nil {
		return nil, err
	}
	pool, _ := db.DB() // fails only without a pool
	b := &Base{Config: cfg, DB: db, Pool: pool, Log: log, Registry: prometheus.NewRegistry()}
	b.Metrics = prometheus.WrapRegistererWithPrefix(cfg.Name+"_", b.Registry)
	b.measure()
	b.Newer, err = migrations.Check(ctx, pool, others...)
	for _, text := range b.Newer {
		log.Warn("the database's schema is newer than this binary's, as in a rolling update; "+
			"this process works with it", "found", text)
	}
	if err == nil {
		b.Redis, err = delay.Connect(cfg.RedisURL, rereader("redis-url", cfg.RedisURLFile))
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// CheckPrivileges returns an error that names the privileges which the role of the service lacks on the tables and
// views of the role that has made the schema. The tables of the migrations are only read.
func CheckPrivileges(ctx context.Context, pool *sql.DB) error {
	var missing, role string
	err := pool.QueryRowContext(ctx, `
		SELECT coalesce(string_agg(privilege || ' on ' || relname, ', ' ORDER BY relname, privilege), ''), current_user
		FROM pg_class, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS privilege
		WHERE (relkind IN ('r', 'p') OR relkind = 'v' AND privilege = 'SELECT')
		  AND relname NOT LIKE 'goose%' AND NOT has_table_privilege(oid, privilege)
		  AND (relnamespace, relowner) = (SELECT relnamespace, relowner FROM pg_class WHERE oid = 'outbox'::regclass)`,
	).Scan(&missing, &role)
	switch {
	case err != nil:
		return fmt.Errorf("read the privileges: %w", err)
	case missing != "":
		return fmt.Errorf("the role %s lacks %s: grant it", role, missing)
	}
	return nil
}

// Close closes the connections.
func (b *Base) Close() {
	if b.Redis != nil { // otherwise Connect has failed
		b.Redis.Close()
	}
	b.Pool.Close()
}

// CloseOnError closes the connections if a composition root returns an error: defer it there, with the root's error.
func (b *Base) CloseOnError(err *error) {
	if *err != nil {
		b.Close()
	}
}

// OpenDatabase is [postgres.Open]. If no connection can be made, its error names the option with the address.
func OpenDatabase(
	ctx context.Context, databaseURL, application string, conns int, settings map[string]string,
	reread func() (string, error),
) (*gorm.DB, error) {
	db, err := postgres.Open(ctx, databaseURL, application, conns, settings, reread)
	if errors.As(err, new(*pgconn.ConnectError)) && errors.As(err, new(net.Error)) {
		err = fmt.Errorf("%w: is PostgreSQL running, and is %s right?", err, OptionName("database-url"))
	}
	return db, err
}
