package delay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// What a reconciler needs: to see what the queue knows, to remove what should not be there, and to
// tell whether Redis has lost its memory.

// State is where a task is.
type State uint8

// The states of a task.
const (
	Absent State = iota
	Scheduled
	Leased
	Dead
)

// Place is a task's state and, if it is scheduled or leased, the time until it is due or its lease
// ends, by Redis's clock.
type Place struct {
	State State
	Left  time.Duration
}

// Locate tells where each of the tasks is, in the order of ids.
func (q *Queue) Locate(ctx context.Context, ids []string) ([]Place, error) {
	found := make([]Place, len(ids))
	err := q.byShard(ids, func(s shard, places []int) error {
		args := make([]any, len(places))
		for n, i := range places {
			args[n] = ids[i]
		}
		reply, err := scripts.locate.Run(ctx, q.rdb, []string{s.due, s.leased, s.dead}, args...).Int64Slice()
		if err != nil {
			return fmt.Errorf("locate: %w", err)
		}
		for n, i := range places {
			found[i] = Place{State: State(reply[2*n]), Left: fromMicros(reply[2*n+1])}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Window lists the ids of up to limit tasks of a shard that are due within ahead, the earliest first,
// after the first offset. Leased tasks are not among them.
func (q *Queue) Window(ctx context.Context, shard int, ahead time.Duration, offset, limit int) ([]string, error) {
	ids, err := scripts.window.Run(ctx, q.rdb, []string{q.shards[shard].due}, micros(ahead), offset, limit).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("window of %s shard %d: %w", q.kind, shard, err)
	}
	return ids, nil
}

// Remove takes scheduled tasks out of the queue and returns how many there were.
func (q *Queue) Remove(ctx context.Context, ids ...string) (int, error) {
	removed := 0
	err := q.byShard(ids, func(s shard, places []int) error {
		members, fields := make([]any, len(places)), make([]string, len(places))
		for n, i := range places {
			members[n], fields[n] = ids[i], ids[i]
		}
		var taken *redis.IntCmd
		_, err := q.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			taken = p.ZRem(ctx, s.due, members...)
			p.HDel(ctx, s.attempts, fields...)
			p.HDel(ctx, s.errs, fields...)
			return nil
		})
		if err != nil {
			return fmt.Errorf("remove: %w", err)
		}
		removed += int(taken.Val())
		return nil
	})
	return removed, err
}

// A sentinel key in each shard goes when its Redis loses its data. It is set in two steps, so that a
// wipe in the middle of a restore is not covered up by its end.
const (
	restoring = "restoring"
	complete  = "complete"
)

// Intact tells whether every shard still has what a restore once completed. False: all of Redis, or
// one node of a cluster, was wiped, or never filled.
func (q *Queue) Intact(ctx context.Context) (bool, error) {
	for _, s := range q.shards {
		state, err := q.rdb.Get(ctx, s.sentry).Result()
		switch {
		case errors.Is(err, redis.Nil):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read sentinel of %s: %w", q.kind, err)
		case state != complete:
			return false, nil
		}
	}
	return true, nil
}

// BeginRestore notes that everything is about to be scheduled again.
func (q *Queue) BeginRestore(ctx context.Context) error {
	for _, s := range q.shards {
		if err := q.rdb.Set(ctx, s.sentry, restoring, 0).Err(); err != nil {
			return fmt.Errorf("set sentinel of %s: %w", q.kind, err)
		}
	}
	return nil
}

// EndRestore notes that everything has been scheduled since [Queue.BeginRestore]. Where a shard was
// wiped meanwhile its sentinel stays away, and [Queue.Intact] false.
func (q *Queue) EndRestore(ctx context.Context) error {
	for _, s := range q.shards {
		if err := q.rdb.SetXX(ctx, s.sentry, complete, 0).Err(); err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("set sentinel of %s: %w", q.kind, err)
		}
	}
	return nil
}
