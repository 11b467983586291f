package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/migrations"
)

// migrateCommand is `shop migrate`.
type migrateCommand struct {
	Seed bool `name:"seed" env:"SHOP_SEED" help:"Add sample products, unless they exist."`
	databaseOptions
	logOptions
}

func (c *migrateCommand) Run(ctx context.Context, to streams) error {
	if err := oneLine(requireAll(map[string]string{"database-url": c.DatabaseURL}), c.validate()); err != nil {
		return usageError{err}
	}
	// Open fails soon, with an error that names the address. Without this call, migrate would wait for a server that
	// does not answer.
	gdb, err := postgres.Open(ctx, c.DatabaseURL, "shop", c.DatabaseConns)
	if err != nil {
		return err
	}
	pool, err := gdb.DB()
	if err != nil {
		return fmt.Errorf("database handle: %w", err)
	}
	defer pool.Close()

	applied, err := migrate(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	for _, name := range applied {
		fmt.Fprintln(to.out, "applied", name)
	}
	if len(applied) == 0 {
		fmt.Fprintln(to.out, "the schema is up to date")
	}
	if !c.Seed {
		return nil
	}
	return order.NewStore(gdb).SeedProducts(ctx)
}

// migrate connects on its own. The sessions of the pool end a statement after five seconds, and a migration may take
// longer.
func migrate(ctx context.Context, databaseURL string) ([]string, error) {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	return migrations.Up(ctx, db)
}

// toolOptions are the options of the commands that run once.
type toolOptions struct {
	databaseOptions
	redisOptions
	reconcileOptions
	paymentProviderOptions
	logOptions
}

func (o *toolOptions) open(ctx context.Context, to streams) (*app, error) {
	required := requireAll(map[string]string{"database-url": o.DatabaseURL, "redis-url": o.RedisURL})
	err := oneLine(required, o.databaseOptions.validate(), o.redisOptions.validate(), o.reconcileOptions.validate(),
		o.paymentProviderOptions.validate(),
	)
	if err != nil {
		return nil, usageError{err}
	}
	return newApp(ctx, &serveOptions{
		databaseOptions: o.databaseOptions, redisOptions: o.redisOptions, reconcileOptions: o.reconcileOptions,
		paymentOptions: paymentOptions{paymentProviderOptions: o.paymentProviderOptions},
	}, 0, newLogger(to.err, o.LogLevel, true))
}

// reconcileCommand is `shop reconcile`.
type reconcileCommand struct {
	toolOptions
}

func (c *reconcileCommand) Run(ctx context.Context, to streams) error {
	a, err := c.open(ctx, to)
	if err != nil {
		return err
	}
	defer a.close()
	defer a.startNotifier(ctx)()
	report, err := a.kinds.sweep(ctx)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(to.out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(report); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if !report.Clean() {
		return fmt.Errorf("sweep %s: %s", report.Outcome, report.Error)
	}
	return nil
}

// doctorCommand is `shop doctor`.
type doctorCommand struct {
	toolOptions
}

func (c *doctorCommand) Run(ctx context.Context, to streams) error {
	failed := false
	say := func(verdict, subject, text string) { fmt.Fprintf(to.out, "%-4s  %-12s %s\n", verdict, subject, text) }
	check := func(subject, good string, err error) {
		if err != nil {
			failed = true
			say("FAIL", subject, err.Error())
			return
		}
		say("ok", subject, good)
	}
	a, err := c.open(ctx, to)
	if err != nil {
		return err
	}
	defer a.close()
	schema := "that of this binary"
	if a.newerSchema != nil {
		schema = fmt.Sprintf("version %d, newer than this binary's %d", a.newerSchema.Have, a.newerSchema.Want)
	}
	check("postgres", "answers; its schema is "+schema, nil) // open returns an error otherwise
	if durability, err := postgres.ReadDurability(ctx, c.DatabaseURL); err != nil {
		check("durability", "", err)
	} else {
		for _, s := range assess(durability) {
			say(s.verdict, "durability", s.text)
		}
	}
	check("redis", "answers", a.pingRedis(ctx))
	check("tasks", "Redis has the restore markers: it was not wiped", a.kinds.each(ctx, (*kind).checkMarkers))
	check("worker", "no task has been due for long, and there are no dead letters", a.kinds.each(ctx, (*kind).checkTasks))
	check("outbox", "no message has waited for long", a.kinds.each(ctx, (*kind).checkOutbox))
	check("reconciler", "the last sweep was recent, and clean", a.kinds.each(ctx, (*kind).checkLastSweep))
	check("invariants", "no row violates an invariant", a.checkInvariants(ctx, to))
	if failed {
		return errFailed
	}
	return nil
}

// assessment describes what one setting of the server means for the shop. Its verdict is ok, note or warn.
type assessment struct{ verdict, text string }

// assess returns no failure: the shop works with every setting, and a server for tests is faster without durability.
func assess(d postgres.Durability) []assessment {
	fsync := assessment{"ok", "fsync is " + d.Fsync}
	if d.Fsync == "off" {
		fsync = assessment{"warn", "fsync is off: if the server's machine crashes, committed orders can be lost or corrupt"}
	}
	pages := assessment{"ok", "full_page_writes is " + d.FullPageWrites}
	if d.FullPageWrites == "off" {
		pages = assessment{"warn", "full_page_writes is off: if the server's machine crashes, committed orders can be lost " +
			"or corrupt, unless its file system writes each page whole or not at all"}
	}
	commit := assessment{"ok", "synchronous_commit is " + d.SynchronousCommit + "; the shop's sessions set it to on"}
	if d.SynchronousCommit == "off" {
		commit = assessment{"note", "synchronous_commit is off, but the shop's sessions set it to on: their commits survive a crash, " +
			"those of other programs may not"}
	}
	return []assessment{fsync, pages, commit}
}

func (a *app) pingRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return a.rdb.Ping(ctx).Err()
}

func (k *kind) checkMarkers(ctx context.Context) error {
	intact, err := k.queue.Intact(ctx)
	if err == nil && !intact {
		err = errors.New("a restore marker is missing, because Redis was wiped or is new: wait until the reconciler restores the tasks, or run `shop reconcile`")
	}
	return err
}

// staleTask is much longer than a due task waits while a worker runs.
const staleTask = 10 * time.Second

func (k *kind) checkTasks(ctx context.Context) error {
	depth, err := k.queue.Depth(ctx)
	if err != nil {
		return err
	}
	var waiting, dead error
	if depth.OldestDue > staleTask {
		waiting = fmt.Errorf("%d tasks are due, the oldest for %v: is a worker running?", depth.Due, depth.OldestDue.Round(time.Second))
	}
	if depth.Dead > 0 {
		dead = fmt.Errorf("%d dead letters: GET /ops/api/dead-letters lists their errors; remove the cause, then redrive them", depth.Dead)
	}
	return oneLine(waiting, dead)
}

// staleOutbox is much longer than a message waits while a relay runs and Redis answers.
const staleOutbox = 30 * time.Second

func (k *kind) checkOutbox(ctx context.Context) error {
	count, oldest, err := k.outbox.Backlog(ctx)
	if err == nil && oldest > staleOutbox {
		err = fmt.Errorf("%d messages wait for Redis, the oldest for %v: is a relay running?", count, oldest.Round(time.Second))
	}
	return err
}

func (k *kind) checkLastSweep(ctx context.Context) error {
	last, err := k.reconciler.Last(ctx)
	switch {
	case err != nil:
		return err
	case last == nil:
		return fmt.Errorf("no sweep yet: is a reconciler running?")
	case !last.Clean():
		return fmt.Errorf("the last sweep was %s: %s", last.Outcome, last.Error)
	case time.Since(last.StartedAt) > 2*k.reconciler.Bound():
		return fmt.Errorf("the last sweep was %v ago: is a reconciler running?", time.Since(last.StartedAt).Round(time.Second))
	}
	return nil
}

func (a *app) checkInvariants(ctx context.Context, to streams) error {
	violations, err := a.violations(ctx)
	if err != nil {
		return err
	}
	for _, v := range violations {
		fmt.Fprintf(to.out, "      invariant %d: %s: %s\n", v.Invariant, v.Subject, v.Detail)
	}
	if len(violations) > 0 {
		return fmt.Errorf("%d violations", len(violations))
	}
	return nil
}

// versionCommand is `shop version`.
type versionCommand struct{}

func (versionCommand) Run(to streams) error {
	_, err := fmt.Fprintln(to.out, "shop", version())
	return err
}
