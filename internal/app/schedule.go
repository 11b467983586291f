package app

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

//go:embed schedule.sql
var scheduleSQL string

const (
	scheduleBuckets = 60
	scheduleBegun   = 20  // buckets that have begun; the other 40 are a look-ahead
	scheduleRows    = 300 // rows that are counted of a bucket, so that the answer takes milliseconds whatever is pending
	scheduleFactor  = 20  // the most by which the number of a bucket's rows is estimated to be larger
)

// Schedule has the pending rows of a kind by due time, and the tasks in Redis that time them out by theirs, in 60
// buckets. The present is in the twentieth bucket, and the last one ends within the look-ahead of the reconciler: what
// is due later may not have a task.
type Schedule struct {
	At    time.Time `json:"at"`             // by the database's clock
	From  float64   `json:"from_seconds"`   // from At to the start of the first bucket
	Width float64   `json:"bucket_seconds"` // of each bucket
	Rows  Spread    `json:"rows"`
	Tasks *Spread   `json:"tasks"` // those that no worker has claimed; nil: Redis does not answer, or there is none
}

// Spread is a number of rows or tasks by due time.
type Spread struct {
	Before    int64   `json:"before"`    // due before the first bucket; of the rows at most 300 are counted
	Counts    []int64 `json:"counts"`    // of each bucket
	Estimated bool    `json:"estimated"` // some of the counts are estimates
}

// scheduleOf returns the statement that counts the pending rows of a table by due time.
func scheduleOf(rows reconcile.Rows) string {
	return strings.NewReplacer("{table}", rows.Table, "{due}", rows.Due).Replace(scheduleSQL)
}

// Schedule reads the schedule of the kind. It waits for Redis for at most the time limit.
func (k *Kind) Schedule(ctx context.Context, limit time.Duration) (*Schedule, error) {
	width := k.Reconciler.Lookahead() / (scheduleBuckets - scheduleBegun)
	var lanes []struct {
		At                         time.Time
		FromUs, Counted, CoveredUs int64
	}
	asked := time.Now()
	_, err := postgres.Scan(ctx, k.process.DB, &lanes, k.schedule,
		width.Microseconds(), scheduleBegun, scheduleBuckets, scheduleRows)
	if err != nil {
		return nil, fmt.Errorf("read the schedule of %s: %w", k.Name, err)
	}
	from := time.Duration(lanes[0].FromUs) * time.Microsecond
	s := &Schedule{At: lanes[0].At.UTC(), From: from.Seconds(), Width: width.Seconds()}
	s.Rows.Before = lanes[0].Counted
	for _, lane := range lanes[1:] {
		count := lane.Counted
		if count == scheduleRows { // there may be more: take their due times for even
			covered := max(lane.CoveredUs, width.Microseconds()/scheduleFactor)
			count = count * width.Microseconds() / covered
			s.Rows.Estimated = true
		}
		s.Rows.Counts = append(s.Rows.Counts, count)
	}
	if k.Queue == nil {
		return s, nil
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	from -= time.Since(asked)
	before, counts, estimated, err := k.Queue.Spread(limited, from, width, scheduleBuckets)
	if err == nil { // otherwise Redis does not answer, which the caller sees
		s.Tasks = &Spread{before, counts, estimated}
	}
	return s, nil
}
