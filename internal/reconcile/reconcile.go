// Package reconcile compares a table of things that time out with the queue that is to deliver their
// timeouts, and repairs what the queue lost.
//
// The promise: whatever happens to Redis, a pending row's timeout is late by at most one interval of the
// schedule. The table is the truth. A sweep looks at the pending rows whose deadlines are near, adds the
// tasks that the queue does not have, moves forward those that it would deliver too late, removes the
// tasks of no row, and times out by itself the rows that are overdue for longer than a grace. A Redis
// that was wiped is noticed by its missing sentinels and filled again with every pending row.
//
// Everything a sweep does may be done twice, so it may die at any point: the next one does it again.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// Table is the rows that time out.
type Table interface {
	// Pending returns a page of the pending rows by deadline, with what is left to each by the table's
	// clock. Only deadlines up to ahead from now are looked at, or all if ahead is negative. after is ""
	// for the first page and then the last page's next, which is "" when there are no more.
	Pending(ctx context.Context, after string, ahead time.Duration, limit int) (ids []string, left []time.Duration, next string, err error)
	// Unknown returns those of the ids that have no row, pending or not.
	Unknown(ctx context.Context, ids []string) ([]string, error)
	// CancelOverdue times out up to limit rows that are overdue by more than grace, and returns how many.
	CancelOverdue(ctx context.Context, grace time.Duration, limit int) (int, error)
}

// Tasks is where the timeouts of the rows should be.
type Tasks interface {
	Kind() string
	// Locate returns where each task is, in the order of ids.
	Locate(ctx context.Context, ids []string) ([]Place, error)
	// Schedule adds tasks that are due after what is left to each. Of two due times the earlier stays.
	Schedule(ctx context.Context, ids []string, left []time.Duration) error
}

// Place is where a task is: the zero Place is nowhere.
type Place struct {
	Scheduled bool
	Leased    bool
	Dead      bool
	Left      time.Duration // until a scheduled task is due, by the queue's clock
}

// Strays is the queue seen from its own side, for tasks that no row asks for.
type Strays interface {
	Shards() int
	// Window lists tasks of a shard that are due within ahead, the earliest first.
	Window(ctx context.Context, shard int, ahead time.Duration, offset, limit int) ([]string, error)
	Remove(ctx context.Context, ids ...string) (int, error)
}

// Sentinels tell whether the queue has lost its memory.
type Sentinels interface {
	Intact(ctx context.Context) (bool, error)
	BeginRestore(ctx context.Context) error
	// EndRestore must leave the queue not intact if it was wiped since BeginRestore.
	EndRestore(ctx context.Context) error
}

// Queue is all that a reconciler wants of a queue.
type Queue interface {
	Tasks
	Strays
	Sentinels
}

// Config of a reconciler; zero fields get the defaults.
type Config struct {
	// Schedule is a cron expression in UTC, or @every with a duration: @every 30s.
	Schedule string
	// Lookahead is how near a deadline must be for its task to be looked at: 2 min. At least two
	// intervals of the schedule, so that a task is looked at before it is due even if one sweep is missed.
	Lookahead time.Duration
	// Grace is how long a row may be overdue before the reconciler times it out itself: 2 s, twice what
	// the worker is allowed.
	Grace time.Duration
	// Probe is the time between looks at the sentinels, which cost one command per shard: 2 s. A wiped
	// Redis is filled at once; while Redis is unreachable each probe sweeps.
	Probe time.Duration
}

const (
	defaultSchedule  = "@every 30s"
	defaultLookahead = 2 * time.Minute
	defaultGrace     = 2 * time.Second
	defaultProbe     = 2 * time.Second

	// tolerance is how much later than its row's deadline a task may be scheduled. Half of the second that
	// a worker is allowed; far more than passes between the answers of the two clocks.
	tolerance = 500 * time.Millisecond
	// pageSize keeps each statement and each script at a few milliseconds.
	pageSize = 1000
)

// withDefaults fills cfg and returns its parsed schedule, or says what is wrong with it.
func (cfg Config) withDefaults() (Config, cron.Schedule, error) {
	cfg.Schedule = cmp.Or(cfg.Schedule, defaultSchedule)
	cfg.Lookahead = cmp.Or(cfg.Lookahead, defaultLookahead)
	cfg.Grace = cmp.Or(cfg.Grace, defaultGrace)
	cfg.Probe = cmp.Or(cfg.Probe, defaultProbe)
	schedule, err := cron.ParseStandard(cfg.Schedule)
	if err != nil {
		return cfg, nil, fmt.Errorf("reconcile schedule %q: %w; want a cron expression (*/5 * * * *) or @every 30s", cfg.Schedule, err)
	}
	if schedule.Next(time.Now()).IsZero() {
		return cfg, nil, fmt.Errorf("reconcile schedule %q never comes", cfg.Schedule)
	}
	if cfg.Grace < 0 || cfg.Probe < 0 {
		return cfg, nil, errors.New("reconcile grace and probe must not be negative")
	}
	if gap := longestGap(schedule); cfg.Lookahead < 2*gap {
		return cfg, nil, fmt.Errorf("reconcile look-ahead %v is less than twice the schedule's interval of %v: "+
			"tasks could be lost and due between two sweeps", cfg.Lookahead, gap)
	}
	return cfg, schedule, nil
}

// longestGap is the longest time between two of a schedule's next activations.
func longestGap(schedule cron.Schedule) time.Duration {
	longest := time.Duration(0)
	at := schedule.Next(time.Now().UTC())
	for range 100 {
		next := schedule.Next(at)
		longest = max(longest, next.Sub(at))
		at = next
	}
	return longest
}
