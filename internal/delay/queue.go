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

// call is one run of a script, on keys of one shard.
type call struct {
	keys []string
	args []any
}

// runEach runs a script once for each call, all in one round trip to each node, and returns the replies in the order of
// the calls. With an error, too: each reply has its own, and some calls may have run.
func (q *Queue) runEach(ctx context.Context, script *redis.Script, calls []call) ([]*redis.Cmd, error) {
	replies := make([]*redis.Cmd, len(calls))
	var unknown []int // to nodes that do not know the script yet
	if len(calls) == 1 {
		replies[0] = script.Run(ctx, q.rdb, calls[0].keys, calls[0].args...)
		return replies, replies[0].Err()
	}
	_, _ = q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for i, c := range calls {
			replies[i] = script.EvalSha(ctx, p, c.keys, c.args...)
		}
		return nil
	})
	for i := range replies {
		if redis.HasErrorPrefix(replies[i].Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		} else if replies[i].Err() != nil {
			return replies, replies[i].Err()
		}
	}
	if len(unknown) == 0 {
		return replies, nil
	}
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, i := range unknown {
			replies[i] = script.Eval(ctx, p, calls[i].keys, calls[i].args...)
		}
		return nil
	})
	return replies, err
}

// part is some of the ids that a caller named: those at these indexes, all of one shard.
type part struct {
	shard
	indexes []int
}

// parts groups ids by their shards, at most chunk in each part.
func (q *Queue) parts(ids []string) (parts []part) {
	indexes := make([][]int, len(q.shards))
	for i, id := range ids {
		n := q.shardOf(id)
		indexes[n] = append(indexes[n], i)
	}
	for n, s := range q.shards {
		for some := range slices.Chunk(indexes[n], chunk) {
			parts = append(parts, part{s, some})
		}
	}
	return parts
}

// numbers reads a reply of want numbers.
func numbers(reply *redis.Cmd, want int) ([]int64, error) {
	n, err := reply.Int64Slice()
	if err == nil && len(n) != want {
		err = fmt.Errorf("the script returned %d numbers, want %d", len(n), want)
	}
	return n, err
}

// Schedule adds tasks. Scheduled again, a task keeps the earlier due time; while it is leased, a
// second delivery follows when the lease has ended. A dead letter is left alone. On an error some of
// the messages may have been scheduled; repeating the call is harmless.
func (q *Queue) Schedule(ctx context.Context, msgs ...Message) error {
	for some := range slices.Chunk(msgs, chunk) { // a round trip of more could outlast the client's timeout
		if err := q.schedule(ctx, some); err != nil {
			return fmt.Errorf("schedule %s: %w", q.kind, err)
		}
	}
	return nil
}

func (q *Queue) schedule(ctx context.Context, msgs []Message) error {
	ids := make([]string, len(msgs))
	for i, m := range msgs {
		ids[i] = m.ID
	}
	var calls []call
	for _, p := range q.parts(ids) {
		args := make([]any, 0, 2+2*len(p.indexes))
		args = append(args, q.channel(), p.number)
		for _, i := range p.indexes {
			args = append(args, ids[i], micros(msgs[i].Left()))
		}
		calls = append(calls, call{[]string{p.due, p.dead}, args})
	}
	_, err := q.runEach(ctx, scripts.schedule, calls)
	return err
}

// Batch is what one claim took: tasks of one shard under one lease.
type Batch struct {
	Tasks []Task
	// Next is the time until the shard's next task is due or its next lease ends; negative if it has neither.
	Next time.Duration

	shard int
	token string
}

// Claim leases up to limit (at most 1,000) due tasks of a shard to the caller, for the given time (at most a day).
// A task whose lease ends unsettled is due again.
func (q *Queue) Claim(ctx context.Context, shard, limit int, lease time.Duration) (Batch, error) {
	s := q.shards[shard]
	reply, err := scripts.claim.Run(ctx, q.rdb, []string{s.due, s.leased, s.attempts},
		min(limit, chunk), micros(min(lease, maxLease))).Slice()
	if err != nil {
		return Batch{}, fmt.Errorf("claim %s shard %d: %w", q.kind, shard, err)
	}
	b, err := batchOf(reply)
	if err != nil {
		return Batch{}, fmt.Errorf("claim %s shard %d: %w", q.kind, shard, err)
	}
	b.shard = shard
	return b, nil
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
	return fmt.Errorf("the script returned %.200q, want a token, a number, and pairs of an id and a number", fmt.Sprint(reply))
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

// grave is where a dead letter is.
type grave struct {
	shard
	id       string
	buriedAt float64 // the score
}

// DeadLetters lists up to limit dead letters after the first offset, the latest first. It reads
// offset+limit of each shard: dead letters are few, or are an incident.
func (q *Queue) DeadLetters(ctx context.Context, offset, limit int) ([]DeadLetter, error) {
	buried := make([]*redis.ZSliceCmd, len(q.shards))
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, s := range q.shards {
			buried[i] = p.ZRevRangeWithScores(ctx, s.dead, 0, int64(offset+limit-1))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters of %s: %w", q.kind, err)
	}
	var all []grave
	for i, s := range q.shards {
		for _, z := range buried[i].Val() {
			all = append(all, grave{s, z.Member.(string), z.Score})
		}
	}
	slices.SortFunc(all, func(a, b grave) int {
		return cmp.Or(cmp.Compare(b.buriedAt, a.buriedAt), cmp.Compare(a.id, b.id))
	})
	return q.exhume(ctx, all[min(offset, len(all)):min(offset+limit, len(all))])
}

// exhume reads what is known of dead letters. Attempts and errors are for a person to read: a letter without readable
// ones is listed all the same.
func (q *Queue) exhume(ctx context.Context, graves []grave) ([]DeadLetter, error) {
	if len(graves) == 0 {
		return nil, nil
	}
	attempts, reasons := make([]*redis.StringCmd, len(graves)), make([]*redis.StringCmd, len(graves))
	replies, _ := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for i, g := range graves {
			attempts[i], reasons[i] = p.HGet(ctx, g.attempts, g.id), p.HGet(ctx, g.errs, g.id)
		}
		return nil
	})
	for _, reply := range replies {
		if _, answered := errors.AsType[redis.Error](reply.Err()); reply.Err() != nil && !answered {
			return nil, fmt.Errorf("read dead letters of %s: %w", q.kind, reply.Err())
		}
	}
	letters := make([]DeadLetter, len(graves))
	for i, g := range graves {
		n, err := attempts[i].Int()
		if err != nil {
			n = 0
		}
		letters[i] = DeadLetter{Kind: q.kind, ID: g.id, Attempts: max(n, 0), Error: reasons[i].Val(), BuriedAt: timeOf(g.buriedAt)}
	}
	return letters, nil
}

// timeOf is the time of a score, or the nearest time that JSON can hold: a score may be anything.
func timeOf(score float64) time.Time {
	const end = 253402300799e6 // the last second of the year 9999; a float64 would round its last microsecond up
	return time.UnixMicro(int64(max(0, min(end, score)))).UTC()
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
	calls := make([]call, len(q.shards))
	for i, s := range q.shards {
		calls[i] = call{keys: []string{s.due, s.leased, s.dead}}
	}
	replies, err := q.runEach(ctx, scripts.depth, calls)
	if err != nil {
		return Depth{}, fmt.Errorf("depth of %s: %w", q.kind, err)
	}
	var d Depth
	for _, reply := range replies {
		n, err := numbers(reply, 5)
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
	schedule, claim, ack, retry, bury, redrive, locate, window, remote, depth, mend *redis.Script
}{
	load("schedule"), load("claim"), load("ack"), load("retry"), load("bury"), load("redrive"),
	load("locate"), load("window"), load("remote"), load("depth"), load("mend"),
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
