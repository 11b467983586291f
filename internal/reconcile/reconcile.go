// Package reconcile compares a table of things that time out with the queue that is to deliver their
// timeouts, and repairs what the queue lost.
//
// The promise: whatever happens to Redis, a pending row's timeout is late by at most one interval of the
// schedule and a grace, and what a sweep spends on rows that cannot be timed out. The table is the truth. A sweep looks at the pending rows whose deadlines are near, adds the
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
	"math"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Table is the rows that time out.
type Table interface {
	Rows
	Timeouts
}

// Rows is the pending rows.
type Rows interface {
	// Pending returns a page of the pending rows by deadline, with what is left to each by the table's
	// clock. Only deadlines up to ahead from now are looked at, or all if ahead is negative. after is ""
	// for the first page and then the last page's next, which is "" when there are no more.
	Pending(ctx context.Context, after string, ahead time.Duration, limit int) (ids []string, left []time.Duration, next string, err error)
	// Unknown returns those of the ids that have no row, pending or not.
	Unknown(ctx context.Context, ids []string) ([]string, error)
}

// Timeouts times out rows.
type Timeouts interface {
	// Overdue returns a page of the pending rows that are overdue by more than grace, by deadline. after and next are
	// those of Pending.
	Overdue(ctx context.Context, after string, grace time.Duration, limit int) (ids []string, next string, err error)
	// TimeOut times out those of the rows that are overdue. It returns how many it timed out, and how many it left
	// because other sessions hold them. An error that wraps [ErrUnavailable] is the table's. Any other is that of some
	// of the rows, and they are tried in smaller parts.
	TimeOut(ctx context.Context, ids []string) (done, held int, err error)
}

// ErrUnavailable means that a table cannot be used now, whatever the rows.
var ErrUnavailable = errors.New("the table is not available")

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
	Failed    bool          // at least once, and waits to be tried again
	Left      time.Duration // until a scheduled task is due, by the queue's clock
}

// Care is what a queue does for itself when it is asked to.
type Care interface {
	// Mend renames keys that hold what the queue cannot use, and returns their new names.
	Mend(ctx context.Context) ([]string, error)
	// RemoveOrphans removes tasks, above all of those that are due within ahead, whose ids unknown returns. It returns
	// the error of unknown as it is.
	RemoveOrphans(ctx context.Context, ahead time.Duration, unknown func(context.Context, []string) ([]string, error)) (int, error)
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
	Care
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

// withDefaults fills cfg and returns its parsed schedule with the longest time between two activations, or says what is
// wrong with it.
func (cfg Config) withDefaults() (Config, cron.Schedule, time.Duration, error) {
	cfg.Schedule = cmp.Or(cfg.Schedule, defaultSchedule)
	cfg.Lookahead = cmp.Or(cfg.Lookahead, defaultLookahead)
	cfg.Grace = cmp.Or(cfg.Grace, defaultGrace)
	cfg.Probe = cmp.Or(cfg.Probe, defaultProbe)
	schedule, err := parseSchedule(cfg.Schedule)
	if err != nil {
		return cfg, nil, 0, fmt.Errorf("reconcile schedule %q: %w; want a cron expression (*/5 * * * *) or @every 30s", cfg.Schedule, err)
	}
	if cfg.Lookahead < 0 || cfg.Grace < 0 || cfg.Probe < 0 {
		return cfg, nil, 0, errors.New("reconcile look-ahead, grace and probe must not be negative")
	}
	gap := longestGap(schedule, time.Now(), cfg.Lookahead/2)
	if gap > cfg.Lookahead/2 {
		return cfg, nil, 0, fmt.Errorf("reconcile look-ahead %v is less than twice %v, a time between two activations of the schedule %q: "+
			"a task that was lost could be due before a sweep looks for it", cfg.Lookahead, gap, cfg.Schedule)
	}
	return cfg, schedule, gap, nil
}

// parseSchedule reads a cron expression in UTC, or in the zone that it names, or @every.
func parseSchedule(text string) (cron.Schedule, error) {
	if err := checkZone(text); err != nil {
		return nil, err
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " ")) // it may repeat line breaks
	}
	if _, every, ok := strings.Cut(text, "@every "); ok { // of which cron makes at least a second, whatever it says
		if d, err := time.ParseDuration(every); err != nil || d < time.Second {
			return nil, errors.New("the interval must be at least 1s")
		}
	}
	if schedule.Next(time.Now().UTC()).IsZero() {
		return nil, errors.New("the time never comes")
	}
	return schedule, nil
}

// checkZone refuses what cron v3.0.1 takes for a time zone without looking: it panics if nothing follows.
func checkZone(text string) error {
	_, rest, named := strings.Cut(text, "TZ=")
	if !named {
		return nil
	}
	zone, _, expression := strings.Cut(rest, " ")
	if _, err := time.LoadLocation(zone); err != nil || zone == "" || !expression {
		return errors.New("want a time zone and then an expression, as in TZ=UTC */5 * * * *")
	}
	return nil
}

// longestGap returns the longest time between two of the schedule's activations, of a year that begins with the first
// one after now, or the first such time that is longer than most.
func longestGap(schedule cron.Schedule, now time.Time, most time.Duration) time.Duration {
	switch schedule := schedule.(type) {
	case cron.ConstantDelaySchedule:
		return schedule.Delay
	case *cron.SpecSchedule:
		return longestGapOf(schedule, now.UTC(), most)
	default:
		return math.MaxInt64 // not one that parseSchedule returns
	}
}

// longestGapOf asks for the first activation of each hour: all hours that have any have those of the same minutes. To
// ask for all activations of a year would take a second.
func longestGapOf(spec *cron.SpecSchedule, now time.Time, most time.Duration) time.Duration {
	last, longest := minutes(spec)
	next := spec.Next(now)
	for end := next.AddDate(1, 0, 0); next.Before(end) && longest <= most; {
		inHour := next.Add(time.Duration(max(0, last-minuteOf(spec, next))) * time.Minute)
		if next = spec.Next(inHour); next.IsZero() { // it never comes again
			return math.MaxInt64
		}
		longest = max(longest, next.Sub(inHour))
	}
	return longest
}

// minutes returns the last minute of an hour's activations, and the longest time between two of them.
func minutes(spec *cron.SpecSchedule) (last int, longest time.Duration) {
	first := true
	for minute := range 60 {
		if spec.Minute&(1<<minute) == 0 {
			continue
		}
		if !first {
			longest = max(longest, time.Duration(minute-last)*time.Minute)
		}
		first, last = false, minute
	}
	return last, longest
}

// minuteOf is the minute of a time by the schedule's clock, which is UTC unless it names a zone.
func minuteOf(spec *cron.SpecSchedule, t time.Time) int {
	if spec.Location != time.Local {
		t = t.In(spec.Location)
	}
	return t.Minute()
}
