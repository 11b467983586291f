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
	"example.com/shop/migrations"
)

// migrateCommand is `shop migrate`.
type migrateCommand struct {
	Seed bool `name:"seed" env:"SHOP_SEED" help:"Add sample products, unless they are there."`
	databaseOptions
	logOptions
}

func (c *migrateCommand) Run(ctx context.Context, to streams) error {
	if err := oneLine(requireAll(map[string]string{"database-url": c.DatabaseURL}), c.validate()); err != nil {
		return usageError{err}
	}
	// A look first, with its short timeouts and its error that names the address.
	gdb, err := order.Open(ctx, c.DatabaseURL, c.DatabaseConns)
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

// migrate uses a connection of its own: the service's end statements after five seconds, and a migration
// may take longer.
func migrate(ctx context.Context, databaseURL string) ([]string, error) {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	return migrations.Up(ctx, db)
}

// toolOptions are what the one-off commands need of the service.
type toolOptions struct {
	databaseOptions
	redisOptions
	reconcileOptions
	logOptions
}

func (o *toolOptions) open(ctx context.Context, to streams) (*app, error) {
	required := requireAll(map[string]string{"database-url": o.DatabaseURL, "redis-url": o.RedisURL})
	err := oneLine(required, o.databaseOptions.validate(), o.redisOptions.validate(), o.reconcileOptions.validate())
	if err != nil {
		return nil, usageError{err}
	}
	return newApp(ctx, &serveOptions{
		databaseOptions: o.databaseOptions, redisOptions: o.redisOptions, reconcileOptions: o.reconcileOptions,
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
	defer a.announcing(ctx)()
	report, err := a.reconciler.Sweep(ctx)
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
	say := func(verdict, what, text string) { fmt.Fprintf(to.out, "%-4s  %-12s %s\n", verdict, what, text) }
	check := func(what, good string, err error) {
		if err != nil {
			failed = true
			say("FAIL", what, err.Error())
			return
		}
		say("ok", what, good)
	}
	a, err := c.open(ctx, to)
	if err != nil {
		return err
	}
	defer a.close()
	schema := "this binary's"
	if a.newerSchema != nil {
		schema = fmt.Sprintf("version %d, newer than this binary's %d", a.newerSchema.Have, a.newerSchema.Want)
	}
	check("postgres", "answers; its schema is "+schema, nil) // or there were no app
	if durability, err := order.ReadDurability(ctx, c.DatabaseURL); err != nil {
		check("durability", "", err)
	} else {
		for _, s := range assess(durability) {
			say(s.verdict, "durability", s.text)
		}
	}
	check("redis", "answers", a.pingRedis(ctx))
	check("tasks", "Redis has what the last restore gave it", a.checkSentinels(ctx))
	check("worker", "no task waits for long, none has failed for good", a.checkTasks(ctx))
	check("outbox", "nothing waits for long", a.checkOutbox(ctx))
	check("reconciler", "swept lately", a.checkLastSweep(ctx))
	check("invariants", "hold", a.checkInvariants(ctx, to))
	if failed {
		return errFailed
	}
	return nil
}

// assessment is what a setting of the server means for the shop.
type assessment struct{ verdict, text string }

// assess fails no setting: a server for tests is faster without them, and the shop works with it.
func assess(d order.Durability) []assessment {
	fsync := assessment{"ok", "fsync is " + d.Fsync}
	if d.Fsync == "off" {
		fsync = assessment{"warn", "fsync is off: if the server's machine crashes, committed orders can be lost or corrupt"}
	}
	pages := assessment{"ok", "full_page_writes is " + d.FullPageWrites}
	if d.FullPageWrites == "off" {
		pages = assessment{"warn", "full_page_writes is off: if the server's machine crashes, committed orders can be lost " +
			"or corrupt, unless its file system never writes a page in part"}
	}
	commit := assessment{"ok", "synchronous_commit is " + d.SynchronousCommit + ", and on in the shop's sessions"}
	if d.SynchronousCommit == "off" {
		commit = assessment{"note", "synchronous_commit is off, but on in the shop's sessions: their commits are kept, " +
			"those of other programs can be lost"}
	}
	return []assessment{fsync, pages, commit}
}

func (a *app) pingRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return a.rdb.Ping(ctx).Err()
}

func (a *app) checkSentinels(ctx context.Context) error {
	intact, err := a.queue.Intact(ctx)
	if err == nil && !intact {
		err = errors.New("wiped, or never filled: the reconciler restores them, or run `shop reconcile`")
	}
	return err
}

// staleTask is far longer than workers leave a task that is due.
const staleTask = 10 * time.Second

func (a *app) checkTasks(ctx context.Context) error {
	depth, err := a.queue.Depth(ctx)
	if err != nil {
		return err
	}
	var waiting, dead error
	if depth.OldestDue > staleTask {
		waiting = fmt.Errorf("%d tasks are due, the oldest for %v: is a worker running?", depth.Due, depth.OldestDue.Round(time.Second))
	}
	if depth.Dead > 0 {
		dead = fmt.Errorf("%d dead letters: GET /ops/api/dead-letters tells why; redrive them once that is mended", depth.Dead)
	}
	return oneLine(waiting, dead)
}

// staleOutbox is far longer than the relay leaves a message while Redis answers.
const staleOutbox = 30 * time.Second

func (a *app) checkOutbox(ctx context.Context) error {
	count, oldest, err := a.outbox.Backlog(ctx)
	if err == nil && oldest > staleOutbox {
		err = fmt.Errorf("%d messages wait for Redis, the oldest for %v: is a relay running?", count, oldest.Round(time.Second))
	}
	return err
}

func (a *app) checkLastSweep(ctx context.Context) error {
	last, err := a.reconciler.Last(ctx)
	switch {
	case err != nil:
		return err
	case last == nil:
		return fmt.Errorf("no sweep yet: is a reconciler running?")
	case !last.Clean():
		return fmt.Errorf("the last sweep was %s: %s", last.Outcome, last.Error)
	case time.Since(last.StartedAt) > 2*a.reconciler.Bound():
		return fmt.Errorf("the last sweep was %v ago: is a reconciler running?", time.Since(last.StartedAt).Round(time.Second))
	}
	return nil
}

func (a *app) checkInvariants(ctx context.Context, to streams) error {
	violations, err := a.store.Invariants(ctx, a.reconciler.Bound())
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
