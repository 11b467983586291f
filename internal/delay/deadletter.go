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

// DeadLetters lists the latest dead letters, at most limit, the latest first.
func (q *Queue) DeadLetters(ctx context.Context, limit int) ([]DeadLetter, error) {
	buried := make([]*redis.ZSliceCmd, len(q.shards))
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, s := range q.shards {
			buried[i] = p.ZRevRangeWithScores(ctx, s.dead, 0, int64(limit-1))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters of %s: %w", q.kind, err)
	}
	var letters []DeadLetter
	for _, reply := range buried {
		for _, z := range reply.Val() {
			letters = append(letters, DeadLetter{Kind: q.kind, ID: z.Member.(string), BuriedAt: timeOf(z.Score)})
		}
	}
	slices.SortFunc(letters, func(a, b DeadLetter) int {
		return cmp.Or(b.BuriedAt.Compare(a.BuriedAt), cmp.Compare(a.ID, b.ID))
	})
	letters = letters[:min(limit, len(letters))]
	return letters, q.readErrors(ctx, letters)
}

// readErrors sets the attempts and errors of dead letters. It leaves a value empty if Redis does not have it, or if it
// cannot be read, because operators need the list most when the content of Redis is damaged.
func (q *Queue) readErrors(ctx context.Context, letters []DeadLetter) error {
	attempts, reasons := make([]*redis.StringCmd, len(letters)), make([]*redis.StringCmd, len(letters))
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, letter := range letters {
			s := q.shards[q.shardOf(letter.ID)]
			attempts[i], reasons[i] = p.HGet(ctx, s.attempts, letter.ID), p.HGet(ctx, s.errs, letter.ID)
		}
		return nil
	})
	// A redis.Error is an answer for one of the letters, and after any other error Redis did not answer.
	if _, answered := errors.AsType[redis.Error](err); err != nil && !answered {
		return fmt.Errorf("read dead letters of %s: %w", q.kind, err)
	}
	for i := range letters {
		n, _ := attempts[i].Int() // 0 if it is no number
		letters[i].Attempts, letters[i].Error = max(n, 0), reasons[i].Val()
	}
	return nil
}

// timeOf returns the time of a score, or the nearest time that JSON can hold: other clients can write any score.
func timeOf(score float64) time.Time {
	const latest = 253402300799e6 // the last second of the year 9999; a float64 would round its last microsecond up
	return time.UnixMicro(int64(max(0, min(latest, score)))).UTC()
}
