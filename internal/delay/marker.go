package delay

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Each shard has a key that is its marker. It is set when the tasks of the shard have been compared with their table,
// and Redis loses it when it loses its data. So a missing marker means that Redis was wiped or is new.

// Intact reports for each queue whether the marker of every shard is set. The queues have the same client. A queue is
// not intact if Redis, or one node of a cluster, was wiped or is new, until [Queue.MarkIntact]. Intact reads all
// markers with one command, or with one command for each shard if Redis is a cluster.
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
		return nil, fmt.Errorf("read the markers: %w", err)
	}
	var markers []any
	for _, read := range reads {
		markers = append(markers, read.Val()...)
	}
	intact := make([]bool, len(queues))
	for i, q := range queues {
		own := markers[:len(q.shards)]
		markers = markers[len(q.shards):]
		intact[i] = !slices.Contains(own, nil)
	}
	return intact, nil
}

// MarkIntact sets the markers. The caller has compared the tasks with their table.
func (q *Queue) MarkIntact(ctx context.Context) error {
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, s := range q.shards {
			p.Set(ctx, s.marker, "swept", 0)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set the markers of %s: %w", q.kind, err)
	}
	return nil
}
