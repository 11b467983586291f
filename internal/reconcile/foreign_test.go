package reconcile

import (
	"context"
	"encoding/json"
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

// memory is a table in memory. The test moves its clock.
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

func (m *memory) Pending(
	_ context.Context, _ string, within time.Duration, _ int,
) (page []delay.Message, next string, err error) {
	for _, id := range m.ids {
		if m.pending[id] && m.left(id) <= within {
			page = append(page, delay.In(id, m.left(id)))
		}
	}
	return page, "", nil
}

func (m *memory) Unknown(_ context.Context, ids []string) (unknown []string, err error) {
	for _, id := range ids {
		if _, known := m.deadline[id]; !known {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}

func (m *memory) TimeOut(_ context.Context, ids []string) (done, locked int, err error) {
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
	// longestLease is longer than the longest lease of a claim, which is a day.
	longestLease = 24*time.Hour + time.Minute
)

var (
	keys    = []string{"due", "leased", "dead", "owners", "attempts", "errors", "marker"}
	foreign = []string{"orphan", "\xff\x00\xfe", "", "two words", "row-0\x00"}
	scores  = []string{"+inf", "-inf", "1e300", "-1e300", "1e18", "0", "1", "-0.5"}
	numbers = []string{"x", "", "-1", "1e300", "inf", "nan", "99999999999999999999", "1", "7", "\xff\x00"}
	markers = []string{"", "complete", "restoring", "garbage", "\xff\x00"}
)

// machine runs the operations of a queue in a random sequence, and writes foreign content to its keys between them.
type machine struct {
	ctx    context.Context
	rdb    redis.UniversalClient
	queue  *delay.Queue
	worker *delay.Worker
	r      *Reconciler
	table  *memory

	t        *rapid.T
	failing  bool // the handler returns failures
	foreign  bool // foreign content was written since the last undisturbed sweep
	meddling bool // a disturbed sweep is under way, during which foreign content is written
	batches  []delay.Batch
}

// TestForeignContent writes foreign content, that is, random values, to the keys of a queue, as other clients could. No
// operation panics. Operations return errors only between such a write and the end of the next sweep. After a sweep
// that no further write disturbs:
//
//   - Each key has its type again, the queue is intact, and no orphan is scheduled or dead.
//   - The task of each pending row is delivered in time. If the task is leased, dead or has failed attempts, then the
//     first sweep after the row's deadline and the grace times the row out.
//   - After all leases have ended, which takes at most a day, the queue holds no orphans.
func TestForeignContent(t *testing.T) {
	url := testenv.Redis(t)
	rdb, hooked := connect(t, url), connect(t, url)
	var m *machine
	hooked.AddHook(hook{
		before: func(string) error { m.meddle(); return nil },
		after:  func(string) {},
	})
	rapid.Check(t, func(rt *rapid.T) {
		m = newMachine(t, rt, rdb, hooked)
		rt.Repeat(rapid.StateMachineActions(m))
		m.recovers()
	})
}

// newMachine returns a machine on an empty Redis. The reconciler uses the client hooked, the machine the client rdb.
func newMachine(t *testing.T, rt *rapid.T, rdb, hooked redis.UniversalClient) *machine {
	m := &machine{
		ctx: t.Context(), rdb: rdb, t: rt,
		table: &memory{deadline: map[string]time.Duration{}, pending: map[string]bool{}},
	}
	m.do("FLUSHDB")
	cfg := delay.Config{Kind: "test.kind", Shards: shards}
	var err error
	m.queue, err = delay.NewQueue(rdb, cfg)
	testenv.Must(t, err)
	swept, err := delay.NewQueue(hooked, cfg)
	testenv.Must(t, err)
	quiet := slog.New(slog.DiscardHandler)
	m.worker = delay.NewWorker(m.queue, m.handle, delay.WorkerConfig{
		Lease: 10 * time.Minute, MaxAttempts: 3, BackoffMin: time.Minute, BackoffMax: 5 * time.Minute,
	}, quiet, nil)
	m.r, err = New(nil, m.table, swept, Config{
		Schedule: "@every 30m", Lookahead: lookahead, Grace: time.Minute,
	}, quiet, nil)
	testenv.Must(t, err)
	return m
}

// handle times out rows, as the handler of a worker.
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

// must fails the test after an error, unless foreign content may be the cause.
func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil && !m.foreign {
		m.t.Fatalf("got the error %v, want none: there is no foreign content", err)
	}
}

// do sends a command. It ignores the error, because Redis may reject the command if its key has another type.
func (m *machine) do(args ...any) {
	_ = m.rdb.Do(m.ctx, args...).Err()
}

func (m *machine) key(shard int, name string) string {
	return "delay:{test.kind:" + strconv.Itoa(shard) + "}:" + name
}

// anyID draws the id of a row or a foreign id.
func (m *machine) anyID() string {
	if len(m.table.ids) > 0 && rapid.Bool().Draw(m.t, "of a row") {
		return rapid.SampledFrom(m.table.ids).Draw(m.t, "id")
	}
	return rapid.SampledFrom(foreign).Draw(m.t, "id")
}

// someShards draws one shard, or all of them, which include the shard of each id.
func (m *machine) someShards() []int {
	all := []int{0, 1, 2}
	if one := rapid.IntRange(0, 2*shards-1).Draw(m.t, "shard"); one < shards {
		return all[one : one+1]
	}
	return all
}

func drawMinutes(t *rapid.T, label string, from, to int) time.Duration {
	return time.Duration(rapid.IntRange(from, to).Draw(t, label)) * time.Minute
}

// Add adds a row. Its task may be lost on the way to Redis.
func (m *machine) Add(t *rapid.T) {
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

// claimed draws a task of a claimed batch. Its lease may have ended.
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
		_, err := m.worker.RunOnce(m.ctx, shard)
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
	m.batches = nil // their tokens are the ends of leases, which have moved
	for shard := range shards {
		for _, name := range []string{"due", "leased", "owners"} {
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

// CorruptScore and CorruptNumber are actions of their own, so that rapid draws them more often.
func (m *machine) CorruptScore(t *rapid.T) {
	m.t = t
	m.corruptScore()
}

func (m *machine) CorruptNumber(t *rapid.T) {
	m.t = t
	m.corruptNumber()
}

// corrupt writes foreign content.
func (m *machine) corrupt() {
	m.foreign = true
	rapid.SampledFrom([]func(){
		m.corruptScore, m.corruptNumber, m.corruptType, m.corruptMarker, m.deleteKeys, m.setAsideBefore,
		func() { m.do("FLUSHDB") },
	}).Draw(m.t, "how")()
}

// corruptScore adds a member to a sorted set. Its score is extreme, or near the current time.
func (m *machine) corruptScore() {
	m.foreign = true
	var score any = rapid.SampledFrom(scores).Draw(m.t, "score")
	if rapid.Bool().Draw(m.t, "near the current time") {
		score = time.Now().Add(drawMinutes(m.t, "at", -60, 3*60)).UnixMicro()
	}
	name, id := rapid.SampledFrom(keys[:4]).Draw(m.t, "set"), m.anyID()
	for _, shard := range m.someShards() {
		m.do("ZADD", m.key(shard, name), score, id)
	}
}

// corruptNumber writes a value to a hash.
func (m *machine) corruptNumber() {
	m.foreign = true
	name, id, number := rapid.SampledFrom(keys[4:6]).Draw(m.t, "hash"), m.anyID(), rapid.SampledFrom(numbers).Draw(m.t, "number")
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
		m.do("SET", m.key(shard, "marker"), marker)
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

// setAsideBefore writes to a key whose name RepairKeys gives to a renamed key.
func (m *machine) setAsideBefore() {
	key := m.key(rapid.IntRange(0, shards-1).Draw(m.t, "shard"), rapid.SampledFrom(keys).Draw(m.t, "key"))
	m.do(testenv.RedisTypes[m.anyType()](key + ":set-aside")...)
}

// meddle is called before each step of a sweep. During a disturbed sweep it sometimes writes foreign content.
func (m *machine) meddle() {
	if m.meddling && rapid.IntRange(0, 3).Draw(m.t, "meddle") == 0 {
		m.corrupt()
	}
}

// DisturbedSweep sweeps while foreign content is written. The next sweep must repair what remains.
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

// sweep runs an undisturbed sweep, and then checks the queue.
func (m *machine) sweep() {
	m.t.Helper()
	report := m.r.sweep(m.ctx)
	m.foreign = false
	if report.Outcome != OK {
		m.t.Fatalf("the sweep reported %+v, want ok", report)
	}
	if renamed, err := m.queue.RepairKeys(m.ctx); err != nil || len(renamed) > 0 {
		m.t.Fatalf("after a sweep RepairKeys renamed %q, %v; want nothing", renamed, err)
	}
	if intact, err := m.queue.Intact(m.ctx); err != nil || !intact {
		m.t.Fatalf("after a sweep Intact() = %v, %v; want true", intact, err)
	}
	m.holdsNoOrphans("due", "dead")
	for id, location := range m.locations() {
		left := m.table.left(id)
		switch {
		case !m.table.pending[id] || left > lookahead || left < 0 || location.State == delay.Leased ||
			location.State == delay.Dead || location.Attempts > 0:
		case location.State != delay.Scheduled || location.Left > left+tolerance:
			m.t.Fatalf("after a sweep %s has %v left and its task is %+v, want it due in time", id, left, location)
		}
		if m.table.pending[id] && left < -m.r.cfg.Grace {
			m.t.Fatalf("after a sweep %s is overdue by %v, want at most the grace", id, -left)
		}
	}
}

// holdsNoOrphans checks that the sets hold no orphans.
func (m *machine) holdsNoOrphans(names ...string) {
	m.t.Helper()
	for shard := range shards {
		for _, name := range names {
			members, err := m.rdb.ZRange(m.ctx, m.key(shard, name), 0, -1).Result()
			if err != nil {
				m.t.Fatal(err)
			}
			if unknown, _ := m.table.Unknown(m.ctx, members); len(unknown) > 0 {
				m.t.Fatalf("%s holds the orphans %q, want none", m.key(shard, name), unknown)
			}
		}
	}
}

// locations returns the locations of the tasks of all rows.
func (m *machine) locations() map[string]delay.Location {
	m.t.Helper()
	found, err := m.queue.Locate(m.ctx, m.table.ids)
	m.must(err)
	locations := map[string]delay.Location{}
	for i, p := range found {
		locations[m.table.ids[i]] = p
	}
	return locations
}

// Check reads the queue after each action.
func (m *machine) Check(t *rapid.T) {
	m.t = t
	m.locations()
	_, err := m.queue.Depth(m.ctx)
	m.must(err)
	_, err = m.queue.Owner(m.ctx, foreign[0])
	m.must(err)
	letters, err := m.queue.DeadLetters(m.ctx, 0, 100)
	m.must(err)
	if _, err := json.Marshal(letters); err != nil {
		t.Fatalf("JSON cannot hold %+v: %v", letters, err)
	}
}

// recovers checks that the queue works again when no other client writes to it any more.
func (m *machine) recovers() {
	m.sweep()
	inTime := map[string]bool{}
	for id, location := range m.locations() {
		if m.table.pending[id] && location.State == delay.Scheduled && location.Attempts == 0 &&
			m.table.left(id) >= 0 && m.table.left(id) <= lookahead {
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
	m.holdsNoOrphans("due", "leased", "dead")

	m.pass(2 * time.Hour) // past all deadlines
	m.sweep()
	for id, pending := range m.table.pending {
		if pending {
			m.t.Fatalf("%s is still pending after its deadline, the grace and a sweep", id)
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
		m.t.Fatalf("after all rows have ended the queue holds %+v, %v; want only dead letters", d, err)
	}
}

// drain runs the worker until no task is due.
func (m *machine) drain() {
	m.t.Helper()
	for shard := range shards {
		for n := 1; n > 0; {
			var err error
			if n, err = m.worker.RunOnce(m.ctx, shard); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}
