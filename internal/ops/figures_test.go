package ops

import (
	"encoding/json"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestFiguresOfATable reads the figures of a table whose columns have names of their own.
func TestFiguresOfATable(t *testing.T) {
	_, db := parttest.OpenDB(t, testenv.Postgres(t), 1)
	testenv.Exec(t, db, `CREATE TABLE seats (id uuid, status text, held_until timestamptz, freed_at timestamptz)`)
	testenv.Exec(t, db, `INSERT INTO seats VALUES
		(gen_random_uuid(), 'pending', now() - interval '1 min', NULL), (gen_random_uuid(), 'pending', now() + interval '1 h', NULL),
		(gen_random_uuid(), 'free', now() - interval '10 s', now()), (gen_random_uuid(), 'free', now() - interval '2 h', now() - interval '2 h')`)
	parts := app.Parts{{Figures: map[string]string{
		"seats": app.BacklogOf("seats", "held_until"),
		"lateness": app.LatenessOf(
			`SELECT 'worker' AS actor, held_until AS due_at, freed_at AS ended_at FROM seats
				WHERE freed_at IS NOT NULL`),
	}}}
	figures, err := readFigures(t.Context(), db, parts)
	testenv.Must(t, err)
	var seats struct {
		Pending int
		Overdue float64 `json:"oldest_overdue_seconds"`
	}
	testenv.Must(t, json.Unmarshal(figures["seats"].(json.RawMessage), &seats))
	if seats.Pending != 2 || seats.Overdue < 60 || seats.Overdue > 120 {
		t.Errorf("the backlog is %+v, want 2 seats, one of them overdue for a minute", seats)
	}
	var lateness struct {
		Worker struct {
			Count int
			Max   float64 `json:"max_seconds"`
		}
	}
	testenv.Must(t, json.Unmarshal(figures["lateness"].(json.RawMessage), &lateness))
	if lateness.Worker.Count != 1 || lateness.Worker.Max != 10 {
		t.Errorf("the lateness is %+v, want one timeout in the last hour, 10 s late", lateness)
	}
}
