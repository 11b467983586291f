// Package stream is the ready queue of the contenders that move due orders into a Redis Stream. It is no contender.
//
// Consumers of one consumer group read the stream (XREADGROUP), cancel a batch of orders, and then acknowledge and
// delete the entries. An entry whose consumer failed or died stays pending. XAUTOCLAIM delivers it again.
package stream

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
)

// Field is the field of an entry that has the ID of the order.
const Field = "order"

const (
	group   = "cancel"
	minIdle = 10 * time.Second       // an entry that is pending for longer is delivered again
	block   = 500 * time.Millisecond // of XREADGROUP, which an end of the context does not interrupt
)

// Queue is a ready queue.
type Queue struct {
	Env contender.Env
	Key string
	// Again schedules orders again that came too early.
	Again func(ctx context.Context, early []contender.Order) error
}

// Run cancels the orders in the queue until ctx ends. It calls ready when the consumer group exists.
func (q *Queue) Run(ctx context.Context, ready func()) {
	setup, created := context.WithCancel(ctx)
	defer created()
	contender.Repeat(setup, q.Env.Log, func(ctx context.Context) error {
		err := q.createGroup(ctx)
		if err == nil {
			created()
		}
		return err
	})
	if ctx.Err() != nil {
		return
	}
	ready()

	var consumers sync.WaitGroup
	for i := range contender.Workers {
		consumer := q.Env.Process + "-" + strconv.Itoa(i) // a name must be of one consumer only
		consumers.Go(func() { q.repeat(ctx, func() error { return q.consume(ctx, consumer) }) })
	}
	consumers.Go(func() { q.repeat(ctx, func() error { return q.reclaim(ctx) }) })
	consumers.Wait()
}

// repeat calls f until ctx ends. It creates the group again if the server has lost it. A consumer that waits when the
// stream is deleted gets UNBLOCKED.
func (q *Queue) repeat(ctx context.Context, f func() error) {
	contender.Repeat(ctx, q.Env.Log, func(ctx context.Context) error {
		err := f()
		if redis.HasErrorPrefix(err, "NOGROUP") || redis.HasErrorPrefix(err, "UNBLOCKED") {
			return q.createGroup(ctx)
		}
		return err
	})
}

func (q *Queue) createGroup(ctx context.Context) error {
	err := q.Env.Redis.XGroupCreateMkStream(ctx, q.Key, group, "0").Err()
	if redis.HasErrorPrefix(err, "BUSYGROUP") { // it exists
		return nil
	}
	return err
}

func (q *Queue) consume(ctx context.Context, consumer string) error {
	streams, err := q.Env.Redis.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: group, Consumer: consumer, Streams: []string{q.Key, ">"}, Count: contender.Batch, Block: block,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return err
	}
	return q.cancel(ctx, streams[0].Messages)
}

// reclaim delivers entries again that a consumer has not acknowledged.
func (q *Queue) reclaim(ctx context.Context) error {
	entries, _, err := q.Env.Redis.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: q.Key, Group: group, Consumer: q.Env.Process + "-reclaim",
		MinIdle: minIdle, Start: "0-0", Count: contender.Batch,
	}).Result()
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		contender.Sleep(ctx, time.Second)
		return nil
	}
	return q.cancel(ctx, entries)
}

func (q *Queue) cancel(ctx context.Context, entries []redis.XMessage) error {
	var ids, orders []string
	for _, entry := range entries {
		order, _ := entry.Values[Field].(string)
		ids, orders = append(ids, entry.ID), append(orders, order)
	}
	// An order that was scheduled twice can be twice in a batch.
	slices.Sort(orders)
	early, err := q.Env.Cancel(ctx, slices.Compact(orders)...)
	if err != nil {
		return err // the entries stay pending
	}
	if len(early) > 0 {
		if err := q.Again(ctx, early); err != nil {
			return err
		}
	}
	_, err = q.Env.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.XAck(ctx, q.Key, group, ids...)
		pipe.XDel(ctx, q.Key, ids...)
		return nil
	})
	return err
}
