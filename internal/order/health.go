package order

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"gorm.io/gorm"
)

//go:embed invariants.sql
var invariantsSQL string

// Ready returns an error if the database does not answer, or does not have the orders. It looks for two indexes of
// theirs, which are there when a backup is restored, and not yet when its tables are.
func (s *Store) Ready(ctx context.Context) error {
	err := s.db.WithContext(ctx).Exec(`SELECT 'orders_idempotency_key'::regclass, 'orders_pending_deadline'::regclass`).Error
	if err != nil {
		return fmt.Errorf("look for the orders: %w", err)
	}
	return nil
}

// Violation is a fact in the database that contradicts the promise.
type Violation struct {
	Invariant int    `json:"invariant"` // its number in invariants.sql
	Subject   string `json:"subject"`   // the order or product, with its id
	Detail    string `json:"detail"`
}

// Invariants looks for violations of the promise, up to 1,000; none is the healthy answer. An order may
// be pending for as long as bound past its deadline. It reads every order there is, and takes as long as
// ctx allows.
func (s *Store) Invariants(ctx context.Context, bound time.Duration) ([]Violation, error) {
	violations := []Violation{}
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec(`SET LOCAL statement_timeout = 0`).Error; err != nil {
			return err
		}
		return tx.Raw(invariantsSQL, bound.Microseconds()).Scan(&violations).Error
	})
	if err != nil {
		return nil, fmt.Errorf("check invariants: %w", err)
	}
	return violations, nil
}

// Lateness is how long after their deadlines orders were cancelled lately, by who cancelled them.
type Lateness struct {
	Worker     Percentiles `json:"worker"`
	Reconciler Percentiles `json:"reconciler"`
	Histogram  []Bucket    `json:"histogram"`
}

// Bucket counts cancellations that were late by less than Below seconds, and no less than the bucket before;
// in the last bucket Below is nil.
type Bucket struct {
	Below      *float64 `json:"below_seconds"`
	Worker     int64    `json:"worker"`
	Reconciler int64    `json:"reconciler"`
}

// bucketBounds are where the buckets of a lateness histogram part, in seconds.
var bucketBounds = []float64{.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}

// Percentiles of a number of durations, in seconds.
type Percentiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

// latenessSQL looks at the last hour's timeouts, at most the latest 10,000, by the indexes
// orders_timed_out and order_events_terminal. It counts each actor's as a whole, with no bucket, and by bucket.
const latenessSQL = `
	WITH recent AS (
		SELECT id, extract(epoch FROM cancelled_at - expires_at)::float8 AS late
		FROM orders
		WHERE cancel_reason = 'timeout' AND cancelled_at > now() - interval '1 hour'
		ORDER BY cancelled_at DESC
		LIMIT 10000
	),
	cancelled AS (
		SELECT e.actor, late, width_bucket(late, $1::float8[]) AS bucket
		FROM recent JOIN order_events e ON e.order_id = recent.id AND e.type = 'cancelled'
	)
	SELECT actor, bucket, count(*) AS count, max(late) AS max,
	       percentile_cont(0.5)  WITHIN GROUP (ORDER BY late) AS p50,
	       percentile_cont(0.99) WITHIN GROUP (ORDER BY late) AS p99
	FROM cancelled
	GROUP BY GROUPING SETS ((actor), (actor, bucket))`

// Lateness returns how late the cancellations of the last hour were.
func (s *Store) Lateness(ctx context.Context) (Lateness, error) {
	var rows []struct {
		Actor       Actor
		Bucket      *int
		Percentiles `gorm:"embedded"`
	}
	if err := s.db.WithContext(ctx).Raw(latenessSQL, bucketBounds).Scan(&rows).Error; err != nil {
		return Lateness{}, fmt.Errorf("read lateness: %w", err)
	}
	l := Lateness{Histogram: make([]Bucket, len(bucketBounds)+1)}
	for i := range bucketBounds {
		l.Histogram[i].Below = &bucketBounds[i]
	}
	for _, row := range rows {
		switch {
		case row.Actor == Worker && row.Bucket == nil:
			l.Worker = row.Percentiles
		case row.Actor == Reconciler && row.Bucket == nil:
			l.Reconciler = row.Percentiles
		case row.Actor == Worker:
			l.Histogram[*row.Bucket].Worker = row.Count
		case row.Actor == Reconciler:
			l.Histogram[*row.Bucket].Reconciler = row.Count
		}
	}
	return l, nil
}

// Backlog is what there is of open orders.
type Backlog struct {
	Pending       int64   `json:"pending"`
	OldestOverdue float64 `json:"oldest_overdue_seconds"` // how long past its deadline the oldest is; 0 if none is
}

// backlogSQL costs as much as there are open orders, not as the table.
const backlogSQL = `
	SELECT count(*) AS pending,
	       greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(expires_at)), 0))::float8 AS oldest_overdue
	FROM orders WHERE status = 'pending'`

// Backlog counts the pending orders and tells how late the latest of them is.
func (s *Store) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	if err := s.db.WithContext(ctx).Raw(backlogSQL).Scan(&b).Error; err != nil {
		return Backlog{}, fmt.Errorf("read open orders: %w", err)
	}
	return b, nil
}
