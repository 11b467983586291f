package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
)

// Checks returns the checks of the servers, of the kinds of task, and of the parts of a process.
func Checks(p *app.Process) []app.Check {
	c := checker{p}
	swept := "the last sweep was recent, and no statement failed"
	if len(p.Kinds) > 0 {
		swept += "; while Redis is down, rows time out at most " + p.Kinds[0].Reconciler.DescribeBound() + " late"
	}
	checks := []app.Check{
		{Subject: "schema", Good: "has no migration that this binary lacks", Run: c.schema},
		{Subject: "statements", Good: "those that time out rows fit the schema", Run: c.ofEachKind(
			func(ctx context.Context, k *app.Kind) error { return k.Table.Check(ctx) })},
		{Subject: "privileges", Good: "the role may read and change all tables, and read all views",
			Run: func(ctx context.Context) error { return app.CheckPrivileges(ctx, p.Pool) }},
		{Subject: "sessions", Good: "PostgreSQL lends as many as the sweeps need", Run: p.CheckSessions},
		{Subject: "durability", Good: "fsync and full_page_writes are on", Run: c.durability},
		{Subject: "commits", Good: "none waits for a standby", Run: c.commits},
		{Subject: "redis", Good: "answers, and permits what the queues need", Run: c.redis},
		{Subject: "keys", Good: "each key of the queues has the right type", Run: c.ofEachKind(
			func(ctx context.Context, k *app.Kind) error { return k.Queue.CheckKeys(ctx) })},
		{Subject: "eviction", Good: "Redis drops no task when its memory is full", Run: c.eviction},
		{Subject: "tasks", Good: "Redis has the markers of a sweep: it was not wiped", Run: c.ofEachKind(checkMarkers)},
		{Subject: "worker", Good: "no task has been due for long, and there are no dead letters",
			Run: c.ofEachKind(checkTasks)},
		{Subject: "outbox", Good: "no message has waited for long", Run: c.ofEachKind(checkOutbox)},
		{Subject: "reconciler", Good: swept, Run: c.ofEachKind(checkLastSweep)},
	}
	for _, part := range p.Parts {
		checks = append(checks, part.Checks...)
	}
	return checks
}

// checker has the checks that look at the process.
type checker struct{ process *app.Process }

// ofEachKind returns a function that checks each kind of task, and joins the errors of all kinds in one line.
func (c checker) ofEachKind(check func(context.Context, *app.Kind) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, k := range c.process.Kinds {
			if err := check(ctx, k); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", k.Name, err))
			}
		}
		return app.JoinErrors(errs...)
	}
}

// schema warns of a schema that is newer than the binary's, as in a rolling update. The binary works with it.
func (c checker) schema(context.Context) error {
	if len(c.process.Newer) == 0 {
		return nil
	}
	return app.Warning(c.process.Newer[0])
}

// durability only warns if durability is off, because people turn it off to make a server for tests faster. It
// does not look at synchronous_commit, which the sessions of the service set themselves.
func (c checker) durability(ctx context.Context) error {
	var fsync, fullPageWrites string
	err := c.process.Pool.QueryRowContext(ctx, `SELECT current_setting('fsync'), current_setting('full_page_writes')`).
		Scan(&fsync, &fullPageWrites)
	if err != nil {
		return fmt.Errorf("read PostgreSQL's settings: %w", err)
	}
	return assessDurability(fsync, fullPageWrites)
}

func assessDurability(fsync, fullPageWrites string) error {
	switch {
	case fsync == "off":
		return app.Warning("fsync is off: if the server's machine crashes, committed rows can be lost or corrupt")
	case fullPageWrites == "off":
		return app.Warning("full_page_writes is off: if the server's machine crashes, committed rows can be lost or " +
			"corrupt, unless its file system writes each page whole or not at all")
	}
	return nil
}

func (c checker) commits(ctx context.Context) error {
	waits, err := postgres.CommitsWait(ctx, c.process.Pool)
	if err == nil && waits {
		err = errors.New("commits wait for a synchronous standby that is not connected: start it, " +
			"or remove it from synchronous_standby_names (a 201 then promises less)")
	}
	return err
}

func pingRedis(ctx context.Context, rdb redis.UniversalClient) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := rdb.Ping(ctx).Err()
	if err != nil && !errors.As(err, new(redis.Error)) {
		return fmt.Errorf("%w: is Redis running, and is %s right?", err, app.OptionName("redis-url"))
	}
	return err
}

func (c checker) redis(ctx context.Context) error {
	if err := pingRedis(ctx, c.process.Redis); err != nil {
		return err
	}
	return c.ofEachKind(func(ctx context.Context, k *app.Kind) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return k.Queue.CheckRights(ctx)
	})(ctx)
}

// The doctor reports only what is older than these limits, because a busy machine may pause for some seconds.
const (
	staleTask   = 10 * time.Second // since it was due
	staleOutbox = 30 * time.Second // in the outbox
	staleSweep  = 10 * time.Second // since the last sweep
)

func checkMarkers(ctx context.Context, k *app.Kind) error {
	intact, err := delay.Intact(ctx, k.Queue)
	if err == nil && !intact[0] {
		err = errors.New("a marker is missing, because Redis was wiped or is new: wait for the next sweep, " +
			"or run the command reconcile")
	}
	return err
}

func checkTasks(ctx context.Context, k *app.Kind) error {
	depth, err := k.Queue.Depth(ctx)
	if err != nil {
		return err
	}
	var waiting, dead error
	if depth.OldestDue > staleTask {
		waiting = fmt.Errorf("%d tasks are due, the oldest for %v: is a worker running?",
			depth.Due, depth.OldestDue.Round(time.Second))
	}
	if depth.Dead > 0 {
		dead = fmt.Errorf("%d dead letters: GET /ops/api/dead-letters lists their errors; "+
			"remove the cause, then redrive them", depth.Dead)
	}
	return app.JoinErrors(waiting, dead)
}

func checkOutbox(ctx context.Context, k *app.Kind) error {
	count, oldest, err := k.Outbox.Backlog(ctx)
	if err == nil && oldest > staleOutbox {
		err = fmt.Errorf("%d messages wait for Redis, the oldest for %v: is a relay running?",
			count, oldest.Round(time.Second))
	}
	return err
}

func checkLastSweep(ctx context.Context, k *app.Kind) error {
	last, age, err := k.Reconciler.Last(ctx)
	switch {
	case err != nil:
		return err
	case last == nil:
		return errors.New("no sweep yet: is a reconciler running?")
	case !last.Clean():
		return fmt.Errorf("the last sweep was %s: %s", last.Outcome, last.Error)
	case age > max(2*k.Reconciler.Bound(), staleSweep):
		return fmt.Errorf("the last sweep was %v ago: is a reconciler running?", age.Round(time.Second))
	}
	return nil
}
