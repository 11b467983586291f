package app

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/reconcile"
)

// CheckReady returns an error if the database does not answer, or lacks one of the relations. Name indexes: the
// restore of a backup creates them last.
func CheckReady(ctx context.Context, db *gorm.DB, relations ...string) error {
	err := db.WithContext(ctx).Exec(`SELECT name::regclass FROM unnest($1::text[]) AS required (name)`, relations).Error
	if err != nil {
		return fmt.Errorf("check for the relations %v: %w", relations, err)
	}
	return nil
}

// Violation is a row that breaks an invariant.
type Violation struct {
	Invariant int    `json:"invariant"` // the number of the invariant in the statement
	Subject   string `json:"subject"`   // the row, with its id
	Detail    string `json:"detail"`
}

// Invariants returns the violations of a part's invariants. bound is how long past its due time a row may be pending.
// If full is false, the check reads only rows that are open or ended lately, so that it stays fast; otherwise it
// reads every row, for `doctor --full`.
type Invariants func(ctx context.Context, bound time.Duration, full bool) ([]Violation, error)

// Violations returns the violations of the invariants of all parts.
func (p *Process) Violations(ctx context.Context, full bool) ([]Violation, error) {
	all := []Violation{}
	for _, check := range p.invariants {
		some, err := check(ctx, p.Kinds.Bound(), full)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// FindViolations returns the rows that break the invariants of a domain. A correct database has none. Only ctx limits
// the time of the check. If full is false, the statement checks few of many rows: it finds them with indexes,
// whatever the statistics of the tables say.
//
// The statement returns the columns invariant, subject and detail, and limits the number of rows.
func FindViolations(ctx context.Context, db *gorm.DB, full bool, statement string, args ...any) ([]Violation, error) {
	violations := []Violation{}
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		// A plan for the values of the parameters leaves out what they exclude: one statement can check few rows or
		// all.
		err := tx.Exec(`SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', $1, true),
			set_config('plan_cache_mode', 'force_custom_plan', true)`, strconv.FormatBool(full)).Error
		if err != nil {
			return err
		}
		return tx.Raw(statement, args...).Scan(&violations).Error
	})
	if err != nil {
		return nil, fmt.Errorf("check invariants: %w", err)
	}
	return violations, nil
}

// Row is what a table says of one of its rows, for operators who ask where the row is.
type Row struct {
	ID      string     `json:"id"`
	Kind    string     `json:"-"`        // of the task that times out the row
	Status  string     `json:"status"`   // as the table has it
	At      time.Time  `json:"at"`       // when the row was read, by the database's clock
	DueAt   time.Time  `json:"due_at"`   // when the row times out, or would have timed out
	Held    bool       `json:"held"`     // until its due time, a second party may confirm the row
	EndedAt *time.Time `json:"ended_at"` // nil: the row is pending
	EndedBy string     `json:"ended_by"` // who ended the row; "": it is pending
	Blocker string     `json:"blocker"`  // says which lock keeps an overdue row from timing out; "": none does
}

// Backlog summarizes the pending rows.
type Backlog struct {
	Pending       int64   `json:"pending"`
	OldestOverdue float64 `json:"oldest_overdue_seconds"` // the time since the earliest due time; 0 if it has not passed
}

// ReadBacklog runs a statement that returns one row, with the columns of [Backlog]: pending and oldest_overdue.
func ReadBacklog(ctx context.Context, db *gorm.DB, statement string) (Backlog, error) {
	var b Backlog
	if err := db.WithContext(ctx).Raw(statement).Scan(&b).Error; err != nil {
		return Backlog{}, fmt.Errorf("count pending rows: %w", err)
	}
	return b, nil
}

// Lateness describes how long after their due times rows timed out, by the actor that timed them out.
type Lateness struct {
	Worker     Percentiles `json:"worker"`
	Reconciler Percentiles `json:"reconciler"`
	Histogram  []Bucket    `json:"histogram"`
}

// Bucket counts the timeouts that were late by less than Below seconds and that no earlier bucket counts. In the last
// bucket Below is nil: it counts the rest.
type Bucket struct {
	Below      *float64 `json:"below_seconds"`
	Worker     int64    `json:"worker"`
	Reconciler int64    `json:"reconciler"`
}

// bucketBounds are the upper bounds of the buckets of a lateness histogram, in seconds.
var bucketBounds = []float64{.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}

// Percentiles summarizes Count durations, in seconds.
type Percentiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

// ReadLateness runs a statement on the latest timeouts. The statement has the parameter $1, the upper bounds of
// buckets in seconds (float8[]). It returns the columns actor, bucket, count, p50, p99 and max: one row for all
// timeouts of an actor (bucket NULL), and one for each bucket with timeouts. width_bucket gives the number of a
// bucket.
func ReadLateness(ctx context.Context, db *gorm.DB, statement string) (Lateness, error) {
	var rows []struct {
		Actor       reconcile.Actor
		Bucket      *int
		Percentiles `gorm:"embedded"`
	}
	if err := db.WithContext(ctx).Raw(statement, bucketBounds).Scan(&rows).Error; err != nil {
		return Lateness{}, fmt.Errorf("read lateness: %w", err)
	}
	l := Lateness{Histogram: make([]Bucket, len(bucketBounds)+1)}
	for i := range bucketBounds {
		l.Histogram[i].Below = &bucketBounds[i]
	}
	for _, row := range rows {
		switch {
		case row.Actor == reconcile.ByWorker && row.Bucket == nil:
			l.Worker = row.Percentiles
		case row.Actor == reconcile.ByReconciler && row.Bucket == nil:
			l.Reconciler = row.Percentiles
		case row.Actor == reconcile.ByWorker:
			l.Histogram[*row.Bucket].Worker = row.Count
		case row.Actor == reconcile.ByReconciler:
			l.Histogram[*row.Bucket].Reconciler = row.Count
		}
	}
	return l, nil
}
