// Package zset times out orders with a sorted set of Redis. The member is the order's id, and the score is its due time
// in milliseconds. Consumers poll the set for members with scores up to the current time. Articles on order timeouts
// explain three versions:
//
//   - The first removes the member with ZREM and then cancels the order. Several consumers read the same member before
//     one of them removes it, so an order is cancelled several times.
//   - The second looks at the reply of ZREM. Only the consumer that removed the member cancels the order.
//   - The third is for many orders. A Lua script reads and removes a batch of members in one call. Redis runs a script
//     as a whole, so no other consumer reads the same members.
//
// Known weaknesses:
//
//   - A task is not in Redis any more while it is in progress. A process that dies between ZREM and the commit loses
//     the task. So does a connection that breaks after Redis has removed the member and before its reply arrives.
//   - An idle consumer sleeps a second, so an order can be cancelled a second late even if there is no backlog.
//   - If Redis loses its data, no order is cancelled.
package zset

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
)

// interval is the sleep of a consumer that found no more due members. It is this benchmark's choice.
const interval = time.Second

const settings = "8 consumers, each sleeps 1 s when nothing is due (the source: 0.5 s, when the set is empty); " +
	"scores in ms"

const article = "https://github.com/Tyson0314/Java-learning/blob/master/docs/advance/system-design/" +
	"2-order-timeout-auto-cancel.md"

// Contenders are the variants of the poll.
var Contenders = []contender.Info{
	{
		Name:     "ZSET poll, ZREM unchecked",
		Way:      "Consumers read the first due member of a sorted set, remove it, and cancel the order.",
		Source:   article,
		Settings: settings,
		Servers:  []contender.Server{contender.Redis},
		New:      newQueue("unchecked", (*queue).unchecked),
	},
	{
		Name:     "ZSET poll, ZREM claim",
		Way:      "As the unchecked poll, but only the consumer whose ZREM removed the member cancels the order.",
		Source:   article,
		Settings: settings,
		Servers:  []contender.Server{contender.Redis},
		New:      newQueue("claim", (*queue).claim),
	},
	{
		Name:     "ZSET poll, batches",
		Way:      "Consumers read and remove up to 500 due members in one script, and cancel them in one transaction.",
		Source:   "https://github.com/redis/redis/issues/2801",
		Settings: "8 consumers, each sleeps 1 s after a batch of less than 500; scores in ms",
		Servers:  []contender.Server{contender.Redis},
		New:      newQueue("batches", (*queue).batch),
	},
}

// queue is a sorted set of orders. The method take removes due members, and reports whether more may be due.
type queue struct {
	env  contender.Env
	key  string
	take func(q *queue, ctx context.Context) (ids []string, more bool, err error)
}

func newQueue(
	name string, take func(*queue, context.Context) ([]string, bool, error),
) func(context.Context, contender.Env) (contender.Contender, error) {
	return func(_ context.Context, env contender.Env) (contender.Contender, error) {
		return &queue{env: env, key: "bench:zset:" + name, take: take}, nil
	}
}

// Schedule adds the orders, or gives the members that exist new scores.
func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	return contender.ZAdd(ctx, q.env.Redis, q.key, orders)
}

// Run runs the consumers. Each begins at a random time within the interval, so that their polls do not coincide.
func (q *queue) Run(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	var consumers sync.WaitGroup
	for range contender.Workers {
		consumers.Go(func() {
			contender.Sleep(ctx, rand.N(interval))
			contender.Repeat(ctx, q.env.Log, func(ctx context.Context) error {
				more, err := q.poll(ctx)
				if err != nil {
					return err
				}
				ready()
				if !more {
					contender.Sleep(ctx, interval)
				}
				return nil
			})
		})
	}
	consumers.Wait()
	return nil
}

// poll cancels orders that are due, and reports whether more may be due.
func (q *queue) poll(ctx context.Context) (more bool, err error) {
	ids, more, err := q.take(q, ctx)
	if err != nil || len(ids) == 0 {
		return more, err
	}
	early, err := q.env.Cancel(ctx, ids...)
	if err != nil {
		early = dueNow(ids)
	}
	// Nothing else has these members any more, so put them back even if ctx has ended.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second/2)
	defer stop()
	return more, errors.Join(err, q.Schedule(ctx, early))
}

func (q *queue) unchecked(ctx context.Context) (ids []string, more bool, err error) {
	ids, err = q.first(ctx)
	if err != nil || len(ids) == 0 {
		return nil, false, err
	}
	return ids, true, q.env.Redis.ZRem(ctx, q.key, ids[0]).Err()
}

func (q *queue) claim(ctx context.Context) (ids []string, more bool, err error) {
	ids, err = q.first(ctx)
	if err != nil || len(ids) == 0 {
		return nil, false, err
	}
	removed, err := q.env.Redis.ZRem(ctx, q.key, ids[0]).Result()
	if removed == 0 {
		return nil, true, err // another consumer has it
	}
	return ids, true, err
}

// first reads the first due member, if there is one.
func (q *queue) first(ctx context.Context) ([]string, error) {
	return q.env.Redis.ZRangeArgs(ctx, redis.ZRangeArgs{
		Key: q.key, Start: "-inf", Stop: time.Now().UnixMilli(), ByScore: true, Count: 1,
	}).Result()
}

// pop reads and removes due members.
//
//	KEYS    1 the sorted set
//	ARGV    1 the current time in ms, 2 limit
//	Returns the members
var pop = redis.NewScript(`
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids > 0 then
    redis.call('ZREM', KEYS[1], unpack(ids))
end
return ids`)

func (q *queue) batch(ctx context.Context) (ids []string, more bool, err error) {
	ids, err = pop.Run(ctx, q.env.Redis, []string{q.key}, time.Now().UnixMilli(), contender.Batch).StringSlice()
	return ids, len(ids) == contender.Batch, err
}

func dueNow(ids []string) []contender.Order {
	orders := make([]contender.Order, len(ids))
	for i, id := range ids {
		orders[i] = contender.Order{ID: id, Due: time.Now()}
	}
	return orders
}
