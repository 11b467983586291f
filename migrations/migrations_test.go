package migrations_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

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
