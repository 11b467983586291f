package delay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Each shard has a key that is its restore marker. When Redis loses its data, it loses the marker too. A restore sets
// the markers to "restoring" when it begins and to "complete" when it ends. The second step changes only markers that
// exist: if Redis was wiped during the restore, the marker stays absent.
const (
	restoring = "restoring"
	complete  = "complete"
)

// Intact reports whether a restore has completed since Redis was last wiped, for every shard. It is false if Redis, or
// one node of a cluster, was wiped or is new, and while a restore is under way.
func (q *Queue) Intact(ctx context.Context) (bool, error) {
	states, err := q.onMarkers(ctx, func(p redis.Pipeliner, key string) redis.Cmder { return p.Get(ctx, key) })
	if err != nil {
		return false, fmt.Errorf("read restore markers of %s: %w", q.kind, err)
	}
	incomplete := func(state redis.Cmder) bool { return state.(*redis.StringCmd).Val() != complete }
	return !slices.ContainsFunc(states, incomplete), nil
}

// BeginRestore sets the restore markers to note that the caller is about to schedule all tasks again.
func (q *Queue) BeginRestore(ctx context.Context) error {
	_, err := q.onMarkers(ctx, func(p redis.Pipeliner, key string) redis.Cmder {
		return p.Set(ctx, key, restoring, 0)
	})
	if err != nil {
		return fmt.Errorf("set restore markers of %s: %w", q.kind, err)
	}
	return nil
}

// EndRestore completes the restore markers: the caller has scheduled all tasks since [Queue.BeginRestore]. If a shard
// was wiped in between, its marker stays absent and [Queue.Intact] stays false.
func (q *Queue) EndRestore(ctx context.Context) error {
	_, err := q.onMarkers(ctx, func(p redis.Pipeliner, key string) redis.Cmder {
		return p.SetXX(ctx, key, complete, 0)
	})
	if err != nil {
		return fmt.Errorf("set restore markers of %s: %w", q.kind, err)
	}
	return nil
}

// onMarkers runs a command on the marker of each shard. A missing marker is not an error.
func (q *Queue) onMarkers(
	ctx context.Context, do func(p redis.Pipeliner, key string) redis.Cmder,
) ([]redis.Cmder, error) {
	replies := make([]redis.Cmder, len(q.shards))
	_, _ = q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for i, s := range q.shards {
			replies[i] = do(p, s.marker)
		}
		return nil
	})
	for _, reply := range replies {
		if err := reply.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
	}
	return replies, nil
}
