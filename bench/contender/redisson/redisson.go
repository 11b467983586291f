// Package redisson does in Go what Redisson's RDelayedQueue does over an RBlockingQueue. The due times are in a ZSET,
// the elements also in a list. A client moves due elements into a ready list, 100 a script, and then sets a local timer
// for the next due time, which the script returns. If a new element is the first of the ZSET, the script publishes its
// due time, and every client sets its timer to it. After each subscription a client looks at once. Consumers pop the
// ready list with BLPOP.
//
// Redisson has the scripts in its class RedissonDelayedQueue and the timer in QueueTransferTask.
//
// Known weaknesses: a process that dies loses the elements that it has popped. A move searches the list for each
// element with LREM. It is slow if the list is long and not in the order of the due times. Redisson's documentation
// calls RDelayedQueue deprecated, and refers to the Reliable Queue of the commercial edition.
package redisson

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
)

// Contenders has two variants: consumers take one element at a time, or all that are ready.
var Contenders = []contender.Info{
	{
		Name:   "Redisson's delayed queue",
		Way:    "Clients set a timer to the first due time in a ZSET, and move due elements to a list for the consumers.",
		Source: source,
		Settings: "in Go; as Redisson: 100 elements a move, tried again after 1.5 s; 8 consumers, which offer what " +
			"failed again after 1 s",
		Servers: []contender.Server{contender.Redis},
		New:     config{batch: 1}.open,
	},
	{
		Name:     "Redisson's delayed queue, batches",
		Way:      "As the one above, but a consumer takes up to 500 elements that are ready.",
		Source:   source,
		Settings: "a consumer drains up to 499 more elements, as RBlockingQueue.drainTo does",
		Servers:  []contender.Server{contender.Redis},
		New:      config{batch: contender.Batch}.open,
	},
}

const source = "https://github.com/redisson/redisson/blob/master/redisson/src/main/java/org/redisson/" +
	"RedissonDelayedQueue.java"

const (
	timeoutsKey = "bench:redisson:timeouts" // ZSET: the due time of each element
	elementsKey = "bench:redisson:elements" // list: the elements that wait
	readyKey    = "bench:redisson:ready"    // list: the IDs of due orders
	channel     = "bench:redisson:channel"  // the first due time, when it changes

	moveBatch  = 100
	moveRetry  = 1500 * time.Millisecond // Redisson's default between two attempts of a command
	minTimer   = 10 * time.Millisecond   // a client does not set a timer for less
	retryDelay = time.Second             // of an order whose cancellation failed
	popWait    = "0.5"                   // seconds; an end of the context does not interrupt BLPOP
)

// offer adds an element. It publishes the due time if the element is the first one. It returns 1.
//
// KEYS: timeouts, elements, channel. ARGV: due time in ms, element.
const offer = `
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[2])
if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == ARGV[2] then
	redis.call('PUBLISH', KEYS[3], ARGV[1])
end
return 1
`

// move moves due elements to the ready list, without their 8 random bytes. It returns the due time of the next element.
//
// KEYS: timeouts, elements, ready. ARGV: the time now in ms, the most elements.
var move = redis.NewScript(`
local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, ARGV[2])
for _, element in ipairs(due) do
	redis.call('RPUSH', KEYS[3], string.sub(element, 9))
	redis.call('LREM', KEYS[2], 1, element)
end
if #due > 0 then
	redis.call('ZREM', KEYS[1], unpack(due))
end
return redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
`)

type config struct {
	batch int // the most elements that a consumer takes at once
}

func (c config) open(_ context.Context, env contender.Env) (contender.Contender, error) {
	return &queue{env: env, batch: c.batch}, nil
}

type queue struct {
	env   contender.Env
	batch int
}

// Schedule adds an element for each order. An order that is scheduled already gets a second one: as in Redisson, 8
// random bytes distinguish elements of the same value.
func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	_, err := q.env.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, o := range orders {
			var random [8]byte
			_, _ = rand.Read(random[:]) // it never fails
			pipe.Eval(ctx, offer, []string{timeoutsKey, elementsKey, channel},
				o.CeilMilli(), string(random[:])+o.ID)
		}
		return nil
	})
	return err
}

func (q *queue) Run(ctx context.Context, ready func()) error {
	var running sync.WaitGroup
	running.Go(func() { q.transfer(ctx, ready) })
	for range contender.Workers {
		running.Go(func() { contender.Repeat(ctx, q.env.Log, q.consume) })
	}
	running.Wait()
	return nil
}

// transfer moves elements when they are due. It calls ready after the first subscription.
func (q *queue) transfer(ctx context.Context, ready func()) {
	subscription := q.env.Redis.Subscribe(ctx, channel)
	defer subscription.Close()
	events := subscription.ChannelWithSubscriptions()
	ready = sync.OnceFunc(ready)

	m := &mover{env: q.env, timer: time.NewTimer(0)}
	defer m.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.timer.C:
			m.move(ctx)
		case event := <-events:
			switch event := event.(type) {
			case *redis.Subscription: // the first one, or the client has connected again
				m.move(ctx)
				ready()
			case *redis.Message:
				if millis, err := strconv.ParseInt(event.Payload, 10, 64); err == nil && !m.set(millis) {
					m.move(ctx)
				}
			}
		}
	}
}

// mover moves due elements to the ready list.
type mover struct {
	env     contender.Env
	timer   *time.Timer // for the next move
	failing bool
}

// move moves due elements, and sets the timer for the next one.
func (m *mover) move(ctx context.Context) {
	for ctx.Err() == nil {
		next, err := move.Run(ctx, m.env.Redis, []string{timeoutsKey, elementsKey, readyKey},
			time.Now().UnixMilli(), moveBatch).Int64()
		if errors.Is(err, redis.Nil) { // no element waits
			return
		}
		if err != nil {
			if !m.failing {
				m.env.Log.Warn("due elements are not moved; trying again", "error", err)
			}
			m.failing = true
			m.timer.Reset(moveRetry)
			return
		}
		m.failing = false
		if m.set(next) {
			return
		}
	}
}

// set sets the timer for a due time in milliseconds. It reports whether that is far enough for a timer.
func (m *mover) set(due int64) bool {
	delay := time.Until(time.UnixMilli(due))
	if delay <= minTimer {
		return false
	}
	m.timer.Reset(delay)
	return true
}

// consume cancels orders that are ready.
func (q *queue) consume(ctx context.Context) error {
	ids, err := q.take(ctx)
	if err != nil || len(ids) == 0 {
		return err
	}
	again, err := q.env.Cancel(ctx, ids...)
	if err != nil {
		again = nil
		for _, id := range ids {
			again = append(again, contender.Order{ID: id, Due: time.Now().Add(retryDelay)})
		}
	}
	if len(again) == 0 {
		return nil
	}
	// The elements are in no list now, so offer them even if ctx has ended.
	offerCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 300*time.Millisecond)
	defer cancel()
	return errors.Join(err, q.Schedule(offerCtx, again))
}

// take pops an element of the ready list, and drains the list up to the batch. It returns none if none was ready.
func (q *queue) take(ctx context.Context) ([]string, error) {
	// BLPop of the client allows only whole seconds.
	popped, err := q.env.Redis.Do(ctx, "BLPOP", readyKey, popWait).StringSlice()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ids := popped[1:]
	if q.batch > 1 {
		more, err := q.env.Redis.LPopCount(ctx, readyKey, q.batch-1).Result()
		if err == nil { // otherwise the list is empty, or the next pop reports the error
			ids = append(ids, more...)
		}
	}
	// An order that was scheduled twice can be twice in a batch.
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
