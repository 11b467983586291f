// Package levels keeps a FIFO queue for each of a few fixed delays, as RocketMQ 4 does, here in Redis Streams. All
// orders in one queue wait for the same time, so the head is always the next one that is due. The cost to add or to
// move an order does not depend on the number of orders that wait. Each level has a mover. It moves orders that have
// waited long enough into a ready stream, which a consumer group reads.
//
// An order goes to the shortest level that is at least its delay, so that it is never early.
//
// Known weaknesses: a delay that is not a level is rounded up, by an hour in the worst case. An order that waits cannot
// be moved or removed: a new due time adds a second entry, and the first one comes too early, or after the order
// has ended. An order with a delay above the last level waits several times.
package levels

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/stream"
)

// Contenders has the one variant.
var Contenders = []contender.Info{{
	Name: "fixed delay levels",
	Way: "A FIFO queue for each of RocketMQ 4's 18 delays; movers watch the heads, and a consumer group reads " +
		"what is due.",
	Source:   "https://rocketmq.apache.org/docs/4.x/producer/04message3/",
	Settings: "Redis Streams, not a broker; RocketMQ's levels, read each 100 ms; 500 orders a move, XAUTOCLAIM after 10 s",
	Servers:  []contender.Server{contender.Redis},
	Lease:    10 * time.Second, // the idle time of XAUTOCLAIM
	New:      open,
}}

// delays are the default levels of RocketMQ 4.
var delays = []time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute,
	8 * time.Minute, 9 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour,
}

const (
	emptyWait = 100 * time.Millisecond // between two looks at an empty level
	readyKey  = "bench:levels:ready"
)

func levelKey(delay time.Duration) string { return "bench:levels:" + delay.String() }

// move moves orders that have waited for the delay of their level into the ready stream. The ID of an entry has the
// time when it was added, by the server's clock. The script returns the milliseconds until the head is due: 0 if there
// may be more to move at once, -1 if the level is empty. An ID has whole milliseconds, rounded down, so an order waits
// for a millisecond more.
//
// KEYS: the level, the ready stream. ARGV: the delay in ms, the most orders, the field.
var move = redis.NewScript(`
local time = redis.call('TIME')
local latest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1] - 1
local due = redis.call('XRANGE', KEYS[1], '-', string.format('%.0f', latest), 'COUNT', ARGV[2])
local ids = {}
for i, entry in ipairs(due) do
	redis.call('XADD', KEYS[2], '*', ARGV[3], entry[2][2])
	ids[i] = entry[1]
end
if #ids > 0 then
	redis.call('XDEL', KEYS[1], unpack(ids))
	return 0
end
local head = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not head then
	return -1
end
return tonumber(string.match(head[1], '^%d+')) - latest
`)

type queue struct {
	env   contender.Env
	ready stream.Queue
}

func open(_ context.Context, env contender.Env) (contender.Contender, error) {
	q := &queue{env: env}
	q.ready = stream.Queue{Env: env, Key: readyKey, Again: q.Schedule}
	return q, nil
}

func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	_, err := q.env.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, o := range orders {
			key := readyKey
			if left := o.Left(); left > 0 {
				key = levelKey(levelFor(left))
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []string{stream.Field, o.ID}})
		}
		return nil
	})
	return err
}

// levelFor returns the shortest level that is at least the delay. An order with a longer delay than the last
// level comes back early, and is scheduled again.
func levelFor(delay time.Duration) time.Duration {
	for _, level := range delays {
		if delay <= level {
			return level
		}
	}
	return delays[len(delays)-1]
}

func (q *queue) Run(ctx context.Context, ready func()) error {
	var movers sync.WaitGroup
	for _, delay := range delays {
		movers.Go(func() {
			contender.Repeat(ctx, q.env.Log, func(ctx context.Context) error { return q.move(ctx, delay) })
		})
	}
	q.ready.Run(ctx, ready)
	movers.Wait()
	return nil
}

// move moves what is due of one level, and waits until the head is due.
func (q *queue) move(ctx context.Context, delay time.Duration) error {
	millis, err := move.Run(ctx, q.env.Redis, []string{levelKey(delay), readyKey},
		delay.Milliseconds(), contender.Batch, stream.Field).Int64()
	if err != nil {
		return err
	}
	wait := time.Duration(millis) * time.Millisecond
	if wait < 0 {
		wait = emptyWait
	}
	contender.Sleep(ctx, wait)
	return nil
}
