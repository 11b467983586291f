// Package stripesim simulates the part of Stripe's API that takes payments with Checkout Sessions, for demos and for
// tests without a network: sessions, refunds, events, webhooks and a hosted checkout page. Its state is in tables of
// its own database.
//
// The simulator follows Stripe's documented rules: form encoding, idempotency keys, the limits of expires_at, one end
// for each session, refunds of at most the captured amount, and webhooks that arrive at least once and in no order. It
// rejects parameters that it does not know, so it also rejects parameters of Stripe's API that it does not support.
//
// [Knobs] make the simulator misbehave as a provider may: it is down, it is hung, it loses answers, or its webhooks are
// lost.
package stripesim

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// Config configures a simulator. A duration or number that is zero gets its default.
type Config struct {
	DatabaseURL   string // its schema stripesim belongs to this simulator; [Open] makes the database and the schema
	Key           string // the API key that requests must carry
	WebhookSecret string // signs the webhooks; with several secrets, separated by commas, each one signs
	WebhookURL    string // the address that receives the webhooks; "" for none
	PublicURL     string // the simulator's own address as browsers see it
	Log           *slog.Logger

	BankDelay      time.Duration // the time until a bank that asks the customer confirms the payment. Default 20 s
	WebhookTimeout time.Duration // the time that the receiver of a webhook has to answer. Default 3 s
	WebhookRetry   time.Duration // the time before the second try of a webhook; it doubles each time. Default 1 s
	WebhookTries   int           // the number of tries of a webhook. Default 21, in 66 hours
	LateDelay      time.Duration // the delay of late webhooks. Default 5 s
	ReorderDelay   time.Duration // the time for which reordered webhooks are collected. Default 3 s
	RefundFails    time.Duration // the time until a refund fails, if the knob refunds is fail_later. Default 2 s
	DatabaseConns  int           // the largest number of connections to the database. Default 10
}

// maxWebhookRetry is the longest time between two tries of a webhook: with it, the default number of tries fills most
// of the three days of Stripe's live mode. See https://docs.stripe.com/webhooks#retries.
const maxWebhookRetry = 12 * time.Hour

func (c Config) withDefaults() Config {
	c.BankDelay = cmp.Or(c.BankDelay, 20*time.Second)
	c.WebhookTimeout = cmp.Or(c.WebhookTimeout, 3*time.Second)
	c.WebhookRetry = cmp.Or(c.WebhookRetry, time.Second)
	c.WebhookTries = cmp.Or(c.WebhookTries, 21)
	c.LateDelay = cmp.Or(c.LateDelay, 5*time.Second)
	c.ReorderDelay = cmp.Or(c.ReorderDelay, 3*time.Second)
	c.RefundFails = cmp.Or(c.RefundFails, 2*time.Second)
	c.DatabaseConns = cmp.Or(c.DatabaseConns, 10)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Simulator is a simulated payment provider. Its methods may be called concurrently.
type Simulator struct {
	cfg    Config
	db     *pgxpool.Pool
	client *http.Client // sends webhooks
	log    *slog.Logger
	knobs  knobs
	limits limits

	wakeTimers  chan struct{} // makes Run look for what is due; buffered by one: wake-ups coalesce
	wakeWebhook chan struct{} // makes Run look for webhooks to send; buffered by one: wake-ups coalesce
}

//go:embed schema.sql
var schema string

// Open connects to the database, and makes the database, the schema and the tables that do not exist yet.
func Open(ctx context.Context, cfg Config) (*Simulator, error) {
	cfg = cfg.withDefaults()
	poolConfig, err := pgxpool.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return nil, errors.New(
			"the database URL of the simulator is wrong: want postgres://USER:PASSWORD@HOST:PORT/DATABASE")
	}
	if err := createDatabase(ctx, poolConfig.ConnConfig); err != nil {
		return nil, err
	}
	poolConfig.MaxConns = int32(cfg.DatabaseConns)
	db, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to the simulator's database: %w", err)
	}
	s := &Simulator{
		cfg: cfg, db: db, log: cfg.Log, knobs: newKnobs(cfg.Key), limits: newLimits(),
		client:     newWebhookClient(cfg.WebhookTimeout),
		wakeTimers: make(chan struct{}, 1), wakeWebhook: make(chan struct{}, 1),
	}
	// The lock makes simulators that start at the same time create the tables one after the other.
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('stripesim.schema', 0))`)
		if err == nil {
			_, err = tx.Exec(ctx, schema)
		}
		return err
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("create the simulator's tables: %w (drop the database of an older simulator)", err)
	}
	return s, nil
}

// createDatabase creates the database of the configuration if the server does not have it.
func createDatabase(ctx context.Context, cfg *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		return conn.Close(ctx)
	}
	if !hasCode(err, "3D000") { // invalid_catalog_name: the server has no such database
		return fmt.Errorf("connect to the simulator's database: %w", err)
	}
	server := cfg.Copy()
	server.Database = "postgres"
	if conn, err = pgx.ConnectConfig(ctx, server); err != nil {
		return fmt.Errorf("connect to the database postgres, to create the simulator's database: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the connection has nothing left to do
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{cfg.Database}.Sanitize())
	// Another simulator may have created it meanwhile: duplicate_database, or a violation of a unique index.
	if err != nil && !hasCode(err, "42P04") && !hasCode(err, "23505") {
		return fmt.Errorf("create the simulator's database: %w", err)
	}
	return nil
}

func hasCode(err error, code string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == code
}

// Run sends the webhooks, and ends sessions, bank payments and pending refunds when their time has come. When ctx ends,
// it ends the requests that are hung, and returns nil.
func (s *Simulator) Run(ctx context.Context) error {
	s.knobs.start()
	defer s.knobs.stop()
	loops, ctx := errgroup.WithContext(ctx)
	loops.Go(func() error { s.repeat(ctx, s.wakeTimers, s.runTimers); return nil })
	loops.Go(func() error { s.repeat(ctx, s.wakeWebhook, s.sendWebhooks); return nil })
	return loops.Wait()
}

// Close ends the requests that are hung, and disconnects from the database. [Simulator.Run] must have returned.
func (s *Simulator) Close() {
	s.knobs.stop()
	s.client.CloseIdleConnections()
	s.db.Close()
}

const (
	pollInterval = 100 * time.Millisecond // the longest time between two steps of a loop
	failureDelay = time.Second            // the time between two steps after an error
)

// repeat calls step until ctx ends: after each wake-up, and at least every pollInterval. After an error it waits for
// failureDelay instead.
func (s *Simulator) repeat(ctx context.Context, wake <-chan struct{}, step func(context.Context) error) {
	failing := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		err := step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			s.log.Warn("the simulator cannot use its database; it keeps trying", "error", err)
		case err == nil && failing:
			s.log.Info("the simulator uses its database again")
		}
		failing = err != nil
		if failing {
			timer.Reset(failureDelay)
		} else {
			timer.Reset(pollInterval)
		}
	}
}

// runTimers ends what is due: bank payments, sessions, pending refunds and old idempotency keys.
func (s *Simulator) runTimers(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		s.confirmBankPayments, s.captureUnpaid, s.expireSessions, s.endPendingRefunds, s.failRefunds, s.deleteOldKeys,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// database is the pool of connections, or a transaction.
type database interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// readRows returns the rows of a query as structs, whose fields have the names of the columns.
func readRows[T any](ctx context.Context, db database, query string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, query, args...) // the rows have the error, too
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// readRow returns the first row of a query as readRows does. The error is [pgx.ErrNoRows] if there is none.
func readRow[T any](ctx context.Context, db database, query string, args ...any) (T, error) {
	rows, _ := db.Query(ctx, query, args...) // the rows have the error, too
	return pgx.CollectOneRow(rows, pgx.RowToStructByName[T])
}

// forEach runs do in a transaction for each id that a query returns. The error [pgx.ErrNoRows] of do says that the row
// has changed meanwhile.
func (s *Simulator) forEach(ctx context.Context, query string, do func(tx pgx.Tx, id string) error) error {
	rows, _ := s.db.Query(ctx, query) // the rows have the error, too
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, id := range ids {
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return do(tx, id) })
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		wake(s.wakeWebhook)
	}
	return err
}

// wake wakes a loop of [Simulator.Run].
func wake(loop chan<- struct{}) {
	select {
	case loop <- struct{}{}:
	default: // a wake-up is waiting already
	}
}

// newID returns a random id with a prefix.
func newID(prefix string) string { return prefix + rand.Text() }
