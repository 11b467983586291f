// Package sharded spreads the orders over several ZSETs, the shards, by a hash of the ID. Each shard has one elected
// dispatcher, the process that holds the lock of the shard. The dispatcher moves due orders into one Redis Stream,
// which is the ready queue of all consumers.
//
// Dynein, the job queue of Airbnb, has the same parts on DynamoDB and SQS: partitioned schedules, a dispatcher for each
// partition, and a separate queue of jobs that are due.
//
// Known weaknesses: dispatchers poll even if nothing is due. If a dispatcher dies, nobody dispatches its shard until
// its lock expires. Shards on one Redis server are of little use, because that server runs one command at a time.
package sharded

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/stream"
)

// Contenders has the one variant.
var Contenders = []contender.Info{{
	Name: "sharded ZSETs → Stream",
	Way:  "An elected dispatcher for each of 4 ZSETs moves due orders into a Stream, which a consumer group reads.",
	Source: "https://medium.com/airbnb-engineering/" +
		"dynein-building-a-distributed-delayed-job-queueing-system-93ab10f05f99",
	Settings: "Redis, not DynamoDB and SQS; a tick of 100 ms (Dynein: 1 s), 500 orders a move, locks of 5 s, " +
		"XAUTOCLAIM after 10 s",
	Servers: []contender.Server{contender.Redis},
	Lease:   10 * time.Second, // the idle time of XAUTOCLAIM
	New:     open,
}}

const (
	shards  = 4
	tick    = 100 * time.Millisecond
	lockTTL = 5 * time.Second

	readyKey = "bench:sharded:ready"
)

func lockKey(shard int) string { return fmt.Sprintf("bench:sharded:%d:lock", shard) }
func dueKey(shard int) string  { return fmt.Sprintf("bench:sharded:%d:due", shard) }

// dispatch acquires or renews the lock of a shard, and moves due orders into the stream. It returns their number. It
// does nothing if another process has the lock.
//
// KEYS: lock, ZSET, stream. ARGV: the owner of the lock, its TTL in ms, the time now in ms, the most orders, the field.
var dispatch = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] and not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
	return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'LIMIT', 0, ARGV[4])
for _, id in ipairs(due) do
	redis.call('XADD', KEYS[3], '*', ARGV[5], id)
end
if #due > 0 then
	redis.call('ZREM', KEYS[2], unpack(due))
end
return #due
`)

// release deletes a lock that this process owns. KEYS: lock. ARGV: the owner.
var release = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then
	return redis.call('DEL', KEYS[1])
end
return 0
`)

type queue struct {
	env   contender.Env
	owner string // of locks
	ready stream.Queue
}

func open(_ context.Context, env contender.Env) (contender.Contender, error) {
	q := &queue{env: env, owner: rand.Text()}
	q.ready = stream.Queue{Env: env, Key: readyKey, Again: q.Schedule}
	return q, nil
}

func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	var due [shards][]contender.Order
	for _, o := range orders {
		shard := shardOf(o.ID)
		due[shard] = append(due[shard], o)
	}
	_, err := q.env.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for shard, members := range due {
			if err := contender.ZAdd(ctx, pipe, dueKey(shard), members); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// Run runs the dispatchers and the consumers. Each dispatcher begins at a random time within a tick, so that their
// ticks do not coincide.
func (q *queue) Run(ctx context.Context, ready func()) error {
	var dispatchers sync.WaitGroup
	for shard := range shards {
		dispatchers.Go(func() {
			contender.Sleep(ctx, mathrand.N(tick))
			contender.Repeat(ctx, q.env.Log, func(ctx context.Context) error { return q.dispatch(ctx, shard) })
			q.release(ctx, shard)
		})
	}
	q.ready.Run(ctx, ready)
	dispatchers.Wait()
	return nil
}

func (q *queue) dispatch(ctx context.Context, shard int) error {
	moved, err := dispatch.Run(ctx, q.env.Redis, []string{lockKey(shard), dueKey(shard), readyKey},
		q.owner, lockTTL.Milliseconds(), time.Now().UnixMilli(), contender.Batch, stream.Field).Int()
	if err != nil {
		return err
	}
	if moved < contender.Batch {
		contender.Sleep(ctx, tick)
	}
	return nil
}

// release lets another process dispatch the shard at once.
func (q *queue) release(ctx context.Context, shard int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 300*time.Millisecond)
	defer cancel()
	if err := release.Run(ctx, q.env.Redis, []string{lockKey(shard)}, q.owner).Err(); err != nil {
		q.env.Log.Warn("the lock of a shard is not released; it expires", "shard", shard, "error", err)
	}
}

func shardOf(id string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // it never fails
	return int(h.Sum32() % shards)
}
