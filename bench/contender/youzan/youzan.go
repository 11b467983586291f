// Package youzan is the delay queue of the retail platform Youzan, as the open-source project ouqiang/delay-queue
// implements it. A job pool has each job, under its ID. Job IDs are spread over buckets, ZSETs of due times. Each
// bucket has a timer, which scans the bucket each second and moves IDs of due jobs to a ready list. A consumer that
// pops an ID puts it back into a bucket with the job's TTR (time to run), and deletes the job when it has finished. If
// it does not finish in time, the job is delivered again.
//
// Known weaknesses: due times are whole seconds, and a scan runs only each second. A scan moves one job at a time, in
// three round trips. A process that dies between the pop and the new entry in a bucket loses the job. With several
// processes, each scans each bucket, and jobs are delivered twice.
package youzan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
)

// Contenders has the one variant.
var Contenders = []contender.Info{{
	Name: "Youzan's buckets",
	Way: "Each second, jobs that are due move from ZSETs to a ready list; a job comes back after its TTR unless it " +
		"is finished.",
	Source:   "https://tech.youzan.com/queuing_delay/",
	Settings: "as ouqiang/delay-queue: 3 buckets, whole seconds (rounded up), one job a pop, a TTR of 60 s; 8 consumers",
	Servers:  []contender.Server{contender.Redis},
	Lease:    time.Minute, // the TTR
	New:      open,
}}

const (
	buckets = 3
	ttr     = 60 // seconds
	topic   = "order.cancel"

	readyKey = "bench:youzan:ready:" + topic
	popWait  = "0.5" // seconds; an end of the context does not interrupt BLPOP
)

func jobKey(id string) string { return "bench:youzan:job:" + id }

// job is an entry of the job pool.
type job struct {
	Topic string
	Delay int64 // when the job is due, in seconds since 1970
	TTR   int64 // seconds
}

type queue struct {
	env  contender.Env
	next atomic.Int64 // the next bucket
}

func open(_ context.Context, env contender.Env) (contender.Contender, error) {
	return &queue{env: env}, nil
}

func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	_, err := q.env.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, o := range orders {
			due := o.Due.Add(time.Second - time.Nanosecond).Unix()
			entry, err := json.Marshal(job{Topic: topic, Delay: due, TTR: ttr})
			if err != nil {
				return err
			}
			pipe.Set(ctx, jobKey(o.ID), entry, 0)
			q.push(ctx, pipe, o.ID, due)
		}
		return nil
	})
	return err
}

// push puts an ID into the next bucket. The ID may be in another bucket too.
func (q *queue) push(ctx context.Context, to redis.Cmdable, id string, due int64) *redis.IntCmd {
	return to.ZAdd(ctx, bucketKey(q.next.Add(1)%buckets), redis.Z{Score: float64(due), Member: id})
}

func bucketKey(n int64) string { return fmt.Sprintf("bench:youzan:bucket:%d", n) }

func (q *queue) Run(ctx context.Context, ready func()) error {
	var running sync.WaitGroup
	for n := range int64(buckets) {
		running.Go(func() { q.watch(ctx, bucketKey(n)) })
	}
	for range contender.Workers {
		running.Go(func() { contender.Repeat(ctx, q.env.Log, q.consume) })
	}
	ready()
	running.Wait()
	return nil
}

// watch scans a bucket each second.
func (q *queue) watch(ctx context.Context, bucket string) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	contender.Repeat(ctx, q.env.Log, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case t := <-ticker.C:
			return q.scan(ctx, bucket, t.Unix())
		}
	})
}

// scan takes the first ID out of the bucket until it is not due.
func (q *queue) scan(ctx context.Context, bucket string, now int64) error {
	for {
		first, err := q.env.Redis.ZRangeWithScores(ctx, bucket, 0, 0).Result()
		if err != nil || len(first) == 0 || int64(first[0].Score) > now {
			return err
		}
		id, _ := first[0].Member.(string)
		if err := q.moveJob(ctx, bucket, id, now); err != nil {
			return err
		}
	}
}

// moveJob moves an ID from its bucket to the ready list. The job's due time may have changed since the ID was put into
// the bucket. Then the ID goes to another bucket. The move is a transaction: otherwise a consumer could pop the ID and
// put it into the same bucket before it is removed from there, and the removal would cost the second delivery.
func (q *queue) moveJob(ctx context.Context, bucket, id string, now int64) error {
	j, err := q.find(ctx, id)
	if err != nil {
		return err
	}
	_, err = q.env.Redis.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.ZRem(ctx, bucket, id)
		switch {
		case j == nil: // it is finished
		case j.Delay > now:
			q.push(ctx, tx, id, j.Delay)
		default:
			tx.RPush(ctx, readyKey, id)
		}
		return nil
	})
	return err
}

// find returns the job, or nil if there is none.
func (q *queue) find(ctx context.Context, id string) (*job, error) {
	entry, err := q.env.Redis.Get(ctx, jobKey(id)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var j job
	err = json.Unmarshal(entry, &j)
	return &j, err
}

// consume reserves a job, cancels the order, and finishes the job. After an error the job comes back after its TTR.
func (q *queue) consume(ctx context.Context) error {
	id, err := q.reserve(ctx)
	if err != nil || id == "" {
		return err
	}
	early, err := q.env.Cancel(ctx, id)
	if err != nil {
		return err
	}
	if len(early) > 0 {
		return q.Schedule(ctx, early)
	}
	return q.env.Redis.Del(ctx, jobKey(id)).Err()
}

// reserve pops an ID, and puts it into a bucket for its next delivery. It returns "" if no job was ready.
func (q *queue) reserve(ctx context.Context) (string, error) {
	// BLPop of the client allows only whole seconds.
	popped, err := q.env.Redis.Do(ctx, "BLPOP", readyKey, popWait).StringSlice()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	id := popped[1]
	// The job is in no bucket now, so put it into one even if ctx has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	j, err := q.find(ctx, id)
	if err != nil || j == nil { // a job that does not exist is finished
		return "", err
	}
	return id, q.push(ctx, q.env.Redis, id, time.Now().Unix()+j.TTR).Err()
}
