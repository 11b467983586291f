package shop_test

import (
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// TestDoctor causes one fault in each case. `shop doctor` must make all checks, and report only that fault.
func TestDoctor(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(t *testing.T, a *app.Process)
		want   []string // parts of the output
	}{
		"no fault": {func(*testing.T, *app.Process) {}, nil},
		"a newer schema": {func(t *testing.T, a *app.Process) {
			testenv.Exec(t, a.Pool, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`)
		}, []string{"warn  schema", "version 99999 of core"}},
		"Redis wiped": {func(t *testing.T, a *app.Process) {
			testenv.Must(t, a.Redis.FlushDB(t.Context()).Err())
		}, []string{"FAIL  tasks", "run the command reconcile"}},
		"no worker and a dead letter": {func(t *testing.T, a *app.Process) {
			bury(t, a.Kinds[0].Queue, "1")
			testenv.Must(t, a.Kinds[0].Queue.Schedule(t.Context(), delay.In("2", -time.Minute)))
		}, []string{"FAIL  worker", "1 tasks are due, the oldest for 1m", "is a worker running?; 1 dead letters"}},
		"a key that something else has written": {func(t *testing.T, a *app.Process) {
			testenv.Must(t, a.Redis.Set(t.Context(), "delay:{order.cancel:0}:attempts", "foreign", 0).Err())
		}, []string{"FAIL  keys", "delay:{order.cancel:0}:attempts is a string, want a hash"}},
		"no relay": {func(t *testing.T, a *app.Process) {
			testenv.Exec(t, a.Pool,
				`INSERT INTO outbox (kind, task_id, due_at, created_at)
					VALUES ($1, '1', now(), now() - interval '1 min')`, order.CancelKind)
		}, []string{"FAIL  outbox", "1 messages", "the oldest for 1m"}},
		"no reconciler": {func(t *testing.T, a *app.Process) {
			testenv.Exec(t, a.Pool,
				`UPDATE reconcile_reports
					SET report = jsonb_set(report::jsonb, '{started_at}', to_jsonb(now() - interval '1 hour'))`)
		}, []string{"FAIL  reconciler", "the last sweep was 1h0m"}},
		"an overdue order that is pending": {func(t *testing.T, a *app.Process) {
			pendingOrders(t, a, 1, -time.Hour)
		}, []string{"FAIL  invariants", "invariant 3: order"}},
	} {
		t.Run(name, func(t *testing.T) {
			databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
			a := openApp(t, databaseURL, redisURL, 1)
			pendingOrders(t, a, 1, time.Hour)
			_, err := a.Kinds[0].Reconciler.Sweep(t.Context())
			testenv.Must(t, err)
			test.damage(t, a)

			code, out := runDoctor(t, databaseURL, redisURL)
			failures := strings.Count(strings.Join(test.want, "\n"), "FAIL")
			if got := strings.Count(out, "FAIL"); code != failures || got != failures {
				t.Errorf("got exit code %d and %d failures, want %d of both; printed:\n%s", code, got, failures, out)
			}
			for _, part := range test.want {
				if !strings.Contains(out, part) {
					t.Errorf("printed:\n%s\nwant %q in it", out, part)
				}
			}
			for subject := range strings.FieldsSeq(`postgres schema statements privileges sessions durability commits
				redis keys eviction tasks worker outbox reconciler pages reminders invariants`) {
				if !strings.Contains(out, "  "+subject+" ") {
					t.Errorf("printed:\n%s\nwant a line about %s", out, subject)
				}
			}
		})
	}
}

// TestDoctorReadsAllRows has a unit that is sold and available: the books are wrong, and no order is.
func TestDoctorReadsAllRows(t *testing.T) {
	databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
	a := openApp(t, databaseURL, redisURL, 1)
	pendingOrders(t, a, 1, time.Hour)
	testenv.Exec(t, a.Pool, `UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer'`)
	_, err := order.NewStore(a.DB).Book(t.Context())
	testenv.Must(t, err)
	testenv.Exec(t, a.Pool, `WITH b AS (DELETE FROM stock_books) UPDATE products SET available = available + 1`)
	for flag, want := range map[string]string{"--full": "FAIL  invariants", "--full=false": "ok    invariants"} {
		if _, out := runDoctor(t, databaseURL, redisURL, flag); !strings.Contains(out, want) {
			t.Errorf("doctor %s prints:\n%s\nwant %q in it", flag, out, want)
		}
	}
}

// TestDoctorWithoutServers checks that the doctor names both servers, and the options with their addresses.
func TestDoctorWithoutServers(t *testing.T) {
	var out strings.Builder
	code := runCommand(t.Context(), []string{"doctor", "--database-url=postgres://shop@127.0.0.1:1/shop",
		"--redis-url=redis://127.0.0.1:2/0"}, &out)
	for _, want := range []string{
		"FAIL  postgres", "127.0.0.1:1", "is PostgreSQL running, and is SHOP_DATABASE_URL (--database-url) right?",
		"FAIL  redis", "127.0.0.1:2", "is Redis running, and is SHOP_REDIS_URL (--redis-url) right?",
	} {
		if code != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("the doctor exits with %d and prints %s, want 1 and %q", code, &out, want)
		}
	}
}

// bury makes a task a dead letter.
func bury(t *testing.T, q *delay.Queue, id string) {
	t.Helper()
	testenv.Must(t, q.Schedule(t.Context(), delay.In(id, 0)))
	batch, err := q.Claim(t.Context(), 0, 1, time.Minute)
	testenv.Must(t, err)
	_, err = q.Bury(t.Context(), batch, delay.Burial{ID: id})
	testenv.Must(t, err)
}
