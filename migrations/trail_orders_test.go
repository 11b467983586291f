package migrations_test

import (
	"os"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// TestTrailSurvivesDownAndUp takes the migration of the audit trail back, and applies it again. The database has orders that were placed
// and ended before the migration, and others from after it.
func TestTrailSurvivesDownAndUp(t *testing.T) {
	const version = 23
	db := empty(t)
	provider, err := goose.NewProvider(database.DialectPostgres, db, os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	trails := func(source, sort string) (text string) {
		t.Helper()
		err := db.QueryRowContext(t.Context(), `
			SELECT string_agg(trail, '; ' ORDER BY trail) FROM (
				SELECT string_agg(t.type || ' ' || t.actor || ' ' || date_part('second', t.at), ', ' ORDER BY `+sort+`) AS trail
				FROM `+source+` t GROUP BY order_id
			) AS trails`).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := func(when, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s the trails are %q, want %q", when, got, want)
		}
	}
	const (
		older = "placed customer 0, held customer 1, paid provider 2"
		newer = "placed customer 0, extended customer 3, cancelled worker 4"
		open  = "placed customer 0, reminded worker 5"
	)
	if _, err := provider.UpTo(t.Context(), version-1); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO customers (id) SELECT '00000000-0000-0000-0000-000000000000'`)
	insert := `INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
		SELECT id::uuid, '00000000-0000-0000-0000-000000000000', 1, 'EUR', '2026-01-01 00:00:00Z', '2026-01-01 00:00:04Z' FROM `
	event := `INSERT INTO order_events (order_id, type, actor, at) VALUES `
	exec(t, db, insert+`(VALUES ('00000000-0000-0000-0000-000000000001')) AS v (id)`)
	exec(t, db, event+`
		('00000000-0000-0000-0000-000000000001', 'placed', 'customer', '2026-01-01 00:00:00Z'),
		('00000000-0000-0000-0000-000000000001', 'held', 'customer', '2026-01-01 00:00:01Z'),
		('00000000-0000-0000-0000-000000000001', 'paid', 'provider', '2026-01-01 00:00:02Z')`)
	exec(t, db, `UPDATE orders SET status = 'paid', paid_at = '2026-01-01 00:00:02Z'`)
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	want("after the way up", trails("order_trail", "number"), older)

	exec(t, db, insert+`(VALUES ('00000000-0000-0000-0000-000000000002'), ('00000000-0000-0000-0000-000000000003')) AS v (id)`)
	exec(t, db, event+`
		('00000000-0000-0000-0000-000000000002', 'extended', 'customer', '2026-01-01 00:00:03Z'),
		('00000000-0000-0000-0000-000000000003', 'reminded', 'worker', '2026-01-01 00:00:05Z')`)
	exec(t, db, `UPDATE orders SET status = 'cancelled', cancel_reason = 'timeout', cancelled_at = expires_at, ended_by = 'worker'
		WHERE id = '00000000-0000-0000-0000-000000000002'`)
	all := newer + "; " + older + "; " + open
	want("with newer orders", trails("order_trail", "number"), all)
	if _, err := provider.DownTo(t.Context(), version-1); err != nil {
		t.Fatal(err)
	}
	want("after the way down", trails("order_events", "id"), all)
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	want("after the second way up", trails("order_trail", "number"), all)
}
