package migrations_test

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// empty returns a database without a schema: TestMain passes no migrations to testenv.
func empty(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// TestConcurrentUpAppliesEachFileOnce calls Up from four sessions at the same time.
func TestConcurrentUpAppliesEachFileOnce(t *testing.T) {
	db := empty(t)
	var mu sync.Mutex
	var applied []string
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			names, err := migrations.Up(t.Context(), db)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied = append(applied, names...)
		})
	}
	all.Wait()
	files, err := filepath.Glob("*.sql")
	if err != nil || len(applied) != len(files) {
		t.Errorf("four concurrent calls of Up applied %v, want each of %v once", applied, files)
	}
	if err := migrations.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
	if again, err := migrations.Up(t.Context(), db); err != nil || len(again) > 0 {
		t.Errorf("Up on a migrated database applied %v, error %v; want no file and no error", again, err)
	}
}

// TestCheckChangesNothing checks a database that was never migrated.
func TestCheckChangesNothing(t *testing.T) {
	db := empty(t)
	err := migrations.Check(t.Context(), db)
	version, ok := errors.AsType[*migrations.VersionError](err)
	if !ok || version.Have != 0 || version.Want == 0 || !strings.Contains(err.Error(), "shop migrate") {
		t.Errorf("Check of an empty database: %v, want a VersionError from version 0 that names `shop migrate`", err)
	}
	var tables int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables after Check, error %v; want none", tables, err)
	}
}

// migrate moves the schema to a version, up or down.
func migrate(t *testing.T, db *sql.DB, to int64) {
	t.Helper()
	provider, err := goose.NewProvider(database.DialectPostgres, db, os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	have, err := provider.GetDBVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if have > to {
		_, err = provider.DownTo(t.Context(), to)
	} else {
		_, err = provider.UpTo(t.Context(), to)
	}
	if err != nil {
		t.Fatalf("migrate from version %d to %d: %v", have, to, err)
	}
}

// The versions before and after the migration of holds.
const (
	beforeHolds = 3
	withHolds   = 4
)

// orders returns the number of orders by status and reason, and their due times, relative to the placement.
func orders(t *testing.T, db *sql.DB, due string) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `
		SELECT concat_ws(' ', idempotency_key, status, cancel_reason), extract(epoch FROM `+due+` - created_at)::int FROM orders`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]string{}
	for rows.Next() {
		var order, due string
		if err := rows.Scan(&order, &due); err != nil {
			t.Fatal(err)
		}
		found[order] = due
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestOrdersSurviveTheMigrationOfHolds moves a database with orders in every state up, down and up again.
func TestOrdersSurviveTheMigrationOfHolds(t *testing.T) {
	db := empty(t)
	migrate(t, db, beforeHolds)
	exec(t, db, `INSERT INTO customers (id) VALUES ('00000000-0000-0000-0000-000000000001')`)
	const insert = `
		INSERT INTO orders (idempotency_key, id, customer_id, total_cents, currency, fingerprint, created_at, %s)
		SELECT o.key, gen_random_uuid(), '00000000-0000-0000-0000-000000000001', 1, 'EUR', '', timestamptz '2026-01-01 00:00Z', %s
		FROM (SELECT timestamptz '2026-01-01 00:00Z' AS t, interval '1 s' AS s) base, LATERAL (VALUES %s) o %s`
	old := fmt.Sprintf(insert, "expires_at, status, cancel_reason, paid_at, cancelled_at", "t + 100 * s, status, reason, paid, cancelled", `
		('pending', 'pending', NULL, NULL::timestamptz, NULL::timestamptz), ('paid', 'paid', NULL, t + 99 * s, NULL),
		('timed out', 'cancelled', 'timeout', NULL, t + 100 * s), ('cancelled', 'cancelled', 'customer', NULL, t + 50 * s)`,
		"(key, status, reason, paid, cancelled)")
	exec(t, db, old)

	migrate(t, db, withHolds)
	want := map[string]string{
		"pending pending": "100", "paid paid": "100", "timed out cancelled timeout": "100", "cancelled cancelled customer": "50",
	}
	if got := orders(t, db, "due_at"); !maps.Equal(got, want) {
		t.Errorf("after the migration the orders and their due times are %v, want %v", got, want)
	}
	exec(t, db, fmt.Sprintf(insert, "expires_at, hold_until, cancel_requested_at, extended_at, status, cancel_reason, paid_at, cancelled_at",
		"t + 100 * s, t + hold * s, t + requested * s, t + extended * s, status, reason, t + paid * s, t + cancelled * s", `
		('held', 150, NULL::int, NULL::int, 'pending', NULL, NULL::int, NULL::int),
		('held, being cancelled', 150, 20, NULL, 'pending', NULL, NULL, NULL),
		('released, being cancelled', NULL, 20, NULL, 'pending', NULL, NULL, NULL),
		('extended', NULL, NULL, 30, 'pending', NULL, NULL, NULL),
		('held, paid late', 150, NULL, NULL, 'paid', NULL, 120, NULL),
		('held, extended, paid', 150, NULL, 30, 'paid', NULL, 90, NULL),
		('held, being cancelled, paid', 150, 20, NULL, 'paid', NULL, 120, NULL),
		('held, timed out', 150, NULL, NULL, 'cancelled', 'timeout', NULL, 150),
		('held, cancelled', 150, 20, 10, 'cancelled', 'customer', NULL, 151),
		('released, timed out', NULL, NULL, NULL, 'cancelled', 'timeout', NULL, 130),
		('released, cancelled', NULL, 20, NULL, 'cancelled', 'customer', NULL, 130)`,
		"(key, hold, requested, extended, status, reason, paid, cancelled)"))
	exec(t, db, `
		INSERT INTO order_events (order_id, type, actor, at)
		SELECT o.id, e.type, e.actor, now() FROM orders o CROSS JOIN (VALUES ('placed', 'customer'), ('reminded', 'worker'), ('held', 'customer'),
			('released', 'provider'), ('extended', 'customer'), ('brought_forward', 'operator'), ('cancel_requested', 'customer')) e (type, actor)
		UNION ALL
		SELECT id, status, 'provider', now() FROM orders WHERE status <> 'pending'`)
	all := orders(t, db, "due_at")

	migrate(t, db, beforeHolds)
	down := orders(t, db, "expires_at")
	if len(down) != 15 || down["held, paid late paid"] != "150" || down["held, cancelled cancelled customer"] != "150" ||
		down["held pending"] != "150" || down["released, being cancelled pending"] != "100" {
		t.Errorf("after the way down the orders and their deadlines are %v, want 15 with the ends of their holds as deadlines", down)
	}
	exec(t, db, `UPDATE orders SET idempotency_key = 'again ' || idempotency_key`)
	exec(t, db, old) // the old constraints hold again

	migrate(t, db, withHolds)
	if up := orders(t, db, "due_at"); len(up) != len(all)+4 || up["again held, paid late paid"] != "150" || up["again released, cancelled cancelled customer"] != "20" {
		t.Errorf("after the way up the orders and their due times are %v, want those of %v, and 4 more", up, all)
	}
}

// TestNewerSchemaIsRejected marks the database as migrated by a later version of the service.
func TestNewerSchemaIsRejected(t *testing.T) {
	db := empty(t)
	if _, err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	_, upErr := migrations.Up(t.Context(), db)
	for _, err := range []error{migrations.Check(t.Context(), db), upErr} {
		if version, ok := errors.AsType[*migrations.VersionError](err); !ok || version.Have != 9999 {
			t.Errorf("got error %v, want a VersionError with version 9999", err)
		}
	}
}
