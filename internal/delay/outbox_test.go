package delay

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

func newOutbox(t testing.TB) *Outbox {
	t.Helper()
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	return NewOutbox(db, "test.kind")
}

// write inserts outbox rows of a given age, due in an hour.
func write(t testing.TB, o *Outbox, age time.Duration, ids ...string) {
	t.Helper()
	testenv.Exec(t, o.db, `
		INSERT INTO outbox (kind, task_id, due_at, created_at)
		SELECT $1, id, now() + interval '1 hour', now() - $2 * interval '1 microsecond' FROM unnest($3::text[]) AS id`,
		o.kind, age.Microseconds(), ids)
}

func backlog(t testing.TB, o *Outbox) int64 {
	t.Helper()
	n, _, err := o.Backlog(t.Context())
	testenv.Must(t, err)
	return n
}

func newRelay(q *Queue, o *Outbox) *Relay { return NewRelay(q, o, quiet(), nil) }

func TestRelayPublishesMessagesOlderThanTheGrace(t *testing.T) {
	o, q := newOutbox(t), newQueue(t, newRedis(t), 1)
	write(t, o, time.Hour, "a", "b")
	write(t, o, 0, "young")
	other := NewOutbox(o.db, "other.kind")
	write(t, other, time.Hour, "theirs")

	r := newRelay(q, o)
	r.grace = time.Minute
	if n, _, err := r.runOnce(t.Context()); n != 2 || err != nil {
		t.Fatalf("relayed %d messages, %v; want 2", n, err)
	}
	locations, err := q.Locate(t.Context(), []string{"a", "b", "young", "theirs"})
	testenv.Must(t, err)
	for i, want := range []TaskState{Scheduled, Scheduled, Absent, Absent} {
		if locations[i].State != want {
			t.Errorf("task %d is %+v, want state %v", i, locations[i], want)
		}
	}
	if left := locations[0].Left; left < 55*time.Minute || left > time.Hour {
		t.Errorf("due in %v, want a little less than an hour", left)
	}
	if n := backlog(t, o); n != 1 {
		t.Errorf("%d rows are left, want only the young one", n)
	}
	if n, _, err := r.runOnce(t.Context()); n != 0 || err != nil {
		t.Errorf("the second run relayed %d messages, %v; want 0", n, err)
	}
}

// TestOutboxPlans plans the statements on the outbox with the statistics of an empty table, which it mostly is. A
// backlog can grow before the next statistics. Joined in another order, one statement of the relay took 46 s with a
// backlog of 100,000.
func TestOutboxPlans(t *testing.T) {
	testenv.Slow(t, "fills the outbox")
	t.Parallel()
	// These are the settings of postgres.IndexPlans that choose plans.
	const settings = "&plan_cache_mode=force_generic_plan&enable_seqscan=off&random_page_cost=1.1"
	db, err := sql.Open("pgx", testenv.Postgres(t)+settings)
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	o := NewOutbox(db, "test.kind")
	fill := func() {
		testenv.Exec(t, db, `INSERT INTO outbox (kind, task_id, due_at)
			SELECT $1, gen_random_uuid(), now() FROM generate_series(1, 10000)`, o.kind)
	}
	check := func(state string) {
		t.Helper()
		for name, test := range map[string]struct{ statement, params, index string }{
			"take": {takeSQL, "'test.kind', 0, 500, 0",
				`outbox_oldest on outbox .*\n.*Index Cond: \(\(kind = \$1\) AND \(created_at <= `},
			"delete": {deleteSQL, "'test.kind', '{a}', '{now}'",
				`(?s)outbox_pkey on outbox outbox_1 .*Index Cond: \(\(kind = \$1\) AND \(task_id = .*Tid Scan on outbox`},
		} {
			plan := testenv.Explain(t, db, test.statement, test.params)
			if !regexp.MustCompile(test.index).MatchString(plan) {
				t.Errorf("%s, %s: the plan is not %s:\n%s", state, name, test.index, plan)
			}
		}
	}
	check("no statistics")
	testenv.Exec(t, db, `ANALYZE outbox`)
	check("statistics of an empty table")
	fill()
	testenv.Exec(t, db, `DELETE FROM outbox`)
	testenv.Exec(t, db, `ANALYZE outbox`)
	check("statistics of dead rows")
	fill()
	testenv.Exec(t, db, `ANALYZE outbox`)
	check("statistics of a backlog")
}

// TestRelayCrash lets the relay's publish fail, and then ends its transaction between the publish and the commit. The
// rows stay in the outbox.
func TestRelayCrash(t *testing.T) {
	o := newOutbox(t)
	write(t, o, time.Hour, "a", "b", "c")
	down := errors.New("redis is down")
	if _, _, err := o.take(t.Context(), 0, 2, 0, func([]Message) ([]Message, error) { return nil, down }); !errors.Is(err, down) {
		t.Errorf("take returned %v, want the error of publish", err)
	}
	if n := backlog(t, o); n != 3 {
		t.Errorf("%d rows after a failed publish, want 3", n)
	}
	// The relay has published, but dies before the commit.
	ctx, cancel := context.WithCancel(t.Context())
	publish := func(msgs []Message) ([]Message, error) { cancel(); return msgs, nil }
	if _, _, err := o.take(ctx, 0, 2, 0, publish); err == nil {
		t.Error("take returned no error under a cancelled context")
	}
	testenv.Eventually(t, "rows back after the rollback", func() bool { return backlog(t, o) == 3 })
}

func TestRelaysShareTheOutbox(t *testing.T) {
	const rows = 2000
	o, q := newOutbox(t), newQueue(t, newRedis(t), 4)
	var ids []string
	for i := range rows {
		ids = append(ids, strconv.Itoa(i))
	}
	write(t, o, time.Hour, ids...)
	var relays sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 3 {
		relays.Go(func() {
			r := newRelay(q, o)
			r.batch = 50
			for {
				n, _, err := r.runOnce(t.Context())
				if err != nil {
					t.Error(err)
				}
				if n == 0 {
					return
				}
				mu.Lock()
				total += n
				mu.Unlock()
			}
		})
	}
	relays.Wait()
	if total != rows {
		t.Errorf("relayed %d messages, want each of %d once", total, rows)
	}
	if d := depth(t, q); d.Scheduled != rows {
		t.Errorf("depth %+v, want %d scheduled", d, rows)
	}
}

// TestRelaySkipsLockedRows has another relay hold the oldest row. The relay publishes the other one, and does not
// wait.
func TestRelaySkipsLockedRows(t *testing.T) {
	o, q := newOutbox(t), newQueue(t, newRedis(t), 1)
	write(t, o, 2*time.Hour, "locked")
	write(t, o, time.Hour, "free")
	testenv.HoldLock(t, o.db, `SELECT FROM outbox WHERE task_id = 'locked' FOR UPDATE`)
	if n, _, err := newRelay(q, o).runOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("relayed %d messages, %v; want the one that is free", n, err)
	}
}

// TestBadShardDelaysNoOther has the key of a shard have a wrong type, and more messages of that shard in the outbox
// than a batch has. The messages of the other shard reach Redis, by the relay and by the publisher.
func TestBadShardDelaysNoOther(t *testing.T) {
	o, q := newOutbox(t), newQueue(t, newRedis(t), 2)
	var bad, good []string
	for i := 0; len(bad) < 50 || len(good) < 50; i++ {
		if id := strconv.Itoa(i); q.shardOf(id) == 0 {
			bad = append(bad, id)
		} else {
			good = append(good, id)
		}
	}
	do(t, q, "SET", q.shards[0].due, "foreign")
	write(t, o, 2*time.Hour, bad...)
	write(t, o, time.Hour, good...)
	r := newRelay(q, o)
	r.batch, r.interval, r.maxBackoff = 20, time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	testenv.Eventually(t, "the outbox has the messages of the bad shard only",
		func() bool { return backlog(t, o) == int64(len(bad)) })

	p := newPublisher(q, o, time.Minute)
	for range breakerFailures + 1 {
		if p.Publish(t.Context(), In(bad[0], time.Hour), In(good[0], time.Hour)) {
			t.Error("a message of the bad shard is published")
		}
	}
	if got := results(p); got["ok"] != breakerFailures+1 || got["failed"] != breakerFailures || got["breaker_open"] != 1 {
		t.Errorf("results are %v, want all messages of the good shard published, and the breaker of the other one open", got)
	}
	do(t, q, "DEL", q.shards[0].due)
	testenv.Eventually(t, "drained outbox", func() bool { return backlog(t, o) == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// newPublisher returns a publisher with a budget.
func newPublisher(q *Queue, o *Outbox, budget time.Duration) *Publisher {
	p := NewPublisher(q, o, quiet(), nil)
	p.budget = budget
	return p
}

func results(p *Publisher) map[string]float64 {
	counts := map[string]float64{}
	for _, result := range []string{"ok", "failed", "breaker_open"} {
		if n := testutil.ToFloat64(p.results.WithLabelValues(result)); n > 0 {
			counts[result] = n
		}
	}
	return counts
}

// TestPublishThenDelete publishes messages, two of them in one round trip, and deletes their rows afterwards.
func TestPublishThenDelete(t *testing.T) {
	rdb := newRedis(t)
	o, q := newOutbox(t), newQueue(t, rdb, 1)
	write(t, o, 0, "a", "b", "c", "d")
	p := newPublisher(q, o, 30*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	if !p.Publish(t.Context(), In("a", time.Hour)) {
		t.Fatal("a was not published")
	}
	counter := &trips{}
	rdb.AddHook(counter)
	if !p.Publish(t.Context(), In("b", time.Hour), In("d", time.Hour)) {
		t.Fatal("b and d were not published")
	}
	if n := counter.n.Load(); n != 1 {
		t.Errorf("Publish took %d round trips, want 1: Redis knows the script", n)
	}
	testenv.Eventually(t, "rows of published messages deleted", func() bool { return backlog(t, o) == 1 })

	// Run deletes the rows of the last messages before it returns.
	cancel()
	if !p.Publish(ctx, In("c", time.Hour)) { // a cancelled context does not abort the publish
		t.Fatal("c was not published")
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	p.flush(t.Context())
	if n := backlog(t, o); n != 0 {
		t.Errorf("%d rows are left, want none", n)
	}
	if d, got := depth(t, q), results(p); d.Scheduled != 4 || got["ok"] != 4 {
		t.Errorf("depth %+v, and %v messages are counted as ok; want 4 scheduled and counted", d, got["ok"])
	}
}

// upsert owes a task that is due in the given time, as a statement of a domain does, and returns its message. A row
// that exists keeps the earlier due time.
func upsert(t testing.TB, o *Outbox, id string, in time.Duration) Message {
	t.Helper()
	var due, now time.Time
	err := o.db.QueryRowContext(t.Context(), `
		INSERT INTO outbox (kind, task_id, due_at)
		VALUES ($1, $2, clock_timestamp() + $3 * interval '1 microsecond')
		ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
		RETURNING due_at, clock_timestamp()`, o.kind, id, in.Microseconds()).Scan(&due, &now)
	testenv.Must(t, err)
	return At(id, due, now)
}

// TestRowPulledForwardBetweenPublishAndDelete moves the due time of a row forward after the publisher has published
// the row, and before the publisher deletes it. The row must stay: otherwise Redis would deliver the task at its old
// due time.
func TestRowPulledForwardBetweenPublishAndDelete(t *testing.T) {
	o, q := newOutbox(t), newQueue(t, newRedis(t), 1)
	p := newPublisher(q, o, 30*time.Second)
	for _, id := range []string{"pulled", "kept"} {
		if !p.Publish(t.Context(), upsert(t, o, id, time.Hour)) { // without Run: the deletion waits
			t.Fatalf("%s was not published", id)
		}
	}
	pulled := upsert(t, o, "pulled", time.Minute)
	p.flush(t.Context())
	if n := backlog(t, o); n != 1 {
		t.Fatalf("%d rows after the deletion of the first messages, want the row that was pulled forward", n)
	}

	// The relay publishes the row, if the program that pulled it forward dies before it does.
	relay := newRelay(q, o)
	relay.grace = time.Nanosecond
	if n, _, err := relay.runOnce(t.Context()); n != 1 || err != nil {
		t.Fatalf("the relay published %d messages, %v; want 1", n, err)
	}
	if left := leftOf(t, q, "pulled"); left > time.Minute {
		t.Errorf("the task is due in %v, want at most a minute", left)
	}

	// The program publishes it: its deletion, for the earlier due time, removes the row.
	upsert(t, o, "pulled", 2*time.Minute)
	upsert(t, o, "pulled", time.Until(pulled.Due()))
	p.Publish(t.Context(), pulled)
	p.flush(t.Context())
	if n := backlog(t, o); n != 0 {
		t.Errorf("%d rows are left, want none: the row is not due earlier than the published message", n)
	}
}

// leftOf returns the time until a scheduled task is due.
func leftOf(t testing.TB, q *Queue, id string) time.Duration {
	t.Helper()
	locations, err := q.Locate(t.Context(), []string{id})
	if err != nil || locations[0].State != Scheduled {
		t.Fatalf("task %s is %+v, %v; want it scheduled", id, locations, err)
	}
	return locations[0].Left
}

// TestDeleteComparesDueTimes checks which rows the publisher deletes after it has published a message.
func TestDeleteComparesDueTimes(t *testing.T) {
	o := newOutbox(t)
	for name, test := range map[string]struct {
		message func(row Message) Message // of the row that exists when it is deleted
		deleted bool
	}{
		"the row's due time":         {func(row Message) Message { return row }, true},
		"an earlier due time":        {func(row Message) Message { return At(row.ID, row.rowDue.Add(-time.Microsecond), row.rowDue) }, true},
		"a due time 1 µs later":      {func(row Message) Message { return At(row.ID, row.rowDue.Add(time.Microsecond), row.rowDue) }, false},
		"no due time of a row":       {func(row Message) Message { return In(row.ID, time.Hour) }, true},
		"the id of another task":     {func(row Message) Message { return At("other", row.rowDue, row.rowDue) }, false},
		"another task, no due times": {func(Message) Message { return In("other", 0) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			row := upsert(t, o, name, time.Minute)
			before := backlog(t, o)
			testenv.Must(t, o.Delete(t.Context(), []Message{test.message(row)}))
			if deleted := backlog(t, o) < before; deleted != test.deleted {
				t.Errorf("the row was deleted: %v, want %v", deleted, test.deleted)
			}
		})
	}
}

// TestDeleteSkipsLockedRows has a transaction pull a row forward while the publisher deletes it. The publisher does
// not wait for the transaction, and the row stays.
func TestDeleteSkipsLockedRows(t *testing.T) {
	o := newOutbox(t)
	free, locked := upsert(t, o, "free", time.Hour), upsert(t, o, "locked", time.Hour)
	commit := testenv.HoldLock(t, o.db, `UPDATE outbox SET due_at = now() WHERE task_id = 'locked'`)
	testenv.Must(t, o.Delete(t.Context(), []Message{locked, free}))
	commit()
	if n := backlog(t, o); n != 1 {
		t.Errorf("%d rows are left, want the row that was locked", n)
	}
	testenv.Must(t, o.Delete(t.Context(), []Message{locked}))
	if n := backlog(t, o); n != 1 {
		t.Errorf("%d rows are left, want the row that was pulled forward", n)
	}
}

// TestBreaker publishes while Redis is down. A few publishes try Redis, then the breaker is open, which is logged
// once. The outbox keeps every row.
func TestBreaker(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	o, q := newOutbox(t), newQueue(t, connect(t, server.URL()), 1)
	testenv.Must(t, server.Kill())
	write(t, o, 0, "a")
	var lines testenv.LogBuffer
	p := NewPublisher(q, o, slog.New(slog.NewTextHandler(&lines, nil)), nil)
	for range breakerFailures {
		if p.Publish(t.Context(), In("a", time.Hour)) {
			t.Fatal("Publish succeeded while Redis was down")
		}
	}
	for range 100 {
		p.Publish(t.Context(), In("a", time.Hour))
	}
	// On a slow machine the breaker may let one or two further publishes try Redis.
	if got := results(p); got["ok"] != 0 || got["failed"] < breakerFailures || got["breaker_open"] < 50 {
		t.Errorf("results %v, want about %d failed and 100 breaker_open", got, breakerFailures)
	}
	testenv.Eventually(t, "the breaker has let another publish try Redis", func() bool {
		p.Publish(t.Context(), In("a", time.Hour))
		return results(p)["failed"] > breakerFailures
	})
	if n := backlog(t, o); n != 1 {
		t.Errorf("%d rows, want the row of the message that is not in Redis", n)
	}
	testenv.Must(t, server.Restart(t.Context()))
	testenv.Eventually(t, "the breaker is closed", func() bool { return p.Publish(t.Context(), In("a", time.Hour)) })
	log := lines.String()
	if n := strings.Count(log, "not published"); n != breakerFailures-1 {
		t.Errorf("%d publishes are logged as failed, want the %d before the breaker opened", n, breakerFailures-1)
	}
	if strings.Count(log, "breaker opened") != 1 || strings.Count(log, "breaker closed") != 1 {
		t.Errorf("want one line when the breaker opens and one when it closes, found:\n%s", log)
	}
}

// hungRedis returns a client of a server that accepts connections and never answers.
func hungRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	t.Cleanup(func() { hung.Close() })
	return connect(t, "redis://"+hung.Addr().String())
}

// TestBudgetHoldsOnAHungRedis publishes to a server that never answers.
func TestBudgetHoldsOnAHungRedis(t *testing.T) {
	q := newQueue(t, hungRedis(t), 1)
	p := newPublisher(q, newOutbox(t), 50*time.Millisecond)
	began := time.Now()
	if p.Publish(t.Context(), In("a", time.Hour)) {
		t.Fatal("Publish succeeded on a Redis that does not answer")
	}
	// The limit is far above the budget, for a loaded machine, and below the client's own timeouts of a minute.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v with a budget of 50 ms", took)
	}
}

// TestRelayOnAHungDatabase connects a relay to a database that does not answer. The relay gives up at its timeout, so
// that it tries again.
func TestRelayOnAHungDatabase(t *testing.T) {
	r := newRelay(newQueue(t, hungRedis(t), 1), NewOutbox(testenv.HungDB(t), "test.kind"))
	r.timeout = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := r.runOnce(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("runOnce returns %v, and 30 s have passed: %v; want an error after 50 ms", err, ctx.Err() != nil)
	}
}
