package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/shop/internal/deadline"
	"example.com/shop/internal/option"
)

// InvariantCheck returns the violations of a part's invariants. bound is how long past its due time a row may be pending.
type InvariantCheck func(ctx context.Context, bound time.Duration) ([]deadline.Violation, error)

// Invariant adds a check of invariants. `doctor` and the operators' page show its violations.
func (p *Process) Invariant(check InvariantCheck) { p.invariants = append(p.invariants, check) }

// Violations returns the violations of the invariants of all parts.
func (p *Process) Violations(ctx context.Context) ([]deadline.Violation, error) {
	all := []deadline.Violation{}
	for _, check := range p.invariants {
		some, err := check(ctx, p.Kinds.Bound())
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// figure is a value that operators look at.
type figure struct {
	name string
	read func(context.Context) (any, error)
}

// Figure adds a value under a name to the answer of GET /ops/api/stats. The value is encoded as JSON. The part's piece of
// the contract describes it as a property of the schema Stats.
func (p *Process) Figure(name string, read func(context.Context) (any, error)) {
	p.figures = append(p.figures, figure{name, read})
}

// Figures returns the values of all parts by their names.
func (p *Process) Figures(ctx context.Context) (map[string]any, error) {
	values := make(map[string]any, len(p.figures))
	for _, f := range p.figures {
		value, err := f.read(ctx)
		if err != nil {
			return nil, err
		}
		values[f.name] = value
	}
	return values, nil
}

// Check is a check of `doctor`.
type Check struct {
	Subject string
	Good    string // what is true if Run returns nil
	Run     func(context.Context) error
}

// Checks returns the checks of Redis, and of the kinds of task.
func (p *Process) Checks() []Check {
	ofEach := func(check func(*Kind, context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error { return p.Kinds.each(ctx, check) }
	}
	return []Check{
		{"redis", "answers", p.pingRedis},
		{"tasks", "Redis has the restore markers: it was not wiped", ofEach((*Kind).checkMarkers)},
		{"worker", "no task has been due for long, and there are no dead letters", ofEach((*Kind).checkTasks)},
		{"outbox", "no message has waited for long", ofEach((*Kind).checkOutbox)},
		{"reconciler", "the last sweep was recent, and clean", ofEach((*Kind).checkLastSweep)},
	}
}

func (p *Process) pingRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return p.Redis.Ping(ctx).Err()
}

func (k *Kind) checkMarkers(ctx context.Context) error {
	intact, err := k.Queue.Intact(ctx)
	if err == nil && !intact {
		err = errors.New("a restore marker is missing, because Redis was wiped or is new: wait until the reconciler restores the tasks, or run `shop reconcile`")
	}
	return err
}

// staleTask is much longer than a due task waits while a worker runs.
const staleTask = 10 * time.Second

func (k *Kind) checkTasks(ctx context.Context) error {
	depth, err := k.Queue.Depth(ctx)
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
	return option.Join(waiting, dead)
}

// staleOutbox is much longer than a message waits while a relay runs and Redis answers.
const staleOutbox = 30 * time.Second

func (k *Kind) checkOutbox(ctx context.Context) error {
	count, oldest, err := k.Outbox.Backlog(ctx)
	if err == nil && oldest > staleOutbox {
		err = fmt.Errorf("%d messages wait for Redis, the oldest for %v: is a relay running?", count, oldest.Round(time.Second))
	}
	return err
}

func (k *Kind) checkLastSweep(ctx context.Context) error {
	last, age, err := k.Reconciler.Last(ctx)
	switch {
	case err != nil:
		return err
	case last == nil:
		return errors.New("no sweep yet: is a reconciler running?")
	case !last.Clean():
		return fmt.Errorf("the last sweep was %s: %s", last.Outcome, last.Error)
	case age > 2*k.Reconciler.Bound():
		return fmt.Errorf("the last sweep was %v ago: is a reconciler running?", age.Round(time.Second))
	}
	return nil
}
