package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/migrations"
)

// Migrate holds the options of `migrate`.
type Migrate struct {
	Database
	Log
}

// Run applies the migrations that the database lacks, and prints their names. others are the sets of the program's
// other modules. Then Run calls finish, which adds what the program needs besides: for instance sample rows, or
// tables without migrations.
func (c *Migrate) Run(
	ctx context.Context, program Program, finish func(context.Context, *gorm.DB) error, others ...migrations.Set,
) error {
	missing := RequireOptions(map[string]string{"database-url": c.DatabaseURL})
	if err := JoinErrors(missing, c.Database.Check(), c.Log.Check()); err != nil {
		return Usage(err)
	}
	// Open fails soon, with an error that names the address. Without this call, migrate would wait for a server that
	// does not answer.
	db, err := OpenDatabase(ctx, c.DatabaseURL, program.Name, c.DatabaseConns, nil, nil)
	if err != nil {
		return err
	}
	pool, _ := db.DB() // fails only without a pool
	defer pool.Close()

	if err := MigrateUp(ctx, c.DatabaseURL, program.Out, others...); err != nil {
		return err
	}
	return finish(ctx, db)
}

// MigrateUp is [migrations.Apply] for the database at a URL. It connects on its own, because the sessions of package
// postgres end a statement after five seconds, and a migration may take longer.
func MigrateUp(ctx context.Context, databaseURL string, out io.Writer, others ...migrations.Set) error {
	db, err := postgres.Connect(databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("connect to PostgreSQL, whose address is in %s: %w", OptionName("database-url"), err)
	}
	return migrations.Apply(ctx, db, out, others...)
}

// Tool holds the options of every process, without the options of its parts. A command that runs once needs no other
// options.
type Tool struct {
	Database
	Redis
	Reconcile
	Log
}

// Check returns one error that names all options with wrong values.
func (o *Tool) Check() error {
	return JoinErrors(RequireOptions(map[string]string{"database-url": o.DatabaseURL, "redis-url": o.RedisURL}),
		o.Database.Check(), o.Redis.Check(), o.Reconcile.Check(), o.Log.Check())
}

// Config returns the configuration of a process without a role.
func (o *Tool) Config(program Program) Config {
	return Config{
		Name: program.Name, Version: program.Version,
		DatabaseURL: o.DatabaseURL, DatabaseConns: o.DatabaseConns, RedisURL: o.RedisURL, QueueShards: o.QueueShards,
		DatabaseURLFile: o.DatabaseURLFile, RedisURLFile: o.RedisURLFile,
		Reconcile: o.reconcileConfig(),
	}
}

// Opener opens a process, with the connections and the roles of a configuration.
type Opener func(ctx context.Context, cfg Config, log *slog.Logger) (*Process, error)

// Open checks the options, and opens a process without a role.
func (o *Tool) Open(ctx context.Context, program Program, open Opener) (*Process, error) {
	if err := o.Check(); err != nil {
		return nil, Usage(err)
	}
	return open(ctx, o.Config(program), NewLogger(program.Err, o.LogLevel, true))
}

// Sweep sweeps the tables of all kinds of task once, and prints the report. It is `reconcile`.
func (o *Tool) Sweep(ctx context.Context, program Program, open Opener) error {
	p, err := o.Open(ctx, program, open)
	if err != nil {
		return err
	}
	defer p.Close()
	report, err := p.Kinds.Sweep(ctx)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(program.Out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(report); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if !report.Clean() {
		return fmt.Errorf("sweep %s: %s", report.Outcome, report.Error)
	}
	return nil
}
