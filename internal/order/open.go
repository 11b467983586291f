package order

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

const connectTimeout = 5 * time.Second

// sessionSettings hold for every connection, whatever the server's defaults are.
var sessionSettings = map[string]string{
	"application_name": "shop",
	"timezone":         "UTC",

	// What the statements here are written for.
	"default_transaction_isolation": "read committed",

	// Nothing here is slow but by accident, and an accident must not pile up behind a lock.
	"statement_timeout":                   "5s",
	"lock_timeout":                        "3s", // longer than PostgreSQL takes to find a deadlock, 1s
	"idle_in_transaction_session_timeout": "10s",

	// A session of the pool is idle until a request needs it. A server that ends idle sessions would fail that request.
	"idle_session_timeout": "0",

	// An answer 201 means that the order survives a crash. A server, database or role may be set to answer before the
	// commit is on disk.
	"synchronous_commit": "on",

	// A client that is gone without a word is found out in 25 s, instead of the usual two hours, and with its
	// session go its locks: the reconciler's lasts as long as the session.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "3",

	// Every statement here is meant to go by an index, whatever its parameters are: planned once, not
	// for each batch, and not with the price of a disk's moving arm in mind.
	"plan_cache_mode":  "force_generic_plan",
	"random_page_cost": "1.1",
}

// Open connects to a database with at most conns connections. The settings of its sessions are made for
// short statements, not for migrations. An error names the address, never the password.
func Open(ctx context.Context, databaseURL string, conns int) (*gorm.DB, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx has blanked the password out
	}
	cfg.ConnectTimeout = connectTimeout
	for name, value := range sessionSettings {
		cfg.RuntimeParams[name] = value
	}

	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(utcTimes), stdlib.OptionShouldPing(pingInTime))
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	db.SetConnMaxLifetime(time.Hour) // so that a moved or scaled-out server gets its share

	ping, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := db.PingContext(ping); err != nil {
		db.Close()
		return nil, fmt.Errorf("connect to PostgreSQL at %s:%d, database %s: %w", cfg.Host, cfg.Port, cfg.Database, err)
	}
	// pgx prepares and caches statements by itself, and each statement here is a transaction of its own.
	gdb, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{
		Logger:                 logger.Discard,
		SkipDefaultTransaction: true,
		DisableAutomaticPing:   true,
		QueryFields:            true, // a new column must not change what a cached statement returns
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open gorm: %w", err)
	}
	return gdb, nil
}

// pingTimeout is a thousand times what a ping takes.
const pingTimeout = time.Second

// pingInTime looks whether a connection that was idle still has a server. Where none answers, because the network
// has forgotten the connection, a ping without a limit would take all the time that its request has, and so would
// the next idle connection's. The true has the pool ping again: the connection is closed, so it is dropped at once.
func pingInTime(ctx context.Context, p stdlib.ShouldPingParams) bool {
	if p.IdleDuration <= time.Second {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return p.Conn.PgConn().Ping(ctx) != nil
}

// utcTimes has times read in UTC, as the API shows them, instead of the machine's zone.
func utcTimes(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}
