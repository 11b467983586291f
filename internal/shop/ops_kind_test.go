package shop_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/doctor"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
)

const (
	secondKind = "test.second"
	noRowsSQL  = `SELECT $2::uuid AS id, $1::timestamptz AS due_at, $3::bigint AS left_us LIMIT least($4::bigint, 0)`
)

// withKind returns a process that serves the operators' API. It has the kinds of task of another process, and one
// more.
func withKind(t *testing.T, a *app.Process, name string, rows timeout.Rows) *app.Process {
	t.Helper()
	b := *a.Base
	b.Registry = prometheus.NewRegistry()
	b.Metrics = b.Registry
	more, err := app.NewKind(&b, name, rows, delay.WorkerConfig{})
	testenv.Must(t, err)
	kinds := append(slices.Clone(a.Kinds), more)
	orders := order.NewService(order.NewStore(a.DB), nil, order.Config{}, a.Log, b.Metrics)
	p, err := app.New(&b, kinds, ops.Part(&b, validOptions().Ops, kinds, a.Parts, orders.Where))
	testenv.Must(t, err)
	return p
}

// TestSeveralKinds has a process with a second kind: the operators' API, the doctor's checks and the sweeps include
// both.
func TestSeveralKinds(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	o := validOptions()
	p := withKind(t, a, secondKind, timeout.Rows{
		Pending: noRowsSQL,
		Ask:     func(context.Context, []uuid.UUID, timeout.Caller) ([]timeout.Result, error) { return nil, nil },
	})
	second := p.Kinds[1]
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	send := func(method, path string, answer any) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/ops/api"+path, http.NoBody)
		testenv.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+o.Ops.OpsToken)
		resp, err := server.Client().Do(req)
		testenv.Must(t, err)
		defer resp.Body.Close()
		if answer != nil {
			testenv.Must(t, json.NewDecoder(resp.Body).Decode(answer))
		}
		return resp.StatusCode
	}

	pendingOrders(t, a, 1, 100*time.Second) // within the look-ahead
	var report reconcile.Report
	if status := send("POST", "/reconcile", &report); status != http.StatusOK || report.Outcome != reconcile.OK ||
		report.Missing != 1 {
		t.Errorf("a sweep is answered with %d %+v, want 200 and one missing task", status, report)
	}
	for _, k := range p.Kinds {
		if last, _, err := k.Reconciler.Last(t.Context()); err != nil || last == nil {
			t.Errorf("the last report of %s is %v, %v; want one for each kind", k.Name, last, err)
		}
	}

	bury(t, a.Kinds[0].Queue, "1")
	bury(t, second.Queue, "2")
	testenv.Must(t, second.Queue.Schedule(t.Context(), delay.In("3", -time.Minute)))
	testenv.Exec(t, a.Pool, `INSERT INTO outbox (kind, task_id, due_at) VALUES ($1, '4', now()), ($2, '4', now())`,
		order.CancelKind, secondKind)
	var s struct {
		Queue struct {
			Scheduled, Due, Dead int64
			OldestDue            float64 `json:"oldest_due_seconds"`
		}
		Outbox    struct{ Backlog int64 }
		LastSweep *reconcile.Report `json:"last_sweep"`
	}
	send("GET", "/stats", &s)
	if q := s.Queue; q.Scheduled != 1 || q.Due != 1 || q.Dead != 2 || s.Outbox.Backlog != 2 {
		t.Errorf("stats are %+v with %d messages in the outbox, want 1 scheduled, 1 due and 2 dead tasks, and 2 messages", q, s.Outbox.Backlog)
	}
	if s.Queue.OldestDue < 59 || s.LastSweep == nil {
		t.Errorf("the oldest due task has waited %v s, want 60; the last sweep is %v", s.Queue.OldestDue, s.LastSweep)
	}
	if waited := parttest.Metrics(t, p.Registry)["delay_oldest_due_seconds "+secondKind]; waited < 59 {
		t.Errorf("the gauge of the oldest due task is %v, want 60", waited)
	}
	checks := doctor.Checks(p)
	check := func(subject string) error {
		return checks[slices.IndexFunc(checks, func(c app.Check) bool { return c.Subject == subject })].Run(t.Context())
	}
	err := check("worker")
	for _, want := range []string{order.CancelKind + ": 1 dead letters", secondKind + ": 1 tasks are due"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the doctor's check of tasks returns %v, want %q in it", err, want)
		}
	}

	var page struct{ Items []delay.DeadLetter }
	send("GET", "/dead-letters", &page)
	kinds := map[string]string{}
	for _, letter := range page.Items {
		kinds[letter.Kind] = letter.ID
	}
	if len(page.Items) != 2 || kinds[order.CancelKind] != "1" || kinds[secondKind] != "2" {
		t.Errorf("dead letters are %+v, want one of each kind", page.Items)
	}
	var problem rest.Problem
	if status := send("GET", "/dead-letters?limit=0&cursor=x", &problem); status != http.StatusBadRequest ||
		len(problem.Errors) != 2 {
		t.Errorf("two unknown parameters are answered with %d %+v, want 400 and an error for each", status, problem)
	}
	if status := send("POST", "/dead-letters/"+secondKind+"/1/redrive", nil); status != http.StatusNotFound {
		t.Errorf("redriving the task of another kind is answered with %d, want 404", status)
	}
	if status := send("POST", "/dead-letters/"+secondKind+"/2/redrive", nil); status != http.StatusNoContent {
		t.Errorf("a redrive is answered with %d, want 204", status)
	}

	testenv.Must(t, check("statements"))
	testenv.Exec(t, a.Pool, `ALTER TABLE orders RENAME due_at TO due`)
	if err := check("statements"); err == nil || !strings.Contains(err.Error(), `column "due_at" does not exist`) {
		t.Errorf("the check of the statements returns %v, want that it names the column that has another name", err)
	}
}
