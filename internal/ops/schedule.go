package ops

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
)

//go:embed schedule.sql
var scheduleSQL string

const (
	scheduleBuckets  = 60
	scheduleBegun    = 20     // buckets that have begun; the other 40 are a look-ahead
	scheduleRows     = 300    // rows of a bucket that are counted
	scheduleMoreRows = 20_000 // rows of all fuller buckets together, so that an answer takes milliseconds
	scheduleFactor   = 20     // an estimate is at most this many times the number of counted rows
)

// schedule has the numbers of the pending rows of a kind, and of the tasks in Redis that time them out, by due time in
// 60 buckets. The present is in the twentieth bucket. The look-ahead of the reconciler ends in the last bucket: a row
// that is due later may not have a task.
type schedule struct {
	At    time.Time `json:"at"`             // by the database's clock
	From  float64   `json:"from_seconds"`   // from At to the start of the first bucket
	Width float64   `json:"bucket_seconds"` // of each bucket
	// Rows counts at most 300 rows before the first bucket, and at most 300 after the last.
	Rows  delay.Spread  `json:"rows"`
	Tasks *delay.Spread `json:"tasks"` // that no worker has claimed; nil: Redis does not answer
}

// readSchedule reads the schedule of a kind of task. It waits for Redis for at most the time limit.
func readSchedule(ctx context.Context, db *gorm.DB, k *app.Kind, limit time.Duration) (*schedule, error) {
	width := k.Reconciler.Lookahead() / (scheduleBuckets - scheduleBegun)
	s, full, err := countRows(ctx, db, k.Rows, width, scheduleRows)
	if full > 0 && scheduleMoreRows/full > 2*scheduleRows {
		s, _, err = countRows(ctx, db, k.Rows, width, scheduleMoreRows/full)
	}
	if err != nil {
		return nil, fmt.Errorf("read the schedule of %s: %w", k.Name, err)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// The few milliseconds since the database read its clock are left out: tasks may seem to be due so much earlier.
	from := time.Duration(s.From * float64(time.Second))
	tasks, err := k.Queue.Spread(limited, from, width, scheduleBuckets)
	if err == nil { // otherwise Redis does not answer, which the caller sees
		s.Tasks = &tasks
	}
	return s, nil
}

// scheduleOf returns the statement of the schedule of rows.
func scheduleOf(rows timeout.Rows) string {
	return strings.NewReplacer("{table}", rows.Table, "{due}", rows.Due).Replace(scheduleSQL)
}

// countRows returns a schedule without tasks, and the number of its buckets that have most rows or more. It assumes
// that the due times in such a bucket are spread evenly.
func countRows(
	ctx context.Context, db *gorm.DB, rows timeout.Rows, width time.Duration, most int,
) (s *schedule, full int, err error) {
	var lanes []struct { // the rows before the first bucket, then the rows of each bucket, then the later rows
		At                         time.Time
		FromUs, Counted, CoveredUs int64
	}
	_, err = postgres.Scan(ctx, db, &lanes, scheduleOf(rows),
		width.Microseconds(), scheduleBegun, scheduleBuckets, most, scheduleRows)
	if err != nil {
		return nil, 0, err
	}
	s = &schedule{At: lanes[0].At.UTC(), From: float64(lanes[0].FromUs) / 1e6, Width: width.Seconds()}
	s.Rows.Before, s.Rows.Later = lanes[0].Counted, lanes[1+scheduleBuckets].Counted
	for _, lane := range lanes[1 : 1+scheduleBuckets] {
		count := lane.Counted
		if count == int64(most) {
			covered := max(lane.CoveredUs, width.Microseconds()/scheduleFactor)
			count = count * width.Microseconds() / covered
			full++
		}
		s.Rows.Counts = append(s.Rows.Counts, count)
	}
	s.Rows.Estimated = full > 0
	return s, full, nil
}
