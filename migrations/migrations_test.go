package migrations_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/migrationtest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// empty returns a database without a schema: TestMain passes no migrations to testenv.
func empty(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
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
	if newer, err := migrations.Check(t.Context(), db); err != nil || newer != nil {
		t.Errorf("Check returns %v, error %v; want neither", newer, err)
	}
	if again, err := migrations.Up(t.Context(), db); err != nil || len(again) > 0 {
		t.Errorf("Up on a migrated database applied %v, error %v; want no file and no error", again, err)
	}
}

// TestDownUndoesUp takes the core's migrations back.
func TestDownUndoesUp(t *testing.T) { migrationtest.DownUndoesUp(t, empty(t), migrations.Core) }

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
	const newer = "the database has schema version 3 of parts, newer than version 2 of this binary: " +
		"use a newer binary"
	for name, test := range map[string]struct {
		first, second []int
		missing       string   // the second binary does not start because of these migrations
		newer         string   // the second binary does not migrate because of this
		applied       []string // by the second binary
	}{
		"the same": {[]int{1, 2}, []int{1, 2}, "", "", nil},
		"a database without a schema": {nil, []int{1, 2, 4}, "[1 2 4]", "",
			[]string{"00001_part.sql", "00002_part.sql", "00004_part.sql"}},
		"a newer binary": {[]int{1, 2}, []int{1, 2, 3, 4}, "[3 4]", "",
			[]string{"00003_part.sql", "00004_part.sql"}},
		"an older binary":                  {[]int{1, 2, 3}, []int{1, 2}, "", newer, nil},
		"a part left out":                  {[]int{1, 2, 3}, []int{1, 3}, "", "", nil},
		"a part left out, another added":   {[]int{1, 2, 3}, []int{1, 3, 4}, "[4]", "", []string{"00004_part.sql"}},
		"a part added with a lower number": {[]int{1, 3}, []int{1, 2, 3}, "[2]", "", []string{"00002_part.sql"}},
		"each lacks a migration":           {[]int{1, 3}, []int{1, 2}, "[2]", newer, nil},
	} {
		t.Run(name, func(t *testing.T) {
			db := empty(t)
			_, err := migrations.Up(t.Context(), db)
			testenv.Must(t, err)
			first := migrations.Set{Name: "parts", Files: binary(test.first...)}
			second := migrations.Set{Name: "parts", Files: binary(test.second...)}
			if test.first != nil {
				_, err := first.Up(t.Context(), db)
				testenv.Must(t, err)
			}
			before := migrationtest.Schema(t, db)
			found, err := migrations.Check(t.Context(), db, second)
			want := ""
			switch {
			case test.missing != "" && test.newer != "": // to migrate does not help
				want = test.newer
			case test.missing != "":
				want = "the database lacks the migrations " + test.missing + " of parts: run the command migrate"
			}
			if message(err) != want || err == nil && strings.Join(found, ", ") != test.newer {
				t.Errorf("Check returns %q, error %v; want %q, error %q", found, err, test.newer, want)
			}
			if after := migrationtest.Schema(t, db); after != before {
				t.Errorf("Check changes the schema to\n%s\nwant\n%s", after, before)
			}
			applied, err := second.Up(t.Context(), db)
			if message(err) != test.newer || !slices.Equal(applied, test.applied) {
				t.Errorf("Up applies %v, error %v; want %v, error %q", applied, err, test.applied, test.newer)
			}
			if changed := migrationtest.Schema(t, db) != before; changed != (test.applied != nil) {
				t.Errorf("Up changes the schema: %v, want %v", changed, !changed)
			}
			if test.newer != "" {
				return
			}
			if _, err := migrations.Check(t.Context(), db, second); err != nil {
				t.Errorf("after Up Check of the second binary returns %v", err)
			}
			if test.first == nil {
				return
			}
			if _, err := migrations.Check(t.Context(), db, first); err != nil {
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

// TestMigrationsGiveWay has a transaction read a table that a migration changes. The migration must fail soon, so that
// later statements on the table go on. It succeeds after the transaction.
func TestMigrationsGiveWay(t *testing.T) {
	t.Parallel() // it waits most of the time
	db := empty(t)
	files := binary(1, 2)
	parts := migrations.Set{Name: "parts", Files: files}
	_, err := parts.Up(t.Context(), db)
	testenv.Must(t, err)
	files["00003_part.sql"] = binary(3)["00003_part.sql"]
	files["00004_part.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE part_1 ADD COLUMN a int;")}
	release := testenv.HoldLock(t, db, `SELECT FROM part_1`)
	applied, err := parts.Up(t.Context(), db)
	if !postgres.LockTimedOut(err) || !strings.Contains(message(err), "00004_part.sql") ||
		!slices.Equal(applied, []string{"00003_part.sql"}) {
		t.Errorf("while the table is read Up applies %v, error %v; want the third file, and that the fourth one does "+
			"not get its lock", applied, err)
	}
	release()
	applied, err = parts.Up(t.Context(), db)
	if err != nil || !slices.Equal(applied, []string{"00004_part.sql"}) {
		t.Errorf("after that Up applies %v, error %v; want the fourth file and no error", applied, err)
	}
}

// modules returns two sets of other modules, each of which creates a table besides that of the core's set.
func modules() (books, loans migrations.Set) {
	set := func(name, create string) migrations.Set {
		statements := "-- +goose Up\n" + create + ";\n"
		return migrations.Set{Name: name, Files: fstest.MapFS{
			// The number is larger than those of the core, which must not take it for a newer migration of its own.
			"90000_" + name + ".sql": {Data: []byte(statements)},
		}}
	}
	return set("books", "CREATE TABLE books (kind text REFERENCES reconcile_reports)"),
		set("loans", "CREATE TABLE loans (LIKE books)")
}

// TestSets applies the sets of three modules, and checks that a binary that lacks one of them works with the database.
func TestSets(t *testing.T) {
	db := empty(t)
	books, loans := modules()
	if names, err := migrations.UpAll(t.Context(), db, loans, books); len(names) == 0 || // loans needs books
		!strings.HasPrefix(message(err), "migrate: 90000_loans.sql: ") {
		t.Fatalf("UpAll applies %v, error %v; want the core's files, and an error that names the file", names, err)
	}
	for _, want := range [][]string{{"90000_books.sql", "90000_loans.sql"}, nil} {
		if names, err := migrations.UpAll(t.Context(), db, books, loans); err != nil || !slices.Equal(names, want) {
			t.Errorf("UpAll applies %v, error %v; want %v", names, err, want)
		}
	}
	testenv.Exec(t, db, `INSERT INTO goose_db_version_loans (version_id, is_applied) VALUES (90001, true)`)
	for _, test := range []struct {
		others []migrations.Set
		newer  bool // the database has a newer migration of loans
	}{{[]migrations.Set{books, loans}, true}, {[]migrations.Set{books}, false}, {nil, false}} {
		newer, err := migrations.Check(t.Context(), db, test.others...)
		if err != nil || strings.Contains(fmt.Sprint(newer), "version 90001 of loans") != test.newer {
			t.Errorf("Check with %d more sets returns %q, error %v; want a text about loans: %v",
				len(test.others), newer, err, test.newer)
		}
	}
}

// TestOtherModules finds the modules whose schema a database has. A module that is not migrated yet does not count,
// and what is in another schema of PostgreSQL belongs to another service.
func TestOtherModules(t *testing.T) {
	db := empty(t)
	books, loans := modules()
	_, err := migrations.UpAll(t.Context(), db, books, loans)
	testenv.Must(t, err)
	testenv.Exec(t, db, `CREATE TABLE goose_db_version_toys AS SELECT 0::bigint AS version_id`)
	testenv.Exec(t, db, `CREATE TABLE "goose_db_version_Odd name" AS SELECT 1::bigint AS version_id`)
	testenv.Exec(t, db, `CREATE SCHEMA elsewhere`)
	testenv.Exec(t, db, `CREATE TABLE elsewhere.goose_db_version_films AS SELECT 1::bigint AS version_id`)
	others, err := migrations.OtherModules(t.Context(), db)
	slices.Sort(others)
	if want := []string{"Odd name", "books", "loans"}; err != nil || !slices.Equal(others, want) {
		t.Errorf("OtherModules returns %q, error %v; want %q", others, err, want)
	}
}

// TestSchemaWithoutUsage checks the schema as a role that may not look into it.
func TestSchemaWithoutUsage(t *testing.T) {
	address := testenv.Postgres(t)
	owner, err := sql.Open("pgx", address)
	testenv.Must(t, err)
	t.Cleanup(func() { owner.Close() })
	role, asRole := testenv.Role(t, owner, address)
	testenv.Exec(t, owner, `REVOKE USAGE ON SCHEMA public FROM public`)
	db, err := sql.Open("pgx", asRole)
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	_, err = migrations.Check(t.Context(), db)
	if text := message(err); !strings.Contains(text, "the role "+role+" may use no schema") {
		t.Errorf("the error is %q, want that the role lacks USAGE", text)
	}
}

// TestDatabaseOfOlderRelease has a database with the migrations of older releases. Nothing may be applied to it, and no
// process may start, because its tables have other columns.
func TestDatabaseOfOlderRelease(t *testing.T) {
	db := empty(t)
	books, _ := modules()
	testenv.Exec(t, db, `CREATE TABLE goose_db_version AS
		SELECT version_id::bigint FROM generate_series(1, 25) AS version_id`)
	names, up := migrations.UpAll(t.Context(), db, books)
	_, check := migrations.Check(t.Context(), db, books)
	for _, err := range []error{up, check} {
		text := message(err)
		if !strings.Contains(text, "older release, with migration 25") ||
			!strings.Contains(text, "give this release a new one") {
			t.Errorf("the error is %q, want that the database is refused, and what to do", text)
		}
	}
	if names != nil || migrationtest.Schema(t, db) != "" {
		t.Errorf("UpAll applies %v, want nothing", names)
	}
}
