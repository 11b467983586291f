package delay

import (
	"context"
	"fmt"
	"time"
)

// Depth is the number of a queue's tasks, by state.
type Depth struct {
	Scheduled int64         // due later
	Due       int64         // due now, but not claimed
	Leased    int64         // claimed by workers
	Dead      int64         // dead letters
	OldestDue time.Duration // how long the oldest due task has waited
}

// Depth counts the tasks of all shards, those of one shard at one instant.
func (q *Queue) Depth(ctx context.Context) (Depth, error) {
	n, err := q.count(ctx, q.shards, time.Microsecond, 0, 0)
	if err != nil {
		return Depth{}, err
	}
	return Depth{OldestDue: fromMicros(n[0]), Leased: n[1], Dead: n[2], Due: n[3], Scheduled: n[4]}, nil
}

const maxSpread = 16 // shards that Spread asks: counting 60 ranges takes a shard some 30 µs

// Spread is a number of tasks, or of the rows that they time out, by due time.
type Spread struct {
	Before    int64   `json:"before"`    // due before the first range
	Counts    []int64 `json:"counts"`    // of each range
	Later     int64   `json:"later"`     // due after the last range
	Estimated bool    `json:"estimated"` // some of the numbers are estimates
}

// Spread counts by due time the tasks that no worker has claimed. from is the time from now to the start of the first
// of n ranges, and may be negative. If the queue has more than 16 shards, the numbers are estimates, from 16 of them.
func (q *Queue) Spread(ctx context.Context, from, width time.Duration, n int) (Spread, error) {
	asked := q.shards[:min(len(q.shards), maxSpread)] // a hash chooses the shard of a task, so all shards are alike
	counts, err := q.count(ctx, asked, from, width, n)
	if err != nil {
		return Spread{}, err
	}
	for i := range counts {
		counts[i] = counts[i] * int64(len(q.shards)) / int64(len(asked))
	}
	return Spread{counts[3], counts[4 : 4+n], counts[4+n], len(asked) < len(q.shards)}, nil
}

var depthScript = load("depth")

// count returns the reply of the script depth, summed over some shards, with the longest wait of a due task.
func (q *Queue) count(ctx context.Context, shards []shard, from, width time.Duration, n int) ([]int64, error) {
	calls := make([]call, len(shards))
	for i, s := range shards {
		calls[i] = call{[]string{s.due, s.leased, s.dead}, []any{micros(from), micros(width), n}}
	}
	replies, err := q.runEach(ctx, depthScript, calls)
	if err != nil {
		return nil, fmt.Errorf("count the tasks of %s: %w", q.kind, err)
	}
	sum := make([]int64, 5+n)
	for _, reply := range replies {
		counts, err := integers(reply, len(sum))
		if err != nil {
			return nil, fmt.Errorf("count the tasks of %s: %w", q.kind, err)
		}
		sum[0] = max(sum[0], counts[0])
		for k, count := range counts[1:] {
			sum[1+k] += count
		}
	}
	return sum, nil
}
