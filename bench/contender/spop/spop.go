// Package spop times out orders with a sorted set and a set of Redis. The sorted set has each order with its due time
// as the score. Once a second a mover adds the due members to the set. Consumers take members from the set with SPOP,
// which gives a member to one consumer only. They cancel the order, and last remove the member from the sorted set with
// ZREM.
//
// The usual way moves due members to a list, as the book Redis in Action does. The set absorbs a member that is moved
// twice before a consumer takes it. Its consumers must poll, because SPOP does not wait for a member. No single text
// describes this way, so Source is the documentation of SPOP.
//
// The mover leaves the members in the sorted set, so a crash loses no task: a member that a dead consumer had taken is
// moved again. But the mover does not know which members are in progress. It moves those again too, each second until
// their ZREM, and other consumers take them. The slower the cancels, the more orders are cancelled twice.
//
// Other known weaknesses:
//
//   - The mover and the consumers each sleep a second, so orders are cancelled up to two seconds late.
//   - SPOP takes a random member, so during a backlog the oldest orders have no priority.
//   - Each move reads the whole backlog in one script, and Redis serves no other client meanwhile.
//   - If Redis loses its data, no order is cancelled.
package spop

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
)

// interval is the time between moves, and the sleep of a consumer that found the set empty. It is this
// benchmark's choice.
const interval = time.Second

const (
	delayed = "bench:spop:delayed" // the sorted set
	due     = "bench:spop:due"     // the set
)

// Contenders is the one variant.
var Contenders = []contender.Info{{
	Name:     "ZSET → Set, SPOP",
	Way:      "A mover copies due members of a sorted set to a set; consumers SPOP, cancel, and ZREM last.",
	Source:   "https://redis.io/docs/latest/commands/spop/",
	Settings: "a move each second; 8 consumers, each sleeps 1 s when the set is empty",
	Servers:  []contender.Server{contender.Redis},
	Lease:    interval, // the mover moves a member that is in progress again
	New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
		return &queue{env: env}, nil
	},
}}

type queue struct{ env contender.Env }

// Schedule adds the orders to the sorted set, or gives the members that exist new scores.
func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	return contender.ZAdd(ctx, q.env.Redis, delayed, orders)
}

// Run runs the mover and the consumers. Each begins at a random time within the interval, so that they do not work in
// step.
func (q *queue) Run(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	var group sync.WaitGroup
	group.Go(func() {
		contender.Sleep(ctx, rand.N(interval))
		contender.Repeat(ctx, q.env.Log, func(ctx context.Context) error {
			if err := q.move(ctx); err != nil {
				return err
			}
			ready()
			contender.Sleep(ctx, interval)
			return nil
		})
	})
	for range contender.Workers {
		group.Go(func() {
			contender.Sleep(ctx, rand.N(interval))
			contender.Repeat(ctx, q.env.Log, q.consume)
		})
	}
	group.Wait()
	return nil
}

// move adds the due members to the set. It adds them in chunks, because unpack fails from about 8,000 values on.
//
//	KEYS    1 the sorted set, 2 the set
//	ARGV    1 the current time in ms
var move = redis.NewScript(`
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
for i = 1, #ids, 1000 do
    redis.call('SADD', KEYS[2], unpack(ids, i, math.min(i + 999, #ids)))
end
return #ids`)

func (q *queue) move(ctx context.Context) error {
	return move.Run(ctx, q.env.Redis, []string{delayed, due}, time.Now().UnixMilli()).Err()
}

// consume cancels one order. After an error the member is still in the sorted set, and is moved again.
func (q *queue) consume(ctx context.Context) error {
	id, err := q.env.Redis.SPop(ctx, due).Result()
	if errors.Is(err, redis.Nil) {
		contender.Sleep(ctx, interval)
		return nil
	}
	if err != nil {
		return err
	}
	early, err := q.env.Cancel(ctx, id)
	if err != nil {
		return err
	}
	if len(early) > 0 {
		return q.Schedule(ctx, early)
	}
	return q.env.Redis.ZRem(ctx, delayed, id).Err()
}
