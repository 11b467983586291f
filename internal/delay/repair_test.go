package delay

import (
	"context"
	"errors"
	"strconv"
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

func mustSchedule(t testing.TB, q *Queue, msgs ...Message) {
	t.Helper()
	testenv.Must(t, q.Schedule(t.Context(), msgs...))
}

func emptyQueue(t testing.TB, q *Queue) {
	t.Helper()
	for _, s := range q.shards {
		do(t, q, "DEL", s.due, s.leased, s.dead, s.attempts, s.errs, s.marker)
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
	"Redrive": func(ctx context.Context, q *Queue) error { _, err := q.Redrive(ctx, "a"); return err },
	"Locate":  func(ctx context.Context, q *Queue) error { _, err := q.Locate(ctx, []string{"a"}); return err },
	"Spread": func(ctx context.Context, q *Queue) error {
		_, err := q.Spread(ctx, -time.Minute, time.Second, 60)
		return err
	},
	"Depth":       func(ctx context.Context, q *Queue) error { _, err := q.Depth(ctx); return err },
	"DeadLetters": func(ctx context.Context, q *Queue) error { _, err := q.DeadLetters(ctx, 10); return err },
	"Intact":      func(ctx context.Context, q *Queue) error { _, err := Intact(ctx, q); return err },
	"MarkIntact":  func(ctx context.Context, q *Queue) error { return q.MarkIntact(ctx) },
	"runOnce": func(ctx context.Context, q *Queue) error {
		w := newWorker(q,
			func(_ context.Context, tasks []Task) ([]Outcome, error) { return sameForAll(tasks, Fail(nil)), nil }, WorkerConfig{})
		_, err := w.runOnce(ctx, 0)
		return err
	},
}

// TestForeignTypes writes a value of each type to each key of a queue. No operation panics, and once the key is deleted
// each operation succeeds.
func TestForeignTypes(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 2)
		s := q.shards[0]
		for _, key := range []string{s.due, s.leased, s.dead, s.attempts, s.errs, s.marker} {
			for kind, write := range testenv.RedisTypes {
				t.Run(key+" is a "+kind, func(t *testing.T) {
					for name, operate := range operations {
						emptyQueue(t, q)
						do(t, q, "ZADD", s.leased, 1, "a") // for the operations that end leases
						do(t, q, "DEL", key)
						do(t, q, write(key)...)
						err := operate(t.Context(), q)
						if _, answered := errors.AsType[redis.Error](err); err != nil && !answered {
							t.Errorf("%s: %v, want no error or an error that Redis returned", name, err)
						}
					}
					emptyQueue(t, q)
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
	if _, err := Intact(t.Context(), q); err != nil { // opens the connection, so that its handshake is not counted
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
		{"Intact", 1, func(ctx context.Context) error { _, err := Intact(ctx, q); return err }},
		{"MarkIntact", 1, q.MarkIntact},
		{"Schedule", 2, func(ctx context.Context) error { return q.Schedule(ctx, msgs...) }},
		{"Locate", 2, func(ctx context.Context) error { _, err := q.Locate(ctx, ids); return err }},
		{"Spread", 2, func(ctx context.Context) error { return operations["Spread"](ctx, q) }},
		{"Depth", 2, func(ctx context.Context) error { _, err := q.Depth(ctx); return err }},
		{"DeadLetters", 2, func(ctx context.Context) error { _, err := q.DeadLetters(ctx, 100); return err }},
	}
	for _, s := range q.shards {
		do(t, q, "ZADD", s.dead, 1, "dead "+s.number)
	}
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
