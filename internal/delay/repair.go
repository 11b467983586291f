package delay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Unknown returns those of the ids that belong to no row of a table.
type Unknown func(ctx context.Context, ids []string) ([]string, error)

// RemoveOrphans removes orphans: tasks without a row, which are those that unknown returns. It looks at all tasks that
// are due within ahead from now. It also looks at one page of the tasks that are due last, and at one page of the dead
// letters, because these may never become due within ahead. It returns the number of tasks that it removed. It returns
// an error of unknown unchanged.
//
// RemoveOrphans also makes tasks due now whose due times are too far in the future for Go, because their handler knows
// when they are really due.
//
// Workers claim tasks meanwhile, so RemoveOrphans may miss some tasks. The next call sees them.
func (q *Queue) RemoveOrphans(ctx context.Context, ahead time.Duration, unknown Unknown) (removed int, err error) {
	removed, err = q.removeWithin(ctx, ahead, unknown)
	if err != nil {
		return removed, err
	}
	n, err := q.removeLastDue(ctx, unknown)
	return removed + n, err
}

// removeWithin looks at all tasks that are due within ahead. It reads a page of every shard in one round trip.
func (q *Queue) removeWithin(ctx context.Context, ahead time.Duration, unknown Unknown) (removed int, err error) {
	offsets := make(map[int]int, len(q.shards)) // the offset of the next page, by shard; without the shards that have no more
	for shard := range q.shards {
		offsets[shard] = 0
	}
	for len(offsets) > 0 {
		page := max(1, maxIDs/len(offsets))
		shards := slices.Collect(maps.Keys(offsets))
		calls := make([]call, len(shards))
		for i, shard := range shards {
			calls[i] = call{[]string{q.shards[shard].due}, []any{micros(ahead), offsets[shard], page}}
		}
		seen, err := q.list(ctx, scripts.dueWithin, shards, calls)
		if err != nil {
			return removed, err
		}
		orphans, n, err := q.removeUnknown(ctx, seen, unknown)
		removed += n
		if err != nil {
			return removed, err
		}
		for _, s := range seen {
			if len(s.ids) < page {
				delete(offsets, s.shard)
				continue
			}
			for _, id := range s.ids {
				if !orphans[id] { // removed tasks do not count, because the tasks after them have moved up
					offsets[s.shard]++
				}
			}
		}
	}
	return removed, nil
}

// removeLastDue looks at one page of the tasks that are due last, and at one page of the dead letters.
func (q *Queue) removeLastDue(ctx context.Context, unknown Unknown) (removed int, err error) {
	page := max(1, maxIDs/len(q.shards))
	shards, calls := make([]int, len(q.shards)), make([]call, len(q.shards))
	for i, s := range q.shards {
		shards[i], calls[i] = i, call{[]string{s.due, s.dead}, []any{page}}
	}
	seen, err := q.list(ctx, scripts.lastDue, shards, calls)
	if err != nil {
		return 0, err
	}
	_, removed, err = q.removeUnknown(ctx, seen, unknown)
	return removed, err
}

// shardTasks holds the ids of tasks that were found in a shard. An id may belong to another shard, because other
// clients can write a task to any shard.
type shardTasks struct {
	shard int
	ids   []string
}

// list runs a script that lists tasks on some shards, and returns the tasks of each.
func (q *Queue) list(ctx context.Context, script *redis.Script, shards []int, calls []call) ([]shardTasks, error) {
	replies, err := q.runEach(ctx, script, calls)
	if err != nil {
		return nil, fmt.Errorf("list tasks of %s: %w", q.kind, err)
	}
	seen := make([]shardTasks, len(shards))
	for i, reply := range replies {
		ids, err := reply.StringSlice()
		if err != nil {
			return nil, fmt.Errorf("list tasks of %s: %w", q.kind, err)
		}
		seen[i] = shardTasks{shards[i], ids}
	}
	return seen, nil
}

// removeUnknown removes those of the tasks that unknown returns. It returns their ids, and the number of removed tasks.
func (q *Queue) removeUnknown(
	ctx context.Context, seen []shardTasks, unknown Unknown,
) (orphans map[string]bool, removed int, err error) {
	var ids []string
	for _, s := range seen {
		ids = append(ids, s.ids...)
	}
	orphans = make(map[string]bool)
	for chunk := range slices.Chunk(ids, maxIDs) {
		found, err := unknown(ctx, chunk)
		if err != nil {
			return nil, 0, err
		}
		for _, id := range found {
			orphans[id] = true
		}
	}
	removed, err = q.remove(ctx, seen, orphans)
	return orphans, removed, err
}

// remove removes the orphans from the shards where they were found, whether they are scheduled or dead. It returns the
// number of removed tasks.
func (q *Queue) remove(ctx context.Context, seen []shardTasks, orphans map[string]bool) (removed int, err error) {
	var counts []*redis.IntCmd
	_, err = q.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, found := range seen {
			s := q.shards[found.shard]
			ids := slices.DeleteFunc(slices.Clone(found.ids), func(id string) bool { return !orphans[id] })
			if len(ids) == 0 {
				continue
			}
			members := make([]any, len(ids))
			for i, id := range ids {
				members[i] = id
			}
			counts = append(counts, pipe.ZRem(ctx, s.due, members...), pipe.ZRem(ctx, s.dead, members...))
			pipe.HDel(ctx, s.attempts, ids...)
			pipe.HDel(ctx, s.errs, ids...)
		}
		return nil
	})
	for _, n := range counts {
		removed += int(n.Val())
	}
	if err != nil {
		return removed, fmt.Errorf("remove tasks of %s: %w", q.kind, err)
	}
	return removed, nil
}
