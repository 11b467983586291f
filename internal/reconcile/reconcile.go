// Package reconcile compares a table of rows that time out with the queue that delivers their timeouts, and repairs the
// queue.
//
// Where the two differ, the table is right. A sweep reads the pending rows whose deadlines are near. It adds tasks that
// are missing in the queue, and moves tasks forward that are due too late. A task without a row is none of its concern:
// the worker drops it when it is due. It times out rows that are overdue for longer than a grace, without the queue. If Redis was wiped, its restore
// markers are missing; then a sweep compares all pending rows with the queue.
//
// So whatever happens to Redis, a pending row times out at most one interval of the schedule and one grace after its
// deadline. It may take longer if a sweep spends time on other rows that cannot be timed out.
//
// Each step of a sweep may be repeated. So a process that dies during a sweep does no harm: the next sweep begins
// again.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/robfig/cron/v3"

	"example.com/shop/internal/delay"
)

// All is the argument within of [Table.Pending] that selects all pending rows, whatever their deadlines.
const All time.Duration = math.MaxInt64

// ErrUnavailable means that a table cannot be used now, for a reason outside its rows. A later call may succeed.
var ErrUnavailable = errors.New("the table is not available")

// Table is the rows that time out. Package deadline has one for the statements of a domain.
type Table interface {
	// Pending returns a page of at most limit pending rows, sorted by deadline, with the time left to each deadline by
	// the table's clock.
	//
	// The argument within selects the rows: those whose time left is within or less. If within is negative, these are
	// the rows that are overdue by at least that much. If within is [All], these are all pending rows.
	//
	// To read the first page, pass "" as after. To read a further page, pass the next that Pending returned with the
	// page before. On the last page next is "".
	Pending(ctx context.Context, after string, within time.Duration, limit int) (
		page []delay.Message, next string, err error)
	// TimeOut times out those of the rows that are overdue. It returns the number of rows that it timed out, and the
	// number of overdue rows that it left because other sessions have locked them. An error that wraps
	// [ErrUnavailable] concerns the whole table. After any other error the reconciler tries smaller parts of the
	// ids, to find the rows that cause it.
	TimeOut(ctx context.Context, ids []string) (done, locked int, err error)
}

// Config configures a reconciler. Zero fields get the defaults.
type Config struct {
	// Schedule says when to sweep: a cron expression, in UTC unless it begins with a time zone (TZ=Europe/Berlin), or
	// @every with a duration of at least a second. Default @every 30s.
	Schedule string
	// Lookahead is the time before a row's deadline from which on sweeps look at its task. It must be at least two
	// intervals of the schedule: then a sweep looks at a task before the task is due, even if one sweep is missed.
	// Default 2 min.
	Lookahead time.Duration
	// Grace is the time for which a row may be overdue before the reconciler times it out. Default 2 s. A worker is
	// expected to time out a row within the first second.
	Grace time.Duration
	// Probe is the time between two probes. Default 2 s. A probe reads the restore markers, with one command, or with one for
	// each shard if Redis is a cluster, and then the replication id of each master. It starts a sweep if a marker is missing or
	// not complete, if Redis does not answer, and if an id is another one than before.
	Probe time.Duration
}

const (
	defaultSchedule  = "@every 30s"
	defaultLookahead = 2 * time.Minute
	defaultGrace     = 2 * time.Second
	defaultProbe     = 2 * time.Second

	// tolerance is the time by which a task may be due later than its row's deadline. With a longer one, rows time out late.
	// With a shorter one, the time between the reads of the two clocks makes tasks seem late that are not.
	tolerance = 500 * time.Millisecond
	// pageSize is the largest number of rows that a statement or a script gets. With more, it keeps locks or blocks Redis for
	// more than a few milliseconds. With fewer, a sweep takes more round trips.
	pageSize = 1000
)

// Check returns an error that describes an invalid field.
func (cfg Config) Check() error {
	_, _, _, err := cfg.withDefaults()
	return err
}

// withDefaults fills in the defaults. It returns the parsed schedule and the longest time between two activations of
// it, or an error that describes an invalid field.
func (cfg Config) withDefaults() (Config, cron.Schedule, time.Duration, error) {
	cfg.Schedule = cmp.Or(cfg.Schedule, defaultSchedule)
	cfg.Lookahead = cmp.Or(cfg.Lookahead, defaultLookahead)
	cfg.Grace = cmp.Or(cfg.Grace, defaultGrace)
	cfg.Probe = cmp.Or(cfg.Probe, defaultProbe)
	schedule, err := parseSchedule(cfg.Schedule)
	if err != nil {
		return cfg, nil, 0, fmt.Errorf("reconcile schedule %q: %w; want a cron expression (*/5 * * * *) or @every 30s",
			cfg.Schedule, err)
	}
	if cfg.Lookahead < 0 || cfg.Grace < 0 || cfg.Probe < 0 {
		return cfg, nil, 0, fmt.Errorf("reconcile look-ahead %v, grace %v and probe %v must not be negative",
			cfg.Lookahead, cfg.Grace, cfg.Probe)
	}
	interval := longestInterval(schedule, time.Now(), cfg.Lookahead/2)
	if interval > cfg.Lookahead/2 {
		return cfg, nil, 0, fmt.Errorf("reconcile look-ahead %v is less than twice %v, the time between two "+
			"activations of the schedule %q: a lost task could be due before a sweep looks for it; "+
			"choose a longer look-ahead or shorter intervals", cfg.Lookahead, interval, cfg.Schedule)
	}
	return cfg, schedule, interval, nil
}
