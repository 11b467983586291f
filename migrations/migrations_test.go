package migrations_test

import (
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// empty returns a database without a schema.
func empty(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	exec(t, db, `DROP SCHEMA public CASCADE`)
	exec(t, db, `CREATE SCHEMA public`)
	return db
}

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// TestUp migrates from several processes at once: each file is applied by one of them.
func TestUp(t *testing.T) {
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
	if len(applied) != 3 {
		t.Errorf("applied %v, want each of the 3 files once", applied)
	}
	if err := migrations.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
	if again, err := migrations.Up(t.Context(), db); err != nil || len(again) > 0 {
		t.Errorf("a second time: %v, %v", again, err)
	}
}

// TestCheckChangesNothing looks at a database that was never migrated.
func TestCheckChangesNothing(t *testing.T) {
	db := empty(t)
	err := migrations.Check(t.Context(), db)
	version, ok := errors.AsType[*migrations.VersionError](err)
	if !ok || version.Have != 0 || version.Want == 0 || !strings.Contains(err.Error(), "shop migrate") {
		t.Errorf("Check: %v, want it to say what to run", err)
	}
	var tables int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables after a look (%v)", tables, err)
	}
}

// TestNewerSchemaIsLeftAlone: another version of the service has been here.
func TestNewerSchemaIsLeftAlone(t *testing.T) {
	db := empty(t)
	if _, err := migrations.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	_, upErr := migrations.Up(t.Context(), db)
	for _, err := range []error{migrations.Check(t.Context(), db), upErr} {
		if version, ok := errors.AsType[*migrations.VersionError](err); !ok || version.Have != 9999 {
			t.Errorf("%v, want that 9999 is newer", err)
		}
	}
}
