package delay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// DeadLetter is a task that failed its last attempt. No worker gets it until an operator redrives it.
type DeadLetter struct {
	Kind     string    `json:"kind"`
	ID       string    `json:"id"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	BuriedAt time.Time `json:"buried_at"` // by Redis's clock
}

var redriveScript = load("redrive")

// Redrive makes a dead letter due now, with no failed attempts, and reports whether there was such a dead letter.
func (q *Queue) Redrive(ctx context.Context, id string) (bool, error) {
	s := q.shards[q.shardOf(id)]
	n, err := redriveScript.Run(ctx, q.rdb, []string{s.due, s.dead, s.attempts, s.errs},
		q.channel(), s.number, id).Int()
	if err != nil {
		return false, fmt.Errorf("redrive %s: %w", q.kind, err)
	}
	return n == 1, nil
}

// deadEntry is the member of a dead letter in the dead set of a shard.
type deadEntry struct {
	shard
	id       string
	buriedAt float64
}

// DeadLetters lists dead letters, the latest first. It skips the first offset ones and returns at most limit. It reads
// up to offset+limit members of each shard, which is cheap while there are few dead letters, as is normal.
func (q *Queue) DeadLetters(ctx context.Context, offset, limit int) ([]DeadLetter, error) {
	buried := make([]*redis.ZSliceCmd, len(q.shards))
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, s := range q.shards {
			buried[i] = p.ZRevRangeWithScores(ctx, s.dead, 0, int64(offset+limit-1))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters of %s: %w", q.kind, err)
	}
	var entries []deadEntry
	for i, s := range q.shards {
		for _, z := range buried[i].Val() {
			entries = append(entries, deadEntry{s, z.Member.(string), z.Score})
		}
	}
	slices.SortFunc(entries, func(a, b deadEntry) int {
		return cmp.Or(cmp.Compare(b.buriedAt, a.buriedAt), cmp.Compare(a.id, b.id))
	})
	return q.readDeadLetters(ctx, entries[min(offset, len(entries)):min(offset+limit, len(entries))])
}

// readDeadLetters reads the attempts and errors of dead letters. It returns a dead letter even if Redis has no
// readable attempts or error of it, because operators need the list most when the content of Redis is damaged.
func (q *Queue) readDeadLetters(ctx context.Context, entries []deadEntry) ([]DeadLetter, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	attempts, reasons := make([]*redis.StringCmd, len(entries)), make([]*redis.StringCmd, len(entries))
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, entry := range entries {
			attempts[i], reasons[i] = p.HGet(ctx, entry.attempts, entry.id), p.HGet(ctx, entry.errs, entry.id)
		}
		return nil
	})
	// A redis.Error is an answer for one of the letters, and after any other error Redis did not answer.
	if _, answered := errors.AsType[redis.Error](err); err != nil && !answered {
		return nil, fmt.Errorf("read dead letters of %s: %w", q.kind, err)
	}
	letters := make([]DeadLetter, len(entries))
	for i, entry := range entries {
		n, _ := attempts[i].Int() // 0 if it is no number
		letters[i] = DeadLetter{
			Kind: q.kind, ID: entry.id, Attempts: max(n, 0), Error: reasons[i].Val(), BuriedAt: timeOf(entry.buriedAt),
		}
	}
	return letters, nil
}

// timeOf returns the time of a score, or the nearest time that JSON can hold: other clients can write any score.
func timeOf(score float64) time.Time {
	const latest = 253402300799e6 // the last second of the year 9999; a float64 would round its last microsecond up
	return time.UnixMicro(int64(max(0, min(latest, score)))).UTC()
}
