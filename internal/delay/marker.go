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
	intact, err := Intact(ctx, q)
	return err == nil && intact[0], err
}

// Intact calls [Queue.Intact] for queues that have the same client. It reads all markers with one command, or with one
// command for each shard if Redis is a cluster.
func Intact(ctx context.Context, queues ...*Queue) ([]bool, error) {
	var keys []string
	for _, q := range queues {
		for _, s := range q.shards {
			keys = append(keys, s.marker)
		}
	}
	rdb, perCommand := queues[0].rdb, len(keys)
	if _, cluster := rdb.(*redis.ClusterClient); cluster {
		perCommand = 1 // the keys are in different slots
	}
	var reads []*redis.SliceCmd
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for chunk := range slices.Chunk(keys, perCommand) {
			reads = append(reads, p.MGet(ctx, chunk...))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read restore markers: %w", err)
	}
	var states []any
	for _, read := range reads {
		states = append(states, read.Val()...)
	}
	intact := make([]bool, len(queues))
	for i, q := range queues {
		own := states[:len(q.shards)]
		states = states[len(q.shards):]
		intact[i] = !slices.ContainsFunc(own, func(state any) bool { return state != complete })
	}
	return intact, nil
}

// BeginRestore sets the restore markers to note that the caller is about to schedule all tasks again.
func (q *Queue) BeginRestore(ctx context.Context) error {
	return q.setMarkers(ctx, func(p redis.Pipeliner, key string) { p.Set(ctx, key, restoring, 0) })
}

// EndRestore completes the restore markers: the caller has scheduled all tasks since [Queue.BeginRestore]. If a shard
// was wiped in between, its marker stays absent and [Queue.Intact] stays false.
func (q *Queue) EndRestore(ctx context.Context) error {
	return q.setMarkers(ctx, func(p redis.Pipeliner, key string) { p.SetXX(ctx, key, complete, 0) })
}

// setMarkers calls set for the marker of each shard. A marker that SetXX does not set, because it does not exist, is not
// an error.
func (q *Queue) setMarkers(ctx context.Context, set func(p redis.Pipeliner, key string)) error {
	replies, _ := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for _, s := range q.shards {
			set(p, s.marker)
		}
		return nil
	})
	for _, reply := range replies {
		if err := reply.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("set restore markers of %s: %w", q.kind, err)
		}
	}
	return nil
}
