package delay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	State    State
	Left     time.Duration
	Attempts int // failed ones
}

// Locate tells where each of the tasks is, in the order of ids.
func (q *Queue) Locate(ctx context.Context, ids []string) ([]Place, error) {
	parts := q.parts(ids)
	calls := make([]call, len(parts))
	for n, p := range parts {
		args := make([]any, len(p.indexes))
		for k, i := range p.indexes {
			args[k] = ids[i]
		}
		calls[n] = call{[]string{p.due, p.leased, p.dead, p.attempts}, args}
	}
	replies, err := q.runEach(ctx, scripts.locate, calls)
	if err != nil {
		return nil, fmt.Errorf("locate %s: %w", q.kind, err)
	}
	found := make([]Place, len(ids))
	for n, p := range parts {
		values, err := numbers(replies[n], 3*len(p.indexes))
		if err != nil {
			return nil, fmt.Errorf("locate %s: %w", q.kind, err)
		}
		for k, i := range p.indexes {
			found[i] = Place{State: State(values[3*k]), Left: fromMicros(values[3*k+1]), Attempts: int(values[3*k+2])}
		}
	}
	return found, nil
}

// RemoveOrphans removes tasks that belong to nothing: unknown returns those of the ids that are not known. It looks at
// all tasks that are due within ahead and, a page at a time, at those that are due last and at dead letters, which no
// clock brings near. It returns how many tasks it removed. An error of unknown is returned as it is.
//
// Workers take tasks meanwhile, so a page may pass over some: the next call looks at them.
func (q *Queue) RemoveOrphans(ctx context.Context, ahead time.Duration, unknown func(context.Context, []string) ([]string, error)) (removed int, err error) {
	offsets := make(map[int]int, len(q.shards)) // of the shards that may have more
	for shard := range q.shards {
		offsets[shard] = 0
	}
	for len(offsets) > 0 {
		page := max(1, chunk/len(offsets))
		var calls []call
		shards := slices.Collect(maps.Keys(offsets))
		for _, shard := range shards {
			calls = append(calls, call{[]string{q.shards[shard].due}, []any{micros(ahead), offsets[shard], page}})
		}
		seen, err := q.list(ctx, scripts.window, shards, calls)
		if err != nil {
			return removed, err
		}
		orphans, n, err := q.removeUnknown(ctx, seen, unknown)
		removed += n
		if err != nil {
			return removed, err
		}
		for i, shard := range shards {
			if len(seen[i].ids) < page {
				delete(offsets, shard)
			}
			for _, id := range seen[i].ids {
				if _, more := offsets[shard]; more && !orphans[id] { // others are in the place of orphans now
					offsets[shard]++
				}
			}
		}
	}
	n, err := q.removeRemote(ctx, unknown)
	return removed + n, err
}

// removeRemote looks at a page of the tasks that are due last and of the dead letters.
func (q *Queue) removeRemote(ctx context.Context, unknown func(context.Context, []string) ([]string, error)) (removed int, err error) {
	page := max(1, chunk/len(q.shards))
	shards, calls := make([]int, len(q.shards)), make([]call, len(q.shards))
	for i, s := range q.shards {
		shards[i], calls[i] = i, call{[]string{s.due, s.dead}, []any{page}}
	}
	seen, err := q.list(ctx, scripts.remote, shards, calls)
	if err != nil {
		return 0, err
	}
	_, removed, err = q.removeUnknown(ctx, seen, unknown)
	return removed, err
}

// sighting is tasks in the shard where they were found: other clients may have written them to any shard.
type sighting struct {
	shard int
	ids   []string
}

// list runs a script that lists tasks on some shards.
func (q *Queue) list(ctx context.Context, script *redis.Script, shards []int, calls []call) ([]sighting, error) {
	replies, err := q.runEach(ctx, script, calls)
	if err != nil {
		return nil, fmt.Errorf("list tasks of %s: %w", q.kind, err)
	}
	seen := make([]sighting, len(shards))
	for i, reply := range replies {
		ids, err := reply.StringSlice()
		if err != nil {
			return nil, fmt.Errorf("list tasks of %s: %w", q.kind, err)
		}
		seen[i] = sighting{shards[i], ids}
	}
	return seen, nil
}

// removeUnknown removes the tasks that unknown returns, and returns them.
func (q *Queue) removeUnknown(ctx context.Context, seen []sighting, unknown func(context.Context, []string) ([]string, error)) (orphans map[string]bool, removed int, err error) {
	var ids []string
	for _, s := range seen {
		ids = append(ids, s.ids...)
	}
	orphans = make(map[string]bool)
	for some := range slices.Chunk(ids, chunk) {
		found, err := unknown(ctx, some)
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

// remove takes those of the tasks that are orphans out of the shards where they were seen, scheduled or dead, and
// returns how many there were.
func (q *Queue) remove(ctx context.Context, seen []sighting, orphans map[string]bool) (removed int, err error) {
	var taken []*redis.IntCmd
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
			taken = append(taken, pipe.ZRem(ctx, s.due, members...), pipe.ZRem(ctx, s.dead, members...))
			pipe.HDel(ctx, s.attempts, ids...)
			pipe.HDel(ctx, s.errs, ids...)
		}
		return nil
	})
	for _, n := range taken {
		removed += int(n.Val())
	}
	if err != nil {
		return removed, fmt.Errorf("remove tasks of %s: %w", q.kind, err)
	}
	return removed, nil
}

// maxLease is far longer than any lease: a lease that ends later was not made by a claim.
const maxLease = 24 * time.Hour

// Mend renames those of the queue's keys that hold another type of value than the queue's, so that the queue can be
// used again, and returns their new names, with an error, too. A key that was renamed before is replaced. Mend also ends
// leases that would never end.
func (q *Queue) Mend(ctx context.Context) (renamed []string, err error) {
	calls := make([]call, len(q.shards))
	for i, s := range q.shards {
		calls[i] = call{[]string{s.due, s.leased, s.dead, s.attempts, s.errs, s.sentry}, []any{micros(maxLease)}}
	}
	replies, err := q.runEach(ctx, scripts.mend, calls)
	for _, reply := range replies { // with an error, too: the shards of other nodes may be mended
		names, _ := reply.StringSlice()
		renamed = append(renamed, names...)
	}
	if err != nil {
		return renamed, fmt.Errorf("mend %s: %w", q.kind, err)
	}
	return renamed, nil
}

// A sentinel key in each shard goes when its Redis loses its data. It is set in two steps, so that a
// wipe in the middle of a restore is not covered up by its end.
const (
	restoring = "restoring"
	complete  = "complete"
)

// Intact reports whether every shard still has what a restore once completed. False: all of Redis, or
// one node of a cluster, was wiped, or never filled.
func (q *Queue) Intact(ctx context.Context) (bool, error) {
	states, err := q.onSentinels(ctx, func(p redis.Pipeliner, key string) redis.Cmder { return p.Get(ctx, key) })
	if err != nil {
		return false, fmt.Errorf("read sentinels of %s: %w", q.kind, err)
	}
	return !slices.ContainsFunc(states, func(state redis.Cmder) bool { return state.(*redis.StringCmd).Val() != complete }), nil
}

// BeginRestore notes that everything is about to be scheduled again.
func (q *Queue) BeginRestore(ctx context.Context) error {
	_, err := q.onSentinels(ctx, func(p redis.Pipeliner, key string) redis.Cmder { return p.Set(ctx, key, restoring, 0) })
	if err != nil {
		return fmt.Errorf("set sentinels of %s: %w", q.kind, err)
	}
	return nil
}

// EndRestore notes that everything has been scheduled since [Queue.BeginRestore]. Where a shard was
// wiped meanwhile its sentinel stays away, and [Queue.Intact] false.
func (q *Queue) EndRestore(ctx context.Context) error {
	_, err := q.onSentinels(ctx, func(p redis.Pipeliner, key string) redis.Cmder { return p.SetXX(ctx, key, complete, 0) })
	if err != nil {
		return fmt.Errorf("set sentinels of %s: %w", q.kind, err)
	}
	return nil
}

// onSentinels runs a command for the sentinel of each shard. That there is none is no error.
func (q *Queue) onSentinels(ctx context.Context, do func(p redis.Pipeliner, key string) redis.Cmder) ([]redis.Cmder, error) {
	replies := make([]redis.Cmder, len(q.shards))
	_, _ = q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for i, s := range q.shards {
			replies[i] = do(p, s.sentry)
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
