package order

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/app"
)

var (
	//go:embed invariants.sql
	invariantsSQL string
	//go:embed lateness.sql
	latenessSQL string
	//go:embed backlog.sql
	backlogSQL string
)

// Ready returns an error if the database does not answer, or if it lacks the orders' tables. It checks that two of
// their indexes exist, because the restore of a backup creates indexes last.
func (s *Store) Ready(ctx context.Context) error {
	err := s.db.WithContext(ctx).Exec(`SELECT 'orders_idempotency_key'::regclass, 'orders_pending_deadline'::regclass`).Error
	if err != nil {
		return fmt.Errorf("check for the orders' tables: %w", err)
	}
	return nil
}

// Invariants returns up to 1,000 violations of the invariants. A healthy database has none. bound is how long past its
// due time an order may be pending. The check reads every order, and only ctx limits its time.
func (s *Store) Invariants(ctx context.Context, bound time.Duration) ([]app.Violation, error) {
	violations := []app.Violation{}
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec(`SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'on', true)`).Error; err != nil {
			return err
		}
		return tx.Raw(invariantsSQL, bound.Microseconds()).Scan(&violations).Error
	})
	if err != nil {
		return nil, fmt.Errorf("check invariants: %w", err)
	}
	return violations, nil
}

// Lateness describes how long after their due times orders timed out, by the actor that cancelled them.
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

// Lateness describes the timeouts of the last hour, at most the latest 10,000.
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

// Backlog summarizes the pending orders.
type Backlog struct {
	Pending       int64   `json:"pending"`
	OldestOverdue float64 `json:"oldest_overdue_seconds"` // time since the earliest due time; 0 if it has not passed
}

// Backlog counts the pending orders, and returns the time since the earliest of their due times.
func (s *Store) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	if err := s.db.WithContext(ctx).Raw(backlogSQL).Scan(&b).Error; err != nil {
		return Backlog{}, fmt.Errorf("count pending orders: %w", err)
	}
	return b, nil
}
