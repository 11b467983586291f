package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) {
	testenv.Main(m, migrations.Up)
}

var errDown = errors.New("down")

// fakeTable is a table in memory. It has pending rows that are not due, and other rows that are overdue.
type fakeTable struct {
	ids     []string
	left    []time.Duration // at the index of each id
	overdue []fate          // the id of an overdue row is its index
	took    time.Duration   // the time that each call of TimeOut takes
	failed  error           // the error of each call of TimeOut with a poisoned or slow row
	fails   map[string]bool // the methods that return errDown; "Overdue" is Pending with a negative within

	withins    []time.Duration   // the arguments within of the calls of Pending, without negative ones
	afters     []int             // the arguments after of the calls of Pending with a negative within, as indexes
	statements int               // the number of calls of TimeOut
	ended      map[int]time.Time // unless nil: when each overdue row was timed out, by its index
}

// fate is what happens to an overdue row when a statement tries to time it out.
type fate string

const (
	good     fate = "good"
	locked   fate = "locked"
	poisoned fate = "poisoned" // each statement on the row fails
	slow     fate = "slow"     // each statement on the row fails after 5 s, the statement_timeout
	done     fate = "done"     // the row has ended before
)

func rows(n int, f fate) []fate { return slices.Repeat([]fate{f}, n) }

// cursorAt returns the cursor with which the page begins whose first row has this index.
func cursorAt(index int) keyset.Cursor {
	return keyset.Cursor{At: time.Time{}.Add(time.Duration(index))}
}

func (f *fakeTable) Pending(
	_ context.Context, after keyset.Cursor, within time.Duration, limit int,
) (page []delay.Message, next keyset.Cursor, err error) {
	from := int(after.At.Sub(time.Time{}))
	if within < 0 {
		return f.overduePage(from, limit)
	}
	if f.fails["Pending"] {
		return nil, next, errDown
	}
	f.withins = append(f.withins, within)
	to := min(from+limit, len(f.ids))
	for i := from; i < to; i++ {
		page = append(page, delay.In(f.ids[i], f.left[i]))
	}
	if to < len(f.ids) {
		next = cursorAt(to)
	}
	return page, next, nil
}

func (f *fakeTable) overduePage(at, limit int) (page []delay.Message, next keyset.Cursor, err error) {
	f.afters = append(f.afters, at)
	if f.fails["Overdue"] {
		return nil, next, errDown
	}
	for ; at < len(f.overdue); at++ {
		if f.overdue[at] == done {
			continue
		}
		if len(page) == limit {
			return page, cursorAt(at), nil
		}
		page = append(page, delay.In(strconv.Itoa(at), -time.Hour))
	}
	return page, next, nil
}

func (f *fakeTable) TimeOut(ctx context.Context, ids []string) (timedOut, notTimedOut int, err error) {
	f.statements++
	indexes := make([]int, len(ids))
	is := map[fate]bool{}
	for i, id := range ids {
		indexes[i], _ = strconv.Atoi(id)
		is[f.overdue[indexes[i]]] = true
	}
	took := f.took
	if is[slow] {
		took = 5 * time.Second
	}
	if took > 0 {
		select {
		case <-time.After(took):
		case <-ctx.Done():
			return 0, 0, delay.Outage(ctx.Err(), false)
		}
	}
	if f.fails["TimeOut"] {
		return 0, 0, delay.Outage(errors.New("away"), false)
	}
	if is[poisoned] || is[slow] {
		return 0, 0, f.failed
	}
	for _, i := range indexes {
		switch f.overdue[i] {
		case good:
			timedOut++
			f.overdue[i] = done
			if f.ended != nil {
				f.ended[i] = time.Now()
			}
		case locked:
			notTimedOut++
		}
	}
	return timedOut, notTimedOut, nil
}

// count returns the number of overdue rows with a fate.
func (f *fakeTable) count(of fate) (n int) {
	for _, row := range f.overdue {
		if row == of {
			n++
		}
	}
	return n
}

// hook calls functions before and after each step of a queue. If before returns an error, the step returns this error.
// A step has the name of the method of the queue to which it belongs. The name is "" for the other commands, and for a
// command that repeats a step. The replication id of Redis is the one that replid returns.
type hook struct {
	before func(step string) error
	after  func(step string)
	replid func() string
}

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.before(stepOf(cmd)); err != nil {
			cmd.SetErr(err)
			return err
		}
		if info, ok := cmd.(*redis.InfoCmd); ok {
			info.SetVal(map[string]map[string]string{"Replication": {"master_replid": h.replid()}})
			return nil
		}
		defer h.after(stepOf(cmd))
		return next(ctx, cmd)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.before(stepOf(cmds[0])); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		defer h.after(stepOf(cmds[0]))
		return next(ctx, cmds)
	}
}

// stepOf returns the step to which a command belongs. The client sends a script with EVALSHA, and again with EVAL if
// Redis does not know it.
func stepOf(cmd redis.Cmder) string {
	switch cmd.Name() {
	case "mget":
		return "Intact"
	case "set":
		return "MarkIntact"
	case "evalsha":
		const scheduleKeys, locateKeys = 2, 4 // the number of keys of each script of a sweep
		switch cmd.Args()[2] {
		case scheduleKeys:
			return "Schedule"
		case locateKeys:
			return "Locate"
		}
	}
	return ""
}

// fixture is a table with its queue.
type fixture struct {
	table *fakeTable
	queue *delay.Queue
	rdb   redis.UniversalClient // without the hook

	fails  map[string]bool   // the steps of the queue that return errDown
	before func(step string) // called before each step of the queue
	after  func(step string) // called after each step of the queue, before the queue gets the reply
	replid atomic.Value      // the replication id of Redis, a string
	away   atomic.Bool       // no step of the queue is executed
}

// newFixture returns a table with n pending rows that are due in an hour, and a queue with their tasks.
func newFixture(t testing.TB, n int) *fixture {
	t.Helper()
	url := testenv.Redis(t)
	return fill(t, connect(t, url), connect(t, url), n)
}

// newSimulatedFixture is like newFixture, for use inside a synctest bubble. Its Redis runs in this process and uses the
// bubble's clock.
func newSimulatedFixture(t testing.TB, n int) *fixture {
	t.Helper()
	server := miniredis.NewMiniRedis()
	t.Cleanup(server.Close)
	simulated := func() redis.UniversalClient {
		return client(t,
			&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() }})
	}
	return fill(t, simulated(), simulated(), n)
}

// connect returns a client whose timeouts are longer than those of [delay.Connect]: a machine under load may stand
// still for seconds.
func connect(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	options, err := redis.ParseURL(url)
	testenv.Must(t, err)
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = time.Minute, time.Minute, time.Minute
	options.DialerRetries = 1
	return client(t, options)
}

// client returns a client that repeats no command and ends a command when its context ends, as that of [delay.Connect]
// does.
func client(t testing.TB, options *redis.Options) redis.UniversalClient {
	t.Helper()
	options.MaxRetries, options.ContextTimeoutEnabled, options.DisableIdentity = -1, true, true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	rdb := redis.NewClient(options)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// fill returns the fixture of two clients of an empty Redis. The queue uses the first client, which gets the hook.
func fill(t testing.TB, hooked, rdb redis.UniversalClient, n int) *fixture {
	t.Helper()
	f := &fixture{
		table: &fakeTable{fails: map[string]bool{}, failed: errDown},
		rdb:   rdb, fails: map[string]bool{},
		before: func(string) {}, after: func(string) {},
	}
	f.replid.Store("")
	hooked.AddHook(hook{
		before: func(step string) error {
			f.before(step)
			if f.away.Load() || f.fails[step] {
				return errDown
			}
			return nil
		},
		after:  func(step string) { f.after(step) },
		replid: func() string { return f.replid.Load().(string) },
	})
	f.queue = newQueue(t, hooked)
	msgs := make([]delay.Message, n)
	for i := range n {
		id := strconv.Itoa(i)
		f.table.ids, f.table.left = append(f.table.ids, id), append(f.table.left, time.Hour)
		msgs[i] = delay.In(id, time.Hour)
	}
	testenv.Must(t, f.queue.Schedule(t.Context(), msgs...))
	testenv.Must(t, f.queue.MarkIntact(t.Context()))
	return f
}

func newQueue(t testing.TB, rdb redis.UniversalClient) *delay.Queue {
	t.Helper()
	q, err := delay.NewQueue(rdb, "test.kind", 1)
	testenv.Must(t, err)
	return q
}

// key returns the name of a key of the queue.
func key(name string) string { return "delay:{test.kind:0}:" + name }

func (f *fixture) do(t testing.TB, args ...any) {
	t.Helper()
	if err := f.rdb.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// move moves a task from the due set to the given set (due, leased or dead). Its score is left after now.
func (f *fixture) move(t testing.TB, id, set string, left time.Duration) {
	t.Helper()
	now, err := f.rdb.Time(t.Context()).Result()
	testenv.Must(t, err)
	f.do(t, "ZREM", key("due"), id)
	f.do(t, "ZADD", key(set), now.Add(left).UnixMicro(), id)
}

func (f *fixture) wipe(t testing.TB) { f.do(t, "FLUSHDB") }

// intact reports whether the marker is set.
func (f *fixture) intact(t testing.TB) bool {
	t.Helper()
	n, err := f.rdb.Exists(t.Context(), key("marker")).Result()
	testenv.Must(t, err)
	return n == 1
}

func newTestReconciler(t testing.TB, f *fixture) *Reconciler {
	t.Helper()
	r, err := New(nil, "test.kind", f.table, f.queue, Config{}, slog.New(slog.DiscardHandler), nil)
	testenv.Must(t, err)
	return r
}

// sweepOnce sweeps without the lock, with a new reconciler, and checks that its metrics say what the report says. It
// returns the report without its times.
func sweepOnce(t testing.TB, f *fixture) Report {
	t.Helper()
	r := newTestReconciler(t, f)
	report := r.sweep(t.Context())
	r.metrics.observe(report)
	for reason, want := range map[string]int{
		"missing": report.Missing, "late": report.Late, "overdue": report.Overdue,
	} {
		if got := testutil.ToFloat64(r.metrics.repairs.WithLabelValues(reason)); got != float64(want) {
			t.Errorf("%v repairs with the reason %s are counted, want %d", got, reason, want)
		}
	}
	succeeded := report.Outcome == OK || report.Outcome == Partial
	if at := testutil.ToFloat64(r.metrics.lastOK); (at > 0) != succeeded {
		t.Errorf("the time of the last success is %v after the outcome %s", at, report.Outcome)
	}
	report.StartedAt, report.Took = time.Time{}, 0
	return report
}
