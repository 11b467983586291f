package delay

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

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
		{"Spread", 2, func(ctx context.Context) error { _, err := q.Spread(ctx, 0, time.Second, 60); return err }},
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
