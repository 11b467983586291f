package delay

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var errNoReason = errors.New("failed without a reason")

// Config of a queue.
type Config struct {
	// Kind names the queue: lower case letters, digits, dots and dashes. Each kind has its own keys.
	Kind string
	// Shards spreads the queue over a Redis Cluster's slots; 0 means 1. Every process must be given
	// the same number. After a change the reconciler finds each task missing from its new shard and
	// adds it there; what remains in an old shard is delivered too, or orphaned, and does no harm.
	Shards int
}

// Queue holds the tasks of one kind in Redis. It is safe for concurrent use, and any number of
// processes may use the same one. Every error is Redis's or the context's.
type Queue struct {
	rdb    redis.UniversalClient
	kind   string
	shards []shard
}

// shard is a part of the queue in one slot of a cluster: all its keys carry the same hash tag.
type shard struct {
	number                                    string
	due, leased, dead, attempts, errs, sentry string
}

var validKind = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// NewQueue returns the queue that cfg names. It sends nothing to Redis.
func NewQueue(rdb redis.UniversalClient, cfg Config) (*Queue, error) {
	if !validKind.MatchString(cfg.Kind) {
		return nil, fmt.Errorf("queue kind %q: want lower case letters, digits, dots and dashes", cfg.Kind)
	}
	if cfg.Shards < 0 || cfg.Shards > 1024 {
		return nil, fmt.Errorf("queue shards %d: want 1 to 1024", cfg.Shards)
	}
	q := &Queue{rdb: rdb, kind: cfg.Kind, shards: make([]shard, max(cfg.Shards, 1))}
	for i := range q.shards {
		prefix := fmt.Sprintf("delay:{%s:%d}:", cfg.Kind, i)
		q.shards[i] = shard{
			number: strconv.Itoa(i),
			due:    prefix + "due", leased: prefix + "leased", dead: prefix + "dead",
			attempts: prefix + "attempts", errs: prefix + "errors", sentry: prefix + "sentinel",
		}
	}
	return q, nil
}

// Kind is the queue's kind.
func (q *Queue) Kind() string { return q.kind }

// Shards is the number of the queue's shards.
func (q *Queue) Shards() int { return len(q.shards) }

// channel carries the wake-up hints: the number of a shard whose head moved forward.
func (q *Queue) channel() string { return "delay:" + q.kind + ":wake" }

func (q *Queue) shardOf(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id))
	return int(h.Sum32() % uint32(len(q.shards)))
}

// chunk is the most ids in one call of a script: Lua unpacks fewer than 8,000 values, and Redis
// answers no one else while a script runs.
const chunk = 1000

// byShard calls do for the places of ids in each shard, at most chunk at a time.
func (q *Queue) byShard(ids []string, do func(s shard, places []int) error) error {
	places := make([][]int, len(q.shards))
	for i, id := range ids {
		n := q.shardOf(id)
		places[n] = append(places[n], i)
	}
	for n, s := range q.shards {
		for part := range slices.Chunk(places[n], chunk) {
			if err := do(s, part); err != nil {
				return fmt.Errorf("%s shard %d: %w", q.kind, n, err)
			}
		}
	}
	return nil
}

// Schedule adds tasks. Scheduled again, a task keeps the earlier due time; while it is leased, a
// second delivery follows when the lease has ended. A dead letter is left alone. On an error some of
// the messages may have been scheduled; repeating the call is harmless.
func (q *Queue) Schedule(ctx context.Context, msgs ...Message) error {
	ids := make([]string, len(msgs))
	for i, m := range msgs {
		ids[i] = m.ID
	}
	return q.byShard(ids, func(s shard, places []int) error {
		args := make([]any, 0, 2+2*len(places))
		args = append(args, q.channel(), s.number)
		for _, i := range places {
			args = append(args, ids[i], micros(msgs[i].Left()))
		}
		if err := scripts.schedule.Run(ctx, q.rdb, []string{s.due, s.dead}, args...).Err(); err != nil {
			return fmt.Errorf("schedule: %w", err)
		}
		return nil
	})
}

// Batch is what one claim took: tasks of one shard under one lease.
type Batch struct {
	Tasks []Task
	// Next is the time until the shard's next task is due or its next lease ends; negative if it has neither.
	Next time.Duration

	shard int
	token string
}

// Claim leases up to limit (at most 1,000) due tasks of a shard to the caller, for the given time.
// A task whose lease ends unsettled is due again.
func (q *Queue) Claim(ctx context.Context, shard, limit int, lease time.Duration) (Batch, error) {
	s := q.shards[shard]
	reply, err := scripts.claim.Run(ctx, q.rdb, []string{s.due, s.leased, s.attempts},
		min(limit, chunk), micros(lease)).Slice()
	if err != nil {
		return Batch{}, fmt.Errorf("claim %s shard %d: %w", q.kind, shard, err)
	}
	b := Batch{shard: shard, token: reply[0].(string), Next: fromMicros(reply[1].(int64))}
	for i := 2; i < len(reply); i += 2 {
		b.Tasks = append(b.Tasks, Task{ID: reply[i].(string), Attempts: int(reply[i+1].(int64))})
	}
	return b, nil
}

// Ack ends the leases of finished tasks and returns how many were still held. A task whose lease was
// lost is not touched: it belongs to another worker, or waits for one.
func (q *Queue) Ack(ctx context.Context, b Batch, ids ...string) (int, error) {
	s := q.shards[b.shard]
	return q.settle(ctx, "ack", scripts.ack, []string{s.leased, s.attempts, s.errs},
		[]any{b.token}, len(ids), func(args []any, i int) []any { return append(args, ids[i]) })
}

// Requeue gives a claimed task back.
type Requeue struct {
	ID  string
	In  time.Duration // due again after this
	Err string        // why the attempt failed; empty: it did not, and counts none
}

// Retry gives tasks back and returns how many were still held.
func (q *Queue) Retry(ctx context.Context, b Batch, tasks ...Requeue) (int, error) {
	s := q.shards[b.shard]
	return q.settle(ctx, "retry", scripts.retry, []string{s.due, s.leased, s.attempts, s.errs},
		[]any{q.channel(), s.number, b.token}, len(tasks), func(args []any, i int) []any {
			return append(args, tasks[i].ID, micros(tasks[i].In), clip(tasks[i].Err))
		})
}

// Burial makes a claimed task a dead letter.
type Burial struct {
	ID  string
	Err string // why its last attempt failed
}

// Bury makes tasks dead letters and returns how many were still held.
func (q *Queue) Bury(ctx context.Context, b Batch, tasks ...Burial) (int, error) {
	s := q.shards[b.shard]
	return q.settle(ctx, "bury", scripts.bury, []string{s.due, s.leased, s.dead, s.attempts, s.errs},
		[]any{b.token}, len(tasks), func(args []any, i int) []any {
			return append(args, tasks[i].ID, clip(tasks[i].Err))
		})
}

// settle runs one of the scripts that end leases over n tasks and adds up what it returns.
func (q *Queue) settle(ctx context.Context, what string, script *redis.Script, keys []string,
	head []any, n int, add func(args []any, i int) []any,
) (int, error) {
	held := 0
	for from := 0; from < n; from += chunk {
		args := slices.Clone(head)
		for i := from; i < min(from+chunk, n); i++ {
			args = add(args, i)
		}
		count, err := script.Run(ctx, q.rdb, keys, args...).Int()
		if err != nil {
			return held, fmt.Errorf("%s %s: %w", what, q.kind, err)
		}
		held += count
	}
	return held, nil
}

// Redrive makes a dead letter due now, with no attempts against it, and tells whether there was one.
func (q *Queue) Redrive(ctx context.Context, id string) (bool, error) {
	s := q.shards[q.shardOf(id)]
	n, err := scripts.redrive.Run(ctx, q.rdb, []string{s.due, s.dead, s.attempts, s.errs},
		q.channel(), s.number, id).Int()
	if err != nil {
		return false, fmt.Errorf("redrive %s: %w", q.kind, err)
	}
	return n == 1, nil
}

// DeadLetter is a task that failed for good, until it is redriven.
type DeadLetter struct {
	Kind     string    `json:"kind"`
	ID       string    `json:"id"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	BuriedAt time.Time `json:"buried_at"` // by Redis's clock
}

// DeadLetters lists up to limit dead letters after the first offset, the latest first. It reads
// offset+limit of each shard: dead letters are few, or are an incident.
func (q *Queue) DeadLetters(ctx context.Context, offset, limit int) ([]DeadLetter, error) {
	type grave struct {
		redis.Z
		shard shard
	}
	var all []grave
	for _, s := range q.shards {
		buried, err := q.rdb.ZRevRangeWithScores(ctx, s.dead, 0, int64(offset+limit-1)).Result()
		if err != nil {
			return nil, fmt.Errorf("list dead letters of %s: %w", q.kind, err)
		}
		for _, z := range buried {
			all = append(all, grave{z, s})
		}
	}
	slices.SortFunc(all, func(a, b grave) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Member.(string), b.Member.(string)))
	})
	var letters []DeadLetter
	for _, g := range all[min(offset, len(all)):min(offset+limit, len(all))] {
		letter, err := q.deadLetter(ctx, g.shard, g.Z)
		if err != nil {
			return nil, err
		}
		letters = append(letters, letter)
	}
	return letters, nil
}

func (q *Queue) deadLetter(ctx context.Context, s shard, z redis.Z) (DeadLetter, error) {
	id := z.Member.(string)
	attempts, err := q.rdb.HGet(ctx, s.attempts, id).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return DeadLetter{}, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	reason, err := q.rdb.HGet(ctx, s.errs, id).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return DeadLetter{}, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	return DeadLetter{
		Kind: q.kind, ID: id, Attempts: attempts, Error: reason,
		BuriedAt: time.UnixMicro(int64(z.Score)).UTC(),
	}, nil
}

// Depth counts a queue's tasks by state.
type Depth struct {
	Scheduled int64 // due later
	Due       int64 // due now, not claimed
	Leased    int64
	Dead      int64
	OldestDue time.Duration // how long the oldest due task has waited
}

// Depth counts the tasks of all shards, each shard at one instant.
func (q *Queue) Depth(ctx context.Context) (Depth, error) {
	var d Depth
	for _, s := range q.shards {
		n, err := scripts.depth.Run(ctx, q.rdb, []string{s.due, s.leased, s.dead}).Int64Slice()
		if err != nil {
			return Depth{}, fmt.Errorf("depth of %s: %w", q.kind, err)
		}
		d.Scheduled += n[0]
		d.Due += n[1]
		d.Leased += n[2]
		d.Dead += n[3]
		d.OldestDue = max(d.OldestDue, fromMicros(n[4]))
	}
	return d, nil
}

// micros rounds up: a duration that reaches Redis is never shorter than what was asked for.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if d > time.Duration(us)*time.Microsecond {
		us++
	}
	return us
}

func fromMicros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// clip bounds an error's text: it is stored per task, to be read by a person.
func clip(text string) string {
	const most = 500
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

//go:embed lua/*.lua
var luaFiles embed.FS

var scripts = struct {
	schedule, claim, ack, retry, bury, redrive, locate, window, depth *redis.Script
}{
	load("schedule"), load("claim"), load("ack"), load("retry"), load("bury"), load("redrive"),
	load("locate"), load("window"), load("depth"),
}

// load returns a script with the prelude before it. Run sends its hash, and its text only to a Redis
// that does not know it: a new, restarted or flushed one.
func load(name string) *redis.Script {
	read := func(name string) string {
		text, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // embedded at build time: cannot be missing
		}
		return string(text)
	}
	return redis.NewScript(read("prelude") + "\n" + read(name))
}
