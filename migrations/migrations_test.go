package migrations_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"example.com/shop/internal/postgres"
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

// schema returns what the migrations created, a line each, without the order of a table's columns.
func schema(t *testing.T, db *sql.DB) (lines string) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `
		WITH relation AS (
			SELECT oid, relname, relkind, reloptions FROM pg_class
			WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose_db_version%'
		)
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT concat_ws(' ', 'relation', relname, relkind, reloptions::text) FROM relation
			UNION ALL
			SELECT concat_ws(' ', 'column', relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
				pg_get_expr(adbin, adrelid))
			FROM pg_attribute JOIN relation ON relation.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
			WHERE attnum > 0 AND NOT attisdropped
			UNION ALL
			SELECT concat_ws(' ', 'constraint', relname, conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN relation ON relation.oid = conrelid
			UNION ALL
			SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN relation ON relation.oid = indexrelid
			UNION ALL
			SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g JOIN relation ON relation.oid = tgrelid WHERE NOT tgisinternal
			UNION ALL
			SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')
			UNION ALL
			SELECT concat_ws(' ', 'type', typname, array(SELECT enumlabel FROM pg_enum WHERE enumtypid = y.oid ORDER BY enumsortorder)::text)
			FROM pg_type y WHERE typnamespace = 'public'::regnamespace AND typtype IN ('e', 'd')
		) found (line)`).Scan(&lines)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestDownUndoesUp applies the files one after the other, then takes each one back, and applies all of them again.
func TestDownUndoesUp(t *testing.T) {
	db := empty(t)
	provider, err := goose.NewProvider(database.DialectPostgres, db, os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	after := []string{schema(t, db)} // the schema after each number of files
	for range provider.ListSources() {
		if _, err := provider.UpByOne(t.Context()); err != nil {
			t.Fatal(err)
		}
		after = append(after, schema(t, db))
	}
	last := len(after) - 1
	for n := last; n > 0; n-- {
		down, err := provider.Down(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := schema(t, db); got != after[n-1] || got == after[n] {
			t.Errorf("after the way down of %s the schema is\n%s\nwant that before its way up:\n%s", down.Source.Path, got, after[n-1])
		}
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := schema(t, db); got != after[last] {
		t.Errorf("after the second way up the schema is\n%s\nwant that after the first one:\n%s", got, after[last])
	}
}

// binary returns the files of a binary with some migrations. Each of them creates a table.
func binary(versions ...int) fstest.MapFS {
	files := fstest.MapFS{}
	for _, v := range versions {
		statements := fmt.Sprintf("-- +goose Up\nCREATE TABLE part_%[1]d ();\n-- +goose Down\nDROP TABLE part_%[1]d;\n", v)
		files[fmt.Sprintf("%05d_part.sql", v)] = &fstest.MapFile{Data: []byte(statements)}
	}
	return files
}

// TestBinariesWithOtherMigrations migrates a database with one binary, then checks and migrates it with another one. At
// the end processes of both binaries must be able to work with it, as in a rolling update and after a rollback.
func TestBinariesWithOtherMigrations(t *testing.T) {
	for name, test := range map[string]struct {
		first, second fstest.MapFS
		check         string   // the error of Check; "": none
		works         bool     // a process of the second binary starts before its migration
		applied       []string // by the second binary
		rejected      bool     // the second binary does not migrate
	}{
		"the same":                         {binary(1, 2), binary(1, 2), "", true, nil, false},
		"a database without a schema":      {nil, binary(1, 2, 4), "the database lacks migrations 1, 2 and 4 of this binary: run `shop migrate`", false, []string{"00001_part.sql", "00002_part.sql", "00004_part.sql"}, false},
		"a newer binary":                   {binary(1, 2), binary(1, 2, 3, 4), "the database lacks migrations 3 and 4 of this binary: run `shop migrate`", false, []string{"00003_part.sql", "00004_part.sql"}, false},
		"an older binary":                  {binary(1, 2, 3), binary(1, 2), "the database has schema version 3, newer than version 2 of this binary: use a newer shop binary", true, nil, true},
		"a part left out":                  {binary(1, 2, 3), binary(1, 3), "", true, nil, false},
		"a part left out, another added":   {binary(1, 2, 3), binary(1, 3, 4), "the database lacks migration 4 of this binary: run `shop migrate`", false, []string{"00004_part.sql"}, false},
		"a part added with a lower number": {binary(1, 3), binary(1, 2, 3), "the database lacks migration 2 of this binary: run `shop migrate`", false, []string{"00002_part.sql"}, false},
		"each lacks a migration":           {binary(1, 3), binary(1, 2), "the database has schema version 3, newer than version 2 of this binary, and lacks migration 2 of this binary: use a shop binary that has all of them", false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			db := empty(t)
			if test.first != nil {
				if _, err := migrations.UpFrom(t.Context(), db, test.first); err != nil {
					t.Fatal(err)
				}
			}
			before := schema(t, db)
			err := migrations.CheckFrom(t.Context(), db, test.second)
			if text := message(err); text != test.check {
				t.Errorf("Check returns %q, want %q", text, test.check)
			}
			if works(err) != test.works {
				t.Errorf("a process of the second binary starts: %v, want %v", works(err), test.works)
			}
			if after := schema(t, db); after != before {
				t.Errorf("Check changes the schema to\n%s\nwant\n%s", after, before)
			}
			applied, err := migrations.UpFrom(t.Context(), db, test.second)
			if (err != nil) != test.rejected || test.rejected && err.Error() != test.check || !slices.Equal(applied, test.applied) {
				t.Errorf("Up applies %v, error %v; want %v, rejected %v", applied, err, test.applied, test.rejected)
			}
			if changed := schema(t, db) != before; changed != (test.applied != nil) {
				t.Errorf("Up changes the schema: %v, want %v", changed, !changed)
			}
			if err := migrations.CheckFrom(t.Context(), db, test.second); !test.rejected && err != nil {
				t.Errorf("after Up Check of the second binary returns %v", err)
			}
			if test.first == nil {
				return
			}
			if err := migrations.CheckFrom(t.Context(), db, test.first); !works(err) {
				t.Errorf("after Up of the second binary Check of the first one returns %v", err)
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// works reports whether a process starts after this result of Check.
func works(err error) bool {
	version, ok := errors.AsType[*migrations.VersionError](err)
	return err == nil || ok && version.IsNewer()
}

// TestFailedMigration applies a file whose last statement fails, because its table exists.
func TestFailedMigration(t *testing.T) {
	const advice = "the database has migration 3, unlike this binary: run `shop migrate` of the last release with migration 3, then of this one"
	for name, test := range map[string]struct {
		first, second fstest.MapFS
		advice        bool
	}{
		"created by an unknown migration": {binary(1, 3), binary(1), true},
		"created by a known migration":    {binary(1, 3), binary(1, 3), false},
	} {
		t.Run(name, func(t *testing.T) {
			db := empty(t)
			if _, err := migrations.UpFrom(t.Context(), db, test.first); err != nil {
				t.Fatal(err)
			}
			before := schema(t, db)
			test.second["00004_clash.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE half ();\nCREATE TABLE part_3 ();\n")}
			applied, err := migrations.UpFrom(t.Context(), db, test.second)
			if text := message(err); !strings.Contains(text, `00004_clash.sql: ERROR: relation "part_3" already exists`) ||
				strings.Contains(text, advice) != test.advice || len(applied) > 0 {
				t.Errorf("Up applies %v, error %v; want none and an error that names the file and the table, advice %v", applied, err, test.advice)
			}
			if got := schema(t, db); got != before {
				t.Errorf("after the failure the schema is\n%s\nwant it unchanged:\n%s", got, before)
			}
			if version, ok := errors.AsType[*migrations.VersionError](migrations.CheckFrom(t.Context(), db, test.second)); !ok || !slices.Equal(version.Missing, []int64{4}) {
				t.Errorf("after the failure the difference is %v, want that migration 4 is missing", version)
			}
		})
	}
}

// TestMigrationsGiveWay has a transaction read a table that a migration changes. The migration must fail soon, so that later statements on
// the table go on. It succeeds after the transaction.
func TestMigrationsGiveWay(t *testing.T) {
	t.Parallel() // it waits most of the time
	db := empty(t)
	files := binary(1, 2)
	if _, err := migrations.UpFrom(t.Context(), db, files); err != nil {
		t.Fatal(err)
	}
	files["00003_part.sql"] = binary(3)["00003_part.sql"]
	files["00004_part.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE part_1 ADD COLUMN a int;")}
	release := testenv.HoldLock(t, db, `SELECT FROM part_1`)
	applied, err := migrations.UpFrom(t.Context(), db, files)
	if !postgres.LockTimedOut(err) || !strings.Contains(message(err), "00004_part.sql") || !slices.Equal(applied, []string{"00003_part.sql"}) {
		t.Errorf("while the table is read Up applies %v, error %v; want the third file, and that the fourth one does not get its lock", applied, err)
	}
	release()
	applied, err = migrations.UpFrom(t.Context(), db, files)
	if err != nil || !slices.Equal(applied, []string{"00004_part.sql"}) {
		t.Errorf("after that Up applies %v, error %v; want the fourth file and no error", applied, err)
	}
}

// TestConcurrentIndexesArePatient checks that the files wait without a limit only for what does not stop others. Otherwise a file would
// fail whenever a transaction lasts for two seconds, or the files after it would stop others for longer.
func TestConcurrentIndexesArePatient(t *testing.T) {
	const patient, impatient = "SET lock_timeout = 0;", "SET lock_timeout = '2s';"
	names, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		waits := false // without a limit
		for line := range strings.Lines(string(text)) {
			switch line = strings.TrimSpace(line); {
			case strings.HasPrefix(line, patient):
				waits = true
			case strings.HasPrefix(line, impatient):
				waits = false
			case strings.HasPrefix(line, "--"):
			case strings.Contains(line, " CONCURRENTLY ") != waits:
				t.Errorf("%s: %q waits for locks without a limit: %v; write it between %q and %q: %v", name, line, waits, patient, impatient, !waits)
			}
		}
		if waits {
			t.Errorf("%s does not end with %q", name, impatient)
		}
	}
}
