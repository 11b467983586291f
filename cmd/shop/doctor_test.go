package main

import (
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// TestDoctor breaks one thing after the other, and has the doctor find it.
func TestDoctor(t *testing.T) {
	for name, test := range map[string]struct {
		harm func(t *testing.T, a *app)
		want []string // what is said; nothing fails if it is empty
	}{
		"nothing": {func(*testing.T, *app) {}, nil},
		"Redis wiped": {func(t *testing.T, a *app) {
			must(t, a.rdb.FlushDB(t.Context()).Err())
		}, []string{"FAIL  tasks", "shop reconcile"}},
		"no worker": {func(t *testing.T, a *app) {
			must(t, a.queue.Schedule(t.Context(), delay.In("1", -time.Minute)))
		}, []string{"FAIL  worker", "1 tasks are due", "the oldest for 1m"}},
		"a dead letter": {func(t *testing.T, a *app) {
			bury(t, a, "1")
		}, []string{"FAIL  worker", "1 dead letters"}},
		"no worker, and a dead letter": {func(t *testing.T, a *app) {
			bury(t, a, "1")
			must(t, a.queue.Schedule(t.Context(), delay.In("2", -time.Minute)))
		}, []string{"is a worker running?; 1 dead letters"}},
		"no relay": {func(t *testing.T, a *app) {
			mustExec(t, a, `INSERT INTO outbox (kind, task_id, due_at, created_at) VALUES ($1, '1', now(), now() - interval '1 min')`, order.CancelKind)
		}, []string{"FAIL  outbox", "1 messages", "the oldest for 1m"}},
		"no reconciler": {func(t *testing.T, a *app) {
			mustExec(t, a, `UPDATE reconcile_reports SET report = jsonb_set(report::jsonb, '{started_at}', to_jsonb(now() - interval '1 hour'))`)
		}, []string{"FAIL  reconciler", "the last sweep was 1h0m"}},
		"stock": {func(t *testing.T, a *app) {
			mustExec(t, a, `UPDATE products SET available = available + 1, supply = supply + 2`)
		}, []string{"FAIL  invariants", "invariant 1: product"}},
		"an order that nobody cancels": {func(t *testing.T, a *app) {
			pendingOrders(t, a, 1, -time.Hour)
		}, []string{"FAIL  invariants", "invariant 3: order"}},
	} {
		t.Run(name, func(t *testing.T) {
			databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
			a := joinApp(t, databaseURL, redisURL, 1)
			pendingOrders(t, a, 1, time.Hour)
			sweep(t, a)
			test.harm(t, a)

			var out strings.Builder
			code := exitCode(run(t.Context(), []string{"doctor", "--database-url", databaseURL, "--redis-url", redisURL}, &out, &out), &out)
			if wrong := len(test.want) > 0; (code != 0) != wrong || strings.Count(out.String(), "FAIL") != min(1, len(test.want)) {
				t.Errorf("exit code %d, said:\n%s", code, out.String())
			}
			for _, part := range test.want {
				if !strings.Contains(out.String(), part) {
					t.Errorf("said:\n%s, want %q in it", out.String(), part)
				}
			}
		})
	}
}

// TestDoctorReadsDurability: another default of the database is no failure, but is said.
func TestDoctorReadsDurability(t *testing.T) {
	databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
	a := joinApp(t, databaseURL, redisURL, 1)
	sweep(t, a)
	for value, want := range map[string]string{
		"off":   "note  durability   synchronous_commit is off, but on in the shop's sessions",
		"local": "ok    durability   synchronous_commit is local, and on in the shop's sessions",
	} {
		mustExec(t, a, `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET synchronous_commit = `+value+`', current_database());
		END $$`)
		var out strings.Builder
		args := []string{"doctor", "--database-url", databaseURL, "--redis-url", redisURL}
		code := exitCode(run(t.Context(), args, &out, &out), &out)
		if code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("synchronous_commit=%s: exit code %d, said:\n%s, want %q in it", value, code, out.String(), want)
		}
		for _, setting := range []string{"fsync", "full_page_writes"} {
			if !strings.Contains(out.String(), "durability   "+setting+" is ") {
				t.Errorf("said nothing of %s:\n%s", setting, out.String())
			}
		}
	}
}

func TestAssess(t *testing.T) {
	for name, test := range map[string]struct {
		server order.Durability
		want   []string // the verdict of each setting, and a part of what is said
	}{
		"durable": {order.Durability{Fsync: "on", FullPageWrites: "on", SynchronousCommit: "on"}, []string{
			"ok: fsync is on", "ok: full_page_writes is on", "ok: synchronous_commit is on",
		}},
		"for tests": {order.Durability{Fsync: "off", FullPageWrites: "off", SynchronousCommit: "off"}, []string{
			"warn: fsync is off: if the server's machine crashes, committed orders can be lost",
			"warn: full_page_writes is off: if the server's machine crashes, committed orders can be lost",
			"note: synchronous_commit is off, but on in the shop's sessions",
		}},
		"one warning": {order.Durability{Fsync: "on", FullPageWrites: "off", SynchronousCommit: "remote_apply"}, []string{
			"ok: fsync is on", "warn: full_page_writes is off", "ok: synchronous_commit is remote_apply",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := assess(test.server)
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i, a := range got {
				if said := a.verdict + ": " + a.text; !strings.HasPrefix(said, test.want[i]) {
					t.Errorf("got %q, want %q", said, test.want[i])
				}
			}
		})
	}
}

// bury makes a dead letter.
func bury(t *testing.T, a *app, id string) {
	t.Helper()
	must(t, a.queue.Schedule(t.Context(), delay.In(id, 0)))
	batch, err := a.queue.Claim(t.Context(), 0, 1, time.Minute)
	must(t, err)
	_, err = a.queue.Bury(t.Context(), batch, delay.Burial{ID: id})
	must(t, err)
}
