package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// tasks is a queue of Redis as a [Queue].
type tasks struct {
	*delay.Queue
	between func() // called before each step of a sweep that is about to use the queue
}

func (q tasks) Locate(ctx context.Context, ids []string) ([]Place, error) {
	q.between()
	found, err := q.Queue.Locate(ctx, ids)
	places := make([]Place, len(found))
	for i, p := range found {
		places[i] = Place{
			Scheduled: p.State == delay.Scheduled, Leased: p.State == delay.Leased, Dead: p.State == delay.Dead,
			Failed: p.Attempts > 0, Left: p.Left,
		}
	}
	return places, err
}

func (q tasks) Schedule(ctx context.Context, ids []string, left []time.Duration) error {
	q.between()
	msgs := make([]delay.Message, len(ids))
	for i, id := range ids {
		msgs[i] = delay.In(id, left[i])
	}
	return q.Queue.Schedule(ctx, msgs...)
}

func (q tasks) Mend(ctx context.Context) ([]string, error) {
	q.between()
	return q.Queue.Mend(ctx)
}

func (q tasks) RemoveOrphans(ctx context.Context, ahead time.Duration, unknown func(context.Context, []string) ([]string, error)) (int, error) {
	q.between()
	return q.Queue.RemoveOrphans(ctx, ahead, func(ctx context.Context, ids []string) ([]string, error) {
		q.between()
		return unknown(ctx, ids)
	})
}

func (q tasks) Intact(ctx context.Context) (bool, error) {
	q.between()
	return q.Queue.Intact(ctx)
}

func (q tasks) BeginRestore(ctx context.Context) error {
	q.between()
	return q.Queue.BeginRestore(ctx)
}

func (q tasks) EndRestore(ctx context.Context) error {
	q.between()
	return q.Queue.EndRestore(ctx)
}

// memory is a [Table] in memory. The test moves its clock.
type memory struct {
	clock    time.Duration
	ids      []string // by deadline
	deadline map[string]time.Duration
	pending  map[string]bool
}

func (m *memory) add(id string, left time.Duration) {
	m.deadline[id], m.pending[id] = m.clock+left, true
	m.ids = append(m.ids, id)
	slices.SortStableFunc(m.ids, func(a, b string) int { return int(m.deadline[a] - m.deadline[b]) })
}

func (m *memory) left(id string) time.Duration { return m.deadline[id] - m.clock }

func (m *memory) Pending(_ context.Context, _ string, ahead time.Duration, _ int) (ids []string, left []time.Duration, next string, err error) {
	for _, id := range m.ids {
		if m.pending[id] && (ahead < 0 || m.left(id) <= ahead) {
			ids, left = append(ids, id), append(left, m.left(id))
		}
	}
	return ids, left, "", nil
}

func (m *memory) Unknown(_ context.Context, ids []string) (unknown []string, err error) {
	for _, id := range ids {
		if _, known := m.deadline[id]; !known {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}

func (m *memory) Overdue(_ context.Context, _ string, grace time.Duration, _ int) (ids []string, next string, err error) {
	for _, id := range m.ids {
		if m.pending[id] && m.left(id) < -grace {
			ids = append(ids, id)
		}
	}
	return ids, "", nil
}

func (m *memory) TimeOut(_ context.Context, ids []string) (done, held int, err error) {
	for _, id := range ids {
		if m.pending[id] && m.left(id) < 0 {
			m.pending[id] = false
			done++
		}
	}
	return done, 0, nil
}

const (
	shards    = 3
	lookahead = time.Hour
	// longestLease is longer than any lease that a queue takes for one of its own: a day.
	longestLease = 24*time.Hour + time.Minute
)

var (
	keys    = []string{"due", "leased", "dead", "attempts", "errors", "sentinel"}
	strays  = []string{"stray", "\xff\x00\xfe", "", "two words", "row-0\x00"}
	scores  = []string{"+inf", "-inf", "1e300", "-1e300", "1e18", "0", "1", "-0.5"}
	numbers = []string{"x", "", "-1", "1e300", "inf", "nan", "99999999999999999999", "1", "7", "\xff\x00"}
	markers = []string{"", "complete", "restoring", "garbage", "\xff\x00"}
)

// machine runs the operations of a queue, in any order, and writes other content to its keys between any two of them.
type machine struct {
	ctx    context.Context
	rdb    redis.UniversalClient
	queue  *delay.Queue
	worker *delay.Worker
	r      *Reconciler
	table  *memory

	t        *rapid.T
	failing  bool // what the handler does
	foreign  bool // content was written since the last sweep
	meddling bool // content is written during a sweep
	batches  []delay.Batch
}

// TestForeignContent writes anything to any key of a queue at any time. No operation panics; an operation is an error
// only between such a write and the end of the next sweep. After that sweep, which no write disturbs:
//
//   - each key has its type again, the queue is intact, and no task of no row is scheduled or dead;
//   - the task of each pending row comes in time, unless it is leased, dead or has failed attempts: then the sweep
//     after the row's deadline and the grace times it out;
//   - once the leases that it left have ended, which takes a day, the queue holds nothing foreign.
func TestForeignContent(t *testing.T) {
	rdb, err := delay.Connect(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t, rt, rdb)
		rt.Repeat(rapid.StateMachineActions(m))
		m.recovers()
	})
}

func newMachine(t *testing.T, rt *rapid.T, rdb redis.UniversalClient) *machine {
	m := &machine{
		ctx: t.Context(), rdb: rdb, t: rt,
		table: &memory{deadline: map[string]time.Duration{}, pending: map[string]bool{}},
	}
	m.do("FLUSHDB")
	var err error
	if m.queue, err = delay.NewQueue(rdb, delay.Config{Kind: "test.kind", Shards: shards}); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	m.worker = delay.NewWorker(m.queue, m.handle, delay.WorkerConfig{
		Lease: 10 * time.Minute, MaxAttempts: 3, BackoffMin: time.Minute, BackoffMax: 5 * time.Minute,
	}, quiet, nil)
	m.r, err = New(nil, m.table, tasks{m.queue, m.meddle}, Config{
		Schedule: "@every 30m", Lookahead: lookahead, Grace: time.Minute,
	}, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// handle times rows out as a worker's handler does.
func (m *machine) handle(_ context.Context, batch []delay.Task) ([]delay.Outcome, error) {
	outcomes := make([]delay.Outcome, len(batch))
	for i, task := range batch {
		switch {
		case !m.table.pending[task.ID]:
			outcomes[i] = delay.Done()
		case m.table.left(task.ID) > 0:
			outcomes[i] = delay.RetryIn(m.table.left(task.ID))
		case m.failing:
			outcomes[i] = delay.Fail(nil)
		default:
			m.table.pending[task.ID] = false
			outcomes[i] = delay.Done()
		}
	}
	return outcomes, nil
}

// must fails the test for an error that no foreign content explains.
func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil && !m.foreign {
		m.t.Fatalf("an error without foreign content: %v", err)
	}
}

// do sends a command that may be refused for the type of its key.
func (m *machine) do(args ...any) {
	_ = m.rdb.Do(m.ctx, args...).Err()
}

func (m *machine) key(shard int, name string) string {
	return "delay:{test.kind:" + strconv.Itoa(shard) + "}:" + name
}

// anyID draws the id of a row or of none.
func (m *machine) anyID() string {
	if len(m.table.ids) > 0 && rapid.Bool().Draw(m.t, "of a row") {
		return rapid.SampledFrom(m.table.ids).Draw(m.t, "id")
	}
	return rapid.SampledFrom(strays).Draw(m.t, "id")
}

// someShards draws one shard, or all of them: then the shard of an id is among them.
func (m *machine) someShards() (prefixes []int) {
	prefixes = []int{0, 1, 2}
	if one := rapid.IntRange(0, 2*shards-1).Draw(m.t, "shard"); one < shards {
		return prefixes[one : one+1]
	}
	return prefixes
}

func drawMinutes(t *rapid.T, label string, from, to int) time.Duration {
	return time.Duration(rapid.IntRange(from, to).Draw(t, label)) * time.Minute
}

// Place adds a row whose task may be lost on its way.
func (m *machine) Place(t *rapid.T) {
	m.t = t
	id := "row-" + strconv.Itoa(len(m.table.ids))
	left := drawMinutes(t, "left", 0, 90)
	m.table.add(id, left)
	if !rapid.Bool().Draw(t, "lost") {
		m.must(m.queue.Schedule(m.ctx, delay.In(id, left)))
	}
}

func (m *machine) Schedule(t *rapid.T) {
	m.t = t
	m.must(m.queue.Schedule(m.ctx, delay.In(m.anyID(), drawMinutes(t, "in", -5, 90))))
}

func (m *machine) Claim(t *rapid.T) {
	m.t = t
	shard, limit := rapid.IntRange(0, shards-1).Draw(t, "shard"), rapid.IntRange(1, 4).Draw(t, "limit")
	b, err := m.queue.Claim(m.ctx, shard, limit, drawMinutes(t, "lease", 1, 10))
	m.must(err)
	if len(b.Tasks) > 0 {
		m.batches = append(m.batches, b)
	}
}

// claimed draws a task of a batch that was claimed, maybe long ago.
func (m *machine) claimed(t *rapid.T) (delay.Batch, string) {
	m.t = t
	if len(m.batches) == 0 {
		t.Skip("nothing was claimed yet")
	}
	b := rapid.SampledFrom(m.batches).Draw(t, "batch")
	return b, rapid.SampledFrom(b.Tasks).Draw(t, "task").ID
}

func (m *machine) Ack(t *rapid.T) {
	b, id := m.claimed(t)
	_, err := m.queue.Ack(m.ctx, b, id)
	m.must(err)
}

func (m *machine) Retry(t *rapid.T) {
	b, id := m.claimed(t)
	reason := rapid.SampledFrom([]string{"", "broken"}).Draw(t, "error")
	_, err := m.queue.Retry(m.ctx, b, delay.Requeue{ID: id, In: drawMinutes(t, "in", 0, 5), Err: reason})
	m.must(err)
}

func (m *machine) Bury(t *rapid.T) {
	b, id := m.claimed(t)
	_, err := m.queue.Bury(m.ctx, b, delay.Burial{ID: id, Err: "broken"})
	m.must(err)
}

func (m *machine) Redrive(t *rapid.T) {
	m.t = t
	_, err := m.queue.Redrive(m.ctx, m.anyID())
	m.must(err)
}

func (m *machine) Work(t *rapid.T) {
	m.t = t
	m.failing = rapid.Bool().Draw(t, "failing")
	for shard := range shards {
		_, _, err := m.worker.RunOnce(m.ctx, shard)
		m.must(err)
	}
	m.failing = false
}

// TimePasses moves the table's clock, and all scores of the queue.
func (m *machine) TimePasses(t *rapid.T) {
	m.t = t
	m.pass(drawMinutes(t, "minutes", 1, 30))
}

func (m *machine) pass(d time.Duration) {
	m.table.clock += d
	m.batches = nil // their tokens are scores, too
	for shard := range shards {
		for _, name := range []string{"due", "leased"} {
			members, _ := m.rdb.ZRange(m.ctx, m.key(shard, name), 0, -1).Result()
			for _, id := range members {
				m.do("ZINCRBY", m.key(shard, name), -d.Microseconds(), id)
			}
		}
	}
}

func (m *machine) Corrupt(t *rapid.T) {
	m.t = t
	m.corrupt()
}

// CorruptScore and CorruptNumber make sure that rapid draws them often.
func (m *machine) CorruptScore(t *rapid.T) {
	m.t = t
	m.corruptScore()
}

func (m *machine) CorruptNumber(t *rapid.T) {
	m.t = t
	m.corruptNumber()
}

// corrupt writes what no queue writes.
func (m *machine) corrupt() {
	m.foreign = true
	rapid.SampledFrom([]func(){
		m.corruptScore, m.corruptNumber, m.corruptType, m.corruptMarker, m.deleteKeys, m.setAsideBefore,
		func() { m.do("FLUSHDB") },
	}).Draw(m.t, "how")()
}

// corruptScore adds a member to a sorted set: with a score of no time, or with one within the time of the test.
func (m *machine) corruptScore() {
	m.foreign = true
	var score any = rapid.SampledFrom(scores).Draw(m.t, "score")
	if rapid.Bool().Draw(m.t, "within the time of the test") {
		score = time.Now().Add(drawMinutes(m.t, "at", -60, 3*60)).UnixMicro()
	}
	name, id := rapid.SampledFrom(keys[:3]).Draw(m.t, "set"), m.anyID()
	for _, shard := range m.someShards() {
		m.do("ZADD", m.key(shard, name), score, id)
	}
}

// corruptNumber writes into the hashes.
func (m *machine) corruptNumber() {
	m.foreign = true
	name, id, number := rapid.SampledFrom(keys[3:5]).Draw(m.t, "hash"), m.anyID(), rapid.SampledFrom(numbers).Draw(m.t, "number")
	for _, shard := range m.someShards() {
		m.do("HSET", m.key(shard, name), id, number)
	}
}

func (m *machine) corruptType() {
	key := m.key(rapid.IntRange(0, shards-1).Draw(m.t, "shard"), rapid.SampledFrom(keys).Draw(m.t, "key"))
	m.do("DEL", key)
	m.do(testenv.RedisTypes[m.anyType()](key)...)
}

func (m *machine) anyType() string {
	return rapid.SampledFrom([]string{"string", "list", "set", "hash", "zset", "stream"}).Draw(m.t, "type")
}

func (m *machine) corruptMarker() {
	marker := rapid.SampledFrom(markers).Draw(m.t, "marker")
	for _, shard := range m.someShards() {
		m.do("SET", m.key(shard, "sentinel"), marker)
	}
}

// deleteKeys deletes up to half of the keys.
func (m *machine) deleteKeys() {
	some := rapid.Permutation(keys).Draw(m.t, "keys")[:rapid.IntRange(1, len(keys)/2).Draw(m.t, "deleted")]
	for _, shard := range m.someShards() {
		for _, name := range some {
			m.do("DEL", m.key(shard, name))
		}
	}
}

// setAsideBefore takes the name that a key would get when it is set aside.
func (m *machine) setAsideBefore() {
	key := m.key(rapid.IntRange(0, shards-1).Draw(m.t, "shard"), rapid.SampledFrom(keys).Draw(m.t, "key"))
	m.do(testenv.RedisTypes[m.anyType()](key + ":set-aside")...)
}

// meddle is called between the steps of a sweep.
func (m *machine) meddle() {
	if m.meddling && rapid.IntRange(0, 3).Draw(m.t, "meddle") == 0 {
		m.corrupt()
	}
}

// DisturbedSweep has content written during the sweep. What it cannot do, the next one does.
func (m *machine) DisturbedSweep(t *rapid.T) {
	m.t = t
	m.meddling = true
	m.r.sweep(m.ctx)
	m.meddling = false
}

func (m *machine) Sweep(t *rapid.T) {
	m.t = t
	m.sweep()
}

// sweep sweeps undisturbed, and looks whether the queue is in order after it.
func (m *machine) sweep() {
	m.t.Helper()
	report := m.r.sweep(m.ctx)
	m.foreign = false
	if report.Outcome != OK {
		m.t.Fatalf("the sweep reported %+v, want ok", report)
	}
	if renamed, err := m.queue.Mend(m.ctx); err != nil || len(renamed) > 0 {
		m.t.Fatalf("there is more to mend after a sweep: %q, %v", renamed, err)
	}
	if intact, err := m.queue.Intact(m.ctx); err != nil || !intact {
		m.t.Fatalf("the queue is not intact after a sweep: %v", err)
	}
	m.holdsNothingForeign("due", "dead")
	for id, place := range m.places() {
		left := m.table.left(id)
		switch {
		case !m.table.pending[id] || left > lookahead || left < 0 || place.Leased || place.Dead || place.Failed:
		case !place.Scheduled || place.Left > left+tolerance:
			m.t.Fatalf("after a sweep %s is due in %v and its task is %+v", id, left, place)
		}
		if m.table.pending[id] && left < -m.r.cfg.Grace {
			m.t.Fatalf("after a sweep %s is overdue by %v", id, -left)
		}
	}
}

// holdsNothingForeign looks for tasks of no row.
func (m *machine) holdsNothingForeign(names ...string) {
	m.t.Helper()
	for shard := range shards {
		for _, name := range names {
			members, err := m.rdb.ZRange(m.ctx, m.key(shard, name), 0, -1).Result()
			if err != nil {
				m.t.Fatal(err)
			}
			if unknown, _ := m.table.Unknown(m.ctx, members); len(unknown) > 0 {
				m.t.Fatalf("%s holds tasks of no row: %q", m.key(shard, name), unknown)
			}
		}
	}
}

// places locates the tasks of all rows.
func (m *machine) places() map[string]Place {
	m.t.Helper()
	found, err := m.r.queue.Locate(m.ctx, m.table.ids)
	m.must(err)
	places := map[string]Place{}
	for i, p := range found {
		places[m.table.ids[i]] = p
	}
	return places
}

// Check looks at the queue after each step.
func (m *machine) Check(t *rapid.T) {
	m.t = t
	m.places()
	_, err := m.queue.Depth(m.ctx)
	m.must(err)
	letters, err := m.queue.DeadLetters(m.ctx, 0, 100)
	m.must(err)
	if _, err := json.Marshal(letters); err != nil {
		t.Fatalf("%+v: %v", letters, err)
	}
}

// recovers follows a queue that nobody meddles with any more.
func (m *machine) recovers() {
	m.sweep()
	inTime := map[string]bool{}
	for id, place := range m.places() {
		if m.table.pending[id] && place.Scheduled && !place.Failed && m.table.left(id) >= 0 && m.table.left(id) <= lookahead {
			inTime[id] = true
		}
	}
	m.pass(longestLease)
	m.drain()
	for id := range inTime {
		if m.table.pending[id] {
			m.t.Fatalf("%s was not delivered in time", id)
		}
	}
	m.sweep()
	m.drain()
	m.holdsNothingForeign("due", "leased", "dead")

	m.pass(2 * time.Hour) // past all deadlines
	m.sweep()
	for id, pending := range m.table.pending {
		if pending {
			m.t.Fatalf("%s is still pending", id)
		}
	}
	const id = "last"
	m.table.add(id, 0)
	m.must(m.queue.Schedule(m.ctx, delay.In(id, 0)))
	m.drain()
	if m.table.pending[id] {
		m.t.Fatal("the task of a new row is not delivered")
	}
	if d, err := m.queue.Depth(m.ctx); err != nil || d.Scheduled+d.Due+d.Leased > 0 {
		m.t.Fatalf("when all rows have ended the queue holds %+v, %v", d, err)
	}
}

// drain has the worker do all that is due.
func (m *machine) drain() {
	m.t.Helper()
	for shard := range shards {
		for n := 1; n > 0; {
			var err error
			if n, _, err = m.worker.RunOnce(m.ctx, shard); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

// newTasks returns a table of one row that has half an hour left, its queue, and what sweeps them.
func newTasks(t *testing.T) (*memory, *delay.Queue, *Reconciler, redis.UniversalClient) {
	rdb, err := delay.Connect(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rdb.Close() })
	q, err := delay.NewQueue(rdb, delay.Config{Kind: "test.kind"})
	if err != nil {
		t.Fatal(err)
	}
	table := &memory{deadline: map[string]time.Duration{}, pending: map[string]bool{}}
	table.add("a", 30*time.Minute)
	r, err := New(nil, table, tasks{q, func() {}}, Config{Schedule: "@every 30m", Lookahead: lookahead}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	return table, q, r, rdb
}

// TestLateByAnyScore gives the task of a row a due time that is too late: the sweep moves it forward.
func TestLateByAnyScore(t *testing.T) {
	for _, score := range []string{"+inf", "1e300", "1e19", "9.3e18", "9.1e15"} {
		t.Run(score, func(t *testing.T) {
			_, q, r, rdb := newTasks(t)
			r.sweep(t.Context()) // restores
			if err := rdb.Do(t.Context(), "ZADD", "delay:{test.kind:0}:due", score, "a").Err(); err != nil {
				t.Fatal(err)
			}
			if report := r.sweep(t.Context()); report.Late != 1 || report.Outcome != OK {
				t.Errorf("reported %+v, want one late", report)
			}
			places, err := q.Locate(t.Context(), []string{"a"})
			if err != nil || places[0].Left > 30*time.Minute || places[0].Left < 29*time.Minute {
				t.Errorf("the task is %+v, %v; want it due in half an hour", places, err)
			}
		})
	}
}

// TestSweepsLeaveTheBackoff: a task that fails again and again waits as long between its attempts as its worker says,
// however often the reconciler sweeps meanwhile.
func TestSweepsLeaveTheBackoff(t *testing.T) {
	table, q, r, _ := newTasks(t)
	r.sweep(t.Context())
	attempts := 0
	w := delay.NewWorker(q, func(_ context.Context, batch []delay.Task) ([]delay.Outcome, error) {
		attempts += len(batch)
		return []delay.Outcome{delay.Fail(errors.New("broken"))}, nil
	}, delay.WorkerConfig{BackoffMin: time.Hour, BackoffMax: time.Hour}, slog.New(slog.DiscardHandler), nil)
	for name, overdue := range map[string]bool{"before its deadline": false, "overdue": true} {
		t.Run(name, func(t *testing.T) {
			attempts = 0
			if overdue {
				table.clock = table.deadline["a"] + time.Second // within the grace
			}
			if _, err := q.RemoveOrphans(t.Context(), 0, func(_ context.Context, ids []string) ([]string, error) { return ids, nil }); err != nil {
				t.Fatal(err)
			}
			if err := q.Schedule(t.Context(), delay.In("a", -time.Second)); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if _, _, err := w.RunOnce(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				if report := r.sweep(t.Context()); report.Late != 0 || report.Missing != 0 || report.Outcome != OK {
					t.Errorf("reported %+v, want no repair", report)
				}
			}
			if attempts != 1 {
				t.Errorf("%d attempts, want one: the next is due in an hour", attempts)
			}
		})
	}
}
