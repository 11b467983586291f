// Package reconcile sweeps: it compares a table of rows that time out with the queue that delivers their tasks, and
// repairs the differences.
//
// A sweep of a [Reconciler] first times out the rows that are overdue for longer than a grace, without the queue: see
// package timeout. Then it reads the pending rows whose deadlines are near, adds tasks that are missing in the queue,
// and moves tasks forward that are due too late. Where the two differ, the table is right. A sweep ignores a task
// without a row, because the worker drops such a task when it is due.
//
// If Redis was wiped, its markers are missing, and a sweep begins at once. It adds the tasks that are due soon, as
// every sweep does, and sets the markers. Later sweeps add the other tasks before they are due.
//
// So whatever happens to Redis, a pending row times out at most one interval of the schedule and one grace after its
// deadline. It may take longer if a sweep spends time on other rows that cannot be timed out. A process that dies
// during a sweep does no harm, because each step of a sweep may be repeated, and the next sweep begins again.
package reconcile

import (
	"cmp"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// Config configures a reconciler. Zero fields get the defaults.
type Config struct {
	// Schedule says when to sweep: a cron expression, in UTC unless it begins with a time zone (TZ=Europe/Berlin), or
	// @every with a duration of at least a second. Default @every 30s.
	Schedule string
	// A sweep compares the tasks of the rows that are due within Lookahead. It must be at least 2 s, and with @every
	// at least two intervals, so that a task is compared before it is due, even if one sweep is missed. If the times
	// of a cron expression are further apart than half a look-ahead, there are more sweeps. Default 2 min.
	Lookahead time.Duration
}

const (
	defaultSchedule  = "@every 30s"
	defaultLookahead = 2 * time.Minute

	// grace is the time for which a row may be overdue before the reconciler times it out. A worker is expected to
	// time out a row within the first second.
	grace = 2 * time.Second
	// probeEvery is the time between two probes of Redis.
	probeEvery = 2 * time.Second
	// tolerance is the time by which a task may seem to be due later than its row, because the clocks of the database
	// and of Redis are read one after the other.
	tolerance = 500 * time.Millisecond
	// pageSize is the largest number of rows that a statement or a script gets, so that it keeps locks and blocks
	// Redis for a few milliseconds only.
	pageSize = 1000
)

// Check returns an error that describes an invalid field.
func (cfg Config) Check() error {
	_, _, _, err := cfg.withDefaults()
	return err
}

// withDefaults fills in the defaults. It returns the parsed schedule and the longest time between two sweeps, or an
// error that describes an invalid field.
func (cfg Config) withDefaults() (Config, cron.Schedule, time.Duration, error) {
	cfg.Schedule = cmp.Or(cfg.Schedule, defaultSchedule)
	cfg.Lookahead = cmp.Or(cfg.Lookahead, defaultLookahead)
	schedule, err := parseSchedule(cfg.Schedule)
	if err != nil {
		return cfg, nil, 0, fmt.Errorf("reconcile schedule %q: %w; want a cron expression (*/5 * * * *) or @every 30s",
			cfg.Schedule, err)
	}
	// The times of a cron expression may be further apart than half a look-ahead, and then [Run] sweeps between them.
	interval := cfg.Lookahead / 2
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok {
		interval = every.Delay
	}
	if shortest := max(interval, time.Second); cfg.Lookahead/2 < shortest {
		return cfg, nil, 0, fmt.Errorf("reconcile look-ahead %v is less than twice %v, the time between two sweeps of the "+
			"schedule %q: a lost task could be due before a sweep looks for it; choose a longer look-ahead or shorter "+
			"intervals", cfg.Lookahead, shortest, cfg.Schedule)
	}
	return cfg, schedule, interval, nil
}
