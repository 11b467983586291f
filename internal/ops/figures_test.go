package ops

import (
	"encoding/json"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

type percentiles struct {
	Count int
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

type bucket struct {
	Below              *float64 `json:"below_seconds"`
	Worker, Reconciler int
}

// TestFiguresOfATable reads the figures of a table whose columns have names of their own: of an empty one, and then
// with rows that are pending, and with timeouts by both actors. One timeout has a bound of a bucket, and one was long
// ago.
func TestFiguresOfATable(t *testing.T) {
	_, db := parttest.OpenDB(t, testenv.Postgres(t), 1)
	testenv.Exec(t, db, `CREATE TABLE seats (id uuid DEFAULT gen_random_uuid(), status text, held_until timestamptz,
		freed_at timestamptz, freed_by text)`)
	parts := app.Parts{{Figures: map[string]string{
		"seats": app.BacklogOf("seats", "held_until"),
		"lateness": app.LatenessOf(`SELECT freed_by AS actor, held_until AS due_at, freed_at AS ended_at FROM seats
			WHERE freed_at IS NOT NULL`),
	}}}
	var seats struct {
		Pending int
		Overdue float64 `json:"oldest_overdue_seconds"`
	}
	var lateness struct {
		Worker, Reconciler percentiles
		Histogram          []bucket
	}
	read := func() {
		figures, err := readFigures(t.Context(), db, parts)
		testenv.Must(t, err)
		testenv.Must(t, json.Unmarshal(figures["seats"].(json.RawMessage), &seats))
		testenv.Must(t, json.Unmarshal(figures["lateness"].(json.RawMessage), &lateness))
	}
	read()
	if seats.Pending != 0 || seats.Overdue != 0 || lateness.Worker != (percentiles{}) || len(lateness.Histogram) != 14 {
		t.Errorf("without rows the figures are %+v and %+v, want zeros and 14 buckets", seats, lateness)
	}
	testenv.Exec(t, db, `INSERT INTO seats (status, held_until) VALUES
		('pending', now() - interval '1 min'), ('pending', now() + interval '1 h'),
		('pending', now() + interval '2 h')`)
	testenv.Exec(t, db, `
		INSERT INTO seats (status, held_until, freed_at, freed_by) SELECT 'free', now() - ago - late, now() - ago, actor
		FROM (VALUES ('worker', interval '1 ms', interval '1 min'), ('worker', '3 ms', '2 min'),
		             ('worker', '2 ms', '0'), ('reconciler', '1 min', '3 min'), ('worker', '1 h', '2 h'))
		     AS timeouts (actor, late, ago)`)
	read()
	if seats.Pending != 3 || seats.Overdue < 60 || seats.Overdue > 600 {
		t.Errorf("the backlog is %+v, want 3 seats, one of them overdue for a minute", seats)
	}
	if want := (percentiles{3, 0.002, 0.00298, 0.003}); lateness.Worker != want {
		t.Errorf("the lateness of the worker is %+v, want %+v", lateness.Worker, want)
	}
	if want := (percentiles{1, 60, 60, 60}); lateness.Reconciler != want {
		t.Errorf("the lateness of the reconciler is %+v, want %+v", lateness.Reconciler, want)
	}
	want := map[float64]bucket{0.002: {Worker: 1}, 0.005: {Worker: 2}, 0: {Reconciler: 1}}
	for i, b := range lateness.Histogram {
		below := 0.0
		if b.Below != nil {
			below, b.Below = *b.Below, nil
		}
		if b != want[below] || (below == 0) != (i == 13) {
			t.Errorf("the bucket below %v s is %+v, want %+v; 0 is the last one", below, b, want[below])
		}
	}
}
