package delay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

// do sends a command to Redis, and fails the test after an error.
func do(t testing.TB, q *Queue, args ...any) {
	t.Helper()
	if err := q.rdb.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// allBut returns the Unknown of a table with the given rows.
func allBut(rows ...string) Unknown {
	return func(_ context.Context, ids []string) (unknown []string, err error) {
		for _, id := range ids {
			if !slices.Contains(rows, id) {
				unknown = append(unknown, id)
			}
		}
		return unknown, nil
	}
}

// otherShard returns a shard that is not the shard of id.
func otherShard(q *Queue, id string) shard { return q.shards[(q.shardOf(id)+1)%len(q.shards)] }

// TestRemoveOrphans writes orphans, and tasks that have rows, to each place where other clients can write them. One
// call removes the orphans and no other task. When the table returns an error, no task is removed.
func TestRemoveOrphans(t *testing.T) {
	tests := map[string]func(t *testing.T, q *Queue, id string){
		"due":                   func(t *testing.T, q *Queue, id string) { do(t, q, "ZADD", q.shards[q.shardOf(id)].due, 1, id) },
		"due soon":              func(t *testing.T, q *Queue, id string) { mustSchedule(t, q, In(id, time.Minute)) },
		"after the look-ahead":  func(t *testing.T, q *Queue, id string) { mustSchedule(t, q, In(id, 1000*long)) },
		"never due":             func(t *testing.T, q *Queue, id string) { do(t, q, "ZADD", q.shards[q.shardOf(id)].due, "+inf", id) },
		"a dead letter":         func(t *testing.T, q *Queue, id string) { do(t, q, "ZADD", q.shards[q.shardOf(id)].dead, 1, id) },
		"due in another shard":  func(t *testing.T, q *Queue, id string) { do(t, q, "ZADD", otherShard(q, id).due, 1, id) },
		"dead in another shard": func(t *testing.T, q *Queue, id string) { do(t, q, "ZADD", otherShard(q, id).dead, "-inf", id) },
	}
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, put := range tests {
			t.Run(name, func(t *testing.T) {
				q := newQueue(t, rdb, 3)
				emptyQueue(t, q)
				orphans := []string{"orphan", "\xff\x00\xfe", "", "two words"}
				for _, id := range orphans {
					put(t, q, id)
					do(t, q, "HSET", q.shards[q.shardOf(id)].attempts, id, 3)
				}
				rows := []string{"row-1", "row-2", "row-3"}
				for _, id := range rows {
					put(t, q, id)
				}
				n, err := q.RemoveOrphans(t.Context(), 2*time.Minute, allBut(rows...))
				if err != nil || n != len(orphans) {
					t.Errorf("removed %d, %v; want %d", n, err, len(orphans))
				}
				down := errors.New("the table is down")
				broken := func(context.Context, []string) ([]string, error) { return nil, down }
				n, err = q.RemoveOrphans(t.Context(), 2*time.Minute, broken)
				if n != 0 || !errors.Is(err, down) {
					t.Errorf("without the table: removed %d, %v; want the table's error", n, err)
				}
				if d := depth(t, q); d.Scheduled+d.Due+d.Dead != int64(len(rows)) {
					t.Errorf("%+v is left, want the %d tasks that have rows", d, len(rows))
				}
			})
		}
	})
}

func mustSchedule(t testing.TB, q *Queue, msgs ...Message) {
	t.Helper()
	if err := q.Schedule(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
}

func emptyQueue(t testing.TB, q *Queue) {
	t.Helper()
	for _, s := range q.shards {
		for key := range s.types() {
			do(t, q, "DEL", key)
		}
	}
}

// TestTaskThatIsNeverDue schedules tasks with due times that no clock reaches. They become due now, because their
// handler knows when they are really due.
func TestTaskThatIsNeverDue(t *testing.T) {
	q := newQueue(t, newRedis(t), 1)
	for id, score := range map[string]string{"infinite": "+inf", "huge": "1e300"} {
		do(t, q, "ZADD", q.shards[0].due, score, id)
	}
	mustSchedule(t, q, In("far", math.MaxInt64))
	if _, err := q.RemoveOrphans(t.Context(), time.Minute, allBut("infinite", "huge", "far")); err != nil {
		t.Fatal(err)
	}
	if got, want := depth(t, q), (Depth{Due: 2, Scheduled: 1}); got != want {
		t.Errorf("the queue holds %+v, want %+v: the task with the longest Go duration stays scheduled", got, want)
	}
}

// operations are the methods of a queue, and one run of a worker.
var operations = map[string]func(ctx context.Context, q *Queue) error{
	"Schedule": func(ctx context.Context, q *Queue) error { return q.Schedule(ctx, In("a", 0)) },
	"Claim":    func(ctx context.Context, q *Queue) error { _, err := q.Claim(ctx, 0, 10, lease); return err },
	"Renew": func(ctx context.Context, q *Queue) error {
		_, err := q.Renew(ctx, &Batch{token: "1", Tasks: []Task{{ID: "a"}}}, lease)
		return err
	},
	"Ack": func(ctx context.Context, q *Queue) error { _, err := q.Ack(ctx, Batch{token: "1"}, "a"); return err },
	"Retry": func(ctx context.Context, q *Queue) error {
		_, err := q.Retry(ctx, Batch{token: "1"}, Requeue{ID: "a", Err: "broken"})
		return err
	},
	"Bury": func(ctx context.Context, q *Queue) error {
		_, err := q.Bury(ctx, Batch{token: "1"}, Burial{ID: "a", Err: "broken"})
		return err
	},
	"Redrive":      func(ctx context.Context, q *Queue) error { _, err := q.Redrive(ctx, "a"); return err },
	"Owner":        func(ctx context.Context, q *Queue) error { _, err := q.Owner(ctx, "a"); return err },
	"Locate":       func(ctx context.Context, q *Queue) error { _, err := q.Locate(ctx, []string{"a"}); return err },
	"Depth":        func(ctx context.Context, q *Queue) error { _, err := q.Depth(ctx); return err },
	"DeadLetters":  func(ctx context.Context, q *Queue) error { _, err := q.DeadLetters(ctx, 0, 10); return err },
	"Intact":       func(ctx context.Context, q *Queue) error { _, err := q.Intact(ctx); return err },
	"BeginRestore": func(ctx context.Context, q *Queue) error { return q.BeginRestore(ctx) },
	"EndRestore":   func(ctx context.Context, q *Queue) error { return q.EndRestore(ctx) },
	"RemoveOrphans": func(ctx context.Context, q *Queue) error {
		_, err := q.RemoveOrphans(ctx, time.Minute, allBut())
		return err
	},
	"RunOnce": func(ctx context.Context, q *Queue) error {
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) { return sameForAll(tasks, Fail(nil)), nil }, WorkerConfig{})
		_, err := w.RunOnce(ctx, 0)
		return err
	},
}

// TestForeignTypes writes a value of each type to each key of a queue. No operation panics. CheckKeys names exactly the
// keys whose values have a wrong type, and once they are deleted each operation succeeds.
func TestForeignTypes(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 2)
		for key, own := range q.shards[0].types() {
			for kind, write := range testenv.RedisTypes {
				t.Run(key+" is a "+kind, func(t *testing.T) {
					for name, operate := range operations {
						emptyQueue(t, q)
						do(t, q, "ZADD", q.shards[0].leased, 1, "a") // for the operations that end leases
						do(t, q, "DEL", key)
						do(t, q, write(key)...)
						err := operate(t.Context(), q)
						if _, answered := errors.AsType[redis.Error](err); err != nil && !answered {
							t.Errorf("%s: %v, want no error or an error that Redis returned", name, err)
						}
					}
					emptyQueue(t, q)
					do(t, q, write(key)...)
					err := q.CheckKeys(t.Context())
					if named := err != nil && strings.Contains(err.Error(), "the key "+key+" is a "+kind); named != (kind != own) {
						t.Errorf("CheckKeys returns %v, want that it names the key: %v", err, kind != own)
					}
					do(t, q, "DEL", key)
					for name, operate := range operations {
						if err := operate(t.Context(), q); err != nil {
							t.Errorf("%s after the deletion: %v", name, err)
						}
					}
				})
			}
		}
	})
}

// trips counts the round trips of a client: one for each command and for each pipeline.
type trips struct{ n atomic.Int64 }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// manyShards is so large that one round trip for each shard would take a second, at 4 ms each.
const manyShards = 256

// manyIDs returns tasks that spread over nearly all shards.
func manyIDs() (ids []string, msgs []Message) {
	for i := range maxIDs {
		ids = append(ids, "task-"+strconv.Itoa(i))
		msgs = append(msgs, In(ids[i], time.Hour))
	}
	return ids, msgs
}

// TestRoundTrips counts the round trips of each operation on many shards, with scripts that Redis does not know.
func TestRoundTrips(t *testing.T) {
	q := newQueue(t, newRedis(t), manyShards)
	if _, err := q.Intact(t.Context()); err != nil { // opens the connection, so that its handshake is not counted
		t.Fatal(err)
	}
	counter := &trips{}
	q.rdb.AddHook(counter)
	ids, msgs := manyIDs()
	calls := []struct {
		name string
		most int64
		do   func(context.Context) error
	}{
		{"Intact", 1, func(ctx context.Context) error { _, err := q.Intact(ctx); return err }},
		{"BeginRestore", 1, q.BeginRestore},
		{"EndRestore", 1, q.EndRestore},
		{"Schedule", 2, func(ctx context.Context) error { return q.Schedule(ctx, msgs...) }},
		{"Locate", 2, func(ctx context.Context) error { _, err := q.Locate(ctx, ids); return err }},
		{"Depth", 2, func(ctx context.Context) error { _, err := q.Depth(ctx); return err }},
		{"CheckKeys", 1, q.CheckKeys},
		{"DeadLetters", 2, func(ctx context.Context) error { _, err := q.DeadLetters(ctx, 0, 100); return err }},
		{"RemoveOrphans of none", 16, func(ctx context.Context) error {
			_, err := q.RemoveOrphans(ctx, 2*time.Hour, allBut(ids...))
			return err
		}},
		{"RemoveOrphans of all", 16, func(ctx context.Context) error {
			n, err := q.RemoveOrphans(ctx, 2*time.Hour, allBut())
			if n != len(ids) {
				t.Errorf("removed %d orphans, want %d", n, len(ids))
			}
			return err
		}},
	}
	for _, s := range q.shards {
		do(t, q, "ZADD", s.dead, 1, "dead "+s.number)
	}
	ids = append(ids, deadIDs(q)...)
	for _, call := range calls {
		before := counter.n.Load()
		if err := call.do(t.Context()); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		if n := counter.n.Load() - before; n > call.most {
			t.Errorf("%s took %d round trips, want at most %d", call.name, n, call.most)
		}
	}
}

// TestOneFullShard has all tasks in one of many shards, as after a change of the number of shards. Every other task
// is an orphan. RemoveOrphans removes the orphans page by page, with few round trips.
func TestOneFullShard(t *testing.T) {
	q := newQueue(t, newRedis(t), manyShards)
	const tasks = 5000
	args := []any{"ZADD", q.shards[7].due}
	known := map[string]bool{}
	for i := range tasks {
		id := fmt.Sprintf("task %d", i)
		known[id] = i%2 == 0
		args = append(args, i, id)
	}
	do(t, q, args...)
	counter := &trips{}
	q.rdb.AddHook(counter)
	n, err := q.RemoveOrphans(t.Context(), time.Hour, func(_ context.Context, ids []string) ([]string, error) {
		return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return known[id] }), nil
	})
	if err != nil || n != tasks/2 {
		t.Errorf("removed %d, %v; want %d", n, err, tasks/2)
	}
	if d := depth(t, q); d.Due != tasks/2 {
		t.Errorf("%+v is left, want %d tasks", d, tasks/2)
	}
	if n := counter.n.Load(); n > 60 {
		t.Errorf("%d round trips, want at most 60", n)
	}
}

func deadIDs(q *Queue) (ids []string) {
	for _, s := range q.shards {
		ids = append(ids, "dead "+s.number)
	}
	return ids
}
