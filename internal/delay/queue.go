package delay

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/clip"
)

// Queue holds the tasks of one kind in Redis. It is safe for concurrent use, and any number of processes may use the
// same queue. Errors come from Redis or from the context, unless a method says otherwise.
type Queue struct {
	rdb    redis.UniversalClient
	kind   string
	shards []shard
}

// shard names the keys of one part of the queue. They carry the same hash tag, so they share one slot of a cluster.
type shard struct {
	number                                    string
	due, leased, dead, attempts, errs, marker string
}

var validKind = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// MaxShards is the largest number of shards of a queue, because a worker sends its commands to each shard.
const MaxShards = 1024

// NewQueue returns the queue of a kind of task. The kind consists of lower case letters, digits, dots and dashes. Each
// kind has its own keys. They form shards, which spread over the slots of a Redis Cluster. Every process must use the
// same number of shards. NewQueue sends nothing to Redis.
//
// After a change of the number, the reconciler finds tasks missing in their new shards and adds them. The copies in the
// old shards do no harm: they are delivered too, or stay in Redis unread if their shard no longer exists. Redrive dead
// letters before such a change, because [Queue.Redrive] looks for a task only in its new shard.
func NewQueue(rdb redis.UniversalClient, kind string, shards int) (*Queue, error) {
	if !validKind.MatchString(kind) {
		return nil, fmt.Errorf("queue kind %q: want lower case letters, digits, dots and dashes", kind)
	}
	if shards < 1 || shards > MaxShards {
		return nil, fmt.Errorf("queue shards %d: want 1 to %d", shards, MaxShards)
	}
	q := &Queue{rdb: rdb, kind: kind, shards: make([]shard, shards)}
	for i := range q.shards {
		prefix := fmt.Sprintf("delay:{%s:%d}:", kind, i)
		q.shards[i] = shard{
			number: strconv.Itoa(i),
			due:    prefix + "due", leased: prefix + "leased", dead: prefix + "dead",
			attempts: prefix + "attempts", errs: prefix + "errors", marker: prefix + "marker",
		}
	}
	return q, nil
}

// channel returns the name of the Redis channel for wake-ups. A wake-up is the number of a shard. A script publishes
// it when the earliest due time of the shard has become earlier.
func (q *Queue) channel() string { return ChannelOf(q.rdb, "delay:"+q.kind+":wake") }

func (q *Queue) shardOf(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id))
	return int(h.Sum32() % uint32(len(q.shards)))
}

var scheduleScript = load("schedule")

// Schedule adds tasks. A task that is scheduled already keeps the earlier of its due times. A leased task is
// delivered a second time after its lease has ended. A dead letter is not changed. After an error some of the messages
// may have been scheduled; repeating the call is harmless. All messages are sent in one round trip, so a caller that
// has more than some thousands passes them in parts.
func (q *Queue) Schedule(ctx context.Context, msgs ...Message) error {
	ids := make([]string, len(msgs))
	for i, m := range msgs {
		ids[i] = m.ID
	}
	var calls []call
	for _, g := range q.groupByShard(ids) {
		args := make([]any, 0, 2+2*len(g.indexes))
		args = append(args, q.channel(), g.number)
		for _, i := range g.indexes {
			args = append(args, ids[i], micros(msgs[i].Left()))
		}
		calls = append(calls, call{[]string{g.due, g.dead}, args})
	}
	if _, err := q.runEach(ctx, scheduleScript, calls); err != nil {
		return fmt.Errorf("schedule %s: %w", q.kind, err)
	}
	return nil
}

// scheduleByShard schedules the messages of each shard on its own, so that a shard whose Redis does not answer, or
// whose key has a wrong type, keeps no other one waiting. It returns the scheduled messages, and the error of a shard.
func (q *Queue) scheduleByShard(ctx context.Context, msgs []Message) (scheduled []Message, err error) {
	errs := make([]error, len(q.shards))
	scheduled = q.eachShard(msgs, func(shard int, group []Message) bool {
		errs[shard] = q.Schedule(ctx, group...)
		return errs[shard] == nil
	})
	return scheduled, cmp.Or(errs...)
}

// eachShard calls do with the messages of each shard, for all shards at the same time. It returns the messages for which
// do has returned true.
func (q *Queue) eachShard(msgs []Message, do func(shard int, group []Message) bool) (done []Message) {
	groups := make(map[int][]Message)
	for _, m := range msgs {
		n := q.shardOf(m.ID)
		groups[n] = append(groups[n], m)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for shard, group := range groups {
		all.Go(func() {
			if !do(shard, group) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			done = append(done, group...)
		})
	}
	all.Wait()
	return done
}

// Batch is the result of one claim: tasks of one shard under leases that end at the same time.
type Batch struct {
	Tasks []Task
	// Next is the time until the shard's next task is due or its next lease ends; the lease of this claim counts too.
	// It is 285 years if the shard has neither scheduled nor leased tasks.
	Next time.Duration

	shard int
	token string
	ends  time.Time // the leases do not end before this time, unless the clock of Redis is changed
}

var claimScript = load("claim")

// Claim leases up to limit due tasks of a shard to the caller, for the given time. Shards are numbered from 0. Claim
// reduces a limit above 1,000 to 1,000. A task is due again when its lease ends, unless the caller acknowledges,
// retries or buries the task before. The client of a cluster repeats a claim after its connection breaks. If Redis has
// executed the first claim, the tasks of that claim wait until their leases end.
func (q *Queue) Claim(ctx context.Context, shard, limit int, lease time.Duration) (Batch, error) {
	s := q.shards[shard]
	ends := time.Now().Add(lease)
	reply, err := claimScript.Run(ctx, q.rdb, []string{s.due, s.leased, s.attempts},
		min(limit, maxIDs), micros(lease)).Slice()
	if err != nil {
		return Batch{}, fmt.Errorf("claim %s shard %d: %w", q.kind, shard, err)
	}
	b, err := batchOf(reply)
	if err != nil {
		return Batch{}, fmt.Errorf("claim %s shard %d: %w", q.kind, shard, err)
	}
	b.shard, b.ends = shard, ends
	return b, nil
}

var renewScript = load("renew")

// Renew makes the leases of a batch end after the given time from now, and gives b their new token. It reports
// whether the batch still had leases. It does not change a task that is due again, or leased to another worker.
//
// After an error the leases may have the new token, which b does not have. Then they cannot be renewed, acknowledged,
// retried or buried, and the tasks are delivered again when the leases end.
func (q *Queue) Renew(ctx context.Context, b *Batch, lease time.Duration) (bool, error) {
	args := make([]any, 0, 2+len(b.Tasks))
	args = append(args, b.token, micros(lease))
	for _, task := range b.Tasks {
		args = append(args, task.ID)
	}
	ends := time.Now().Add(lease)
	s := q.shards[b.shard]
	token, err := renewScript.Run(ctx, q.rdb, []string{s.leased}, args...).Text()
	if err != nil {
		return false, fmt.Errorf("renew %s shard %d: %w", q.kind, b.shard, err)
	}
	if token == "" {
		return false, nil
	}
	b.token, b.ends = token, ends
	return true, nil
}

// batchOf reads the reply to a claim.
func batchOf(reply []any) (Batch, error) {
	if len(reply) < 2 || len(reply)%2 != 0 {
		return Batch{}, errReply(reply)
	}
	token, isToken := reply[0].(string)
	next, isNumber := reply[1].(int64)
	if !isToken || !isNumber {
		return Batch{}, errReply(reply)
	}
	b := Batch{token: token, Next: fromMicros(next)}
	for pair := range slices.Chunk(reply[2:], 2) {
		id, isID := pair[0].(string)
		attempts, isCount := pair[1].(int64)
		if !isID || !isCount {
			return Batch{}, errReply(reply)
		}
		b.Tasks = append(b.Tasks, Task{ID: id, Attempts: int(attempts)})
	}
	return b, nil
}

func errReply(reply []any) error {
	return fmt.Errorf("expected a token, an integer, and pairs of an id and an integer from the script, found %.200q",
		fmt.Sprint(reply))
}

var ackScript = load("ack")

// Ack acknowledges claimed tasks: it ends their leases, and removes the tasks. It returns the number of these tasks. It
// does not count or change a task whose lease has ended already: the task is due again, or leased to another worker. A
// task that was scheduled again while it was leased is delivered again.
func (q *Queue) Ack(ctx context.Context, b Batch, ids ...string) (int, error) {
	args := []any{b.token}
	for _, id := range ids {
		args = append(args, id)
	}
	s := q.shards[b.shard]
	return q.endLeases(ctx, "ack", ackScript, []string{s.leased, s.attempts, s.errs}, args)
}

// Requeue tells [Queue.Retry] when a claimed task is due again.
type Requeue struct {
	ID  string
	In  time.Duration // the time until the task is due again
	Err string        // why the attempt failed; empty if the attempt does not count as failed
}

// maxError is the length, in bytes, to which the queue shortens the error of a failed attempt. Redis stores one such
// text for each task that failed.
const maxError = 500

var retryScript = load("retry")

// Retry ends the leases of claimed tasks and schedules the tasks again. It returns the number of these tasks. It does
// not count or change a task whose lease has ended already.
func (q *Queue) Retry(ctx context.Context, b Batch, tasks ...Requeue) (int, error) {
	s := q.shards[b.shard]
	args := []any{q.channel(), s.number, b.token}
	for _, task := range tasks {
		args = append(args, task.ID, micros(task.In), clip.Text(task.Err, maxError))
	}
	return q.endLeases(ctx, "retry", retryScript, []string{s.due, s.leased, s.attempts, s.errs}, args)
}

// Burial tells [Queue.Bury] which claimed task becomes a dead letter.
type Burial struct {
	ID  string
	Err string // why the last attempt failed
}

var buryScript = load("bury")

// Bury ends the leases of claimed tasks and makes the tasks dead letters. It returns the number of these tasks. It
// does not count or change a task whose lease has ended already.
func (q *Queue) Bury(ctx context.Context, b Batch, tasks ...Burial) (int, error) {
	args := []any{b.token}
	for _, task := range tasks {
		args = append(args, task.ID, clip.Text(task.Err, maxError))
	}
	s := q.shards[b.shard]
	return q.endLeases(ctx, "bury", buryScript, []string{s.due, s.leased, s.dead, s.attempts, s.errs}, args)
}

// endLeases runs a script that ends leases, and returns the number of leases that it ended.
func (q *Queue) endLeases(
	ctx context.Context, name string, script *redis.Script, keys []string, args []any,
) (ended int, err error) {
	if ended, err = script.Run(ctx, q.rdb, keys, args...).Int(); err != nil {
		return 0, fmt.Errorf("%s %s: %w", name, q.kind, err)
	}
	return ended, nil
}
