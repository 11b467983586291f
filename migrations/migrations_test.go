package migrations_test

import (
	"database/sql"
	"errors"
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
	if err := migrations.Core.Check(t.Context(), db); err != nil {
		t.Error(err)
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

// core returns the core's set of a binary with the given files.
func core(files fstest.MapFS) migrations.Set { return migrations.Set{Files: files} }

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
		"the same": {binary(1, 2), binary(1, 2), "", true, nil, false},
		"a database without a schema": {nil, binary(1, 2, 4),
			"the database lacks the migrations [1 2 4] of this binary: run `shop migrate`", false, []string{"00001_part.sql", "00002_part.sql", "00004_part.sql"}, false},
		"a newer binary": {binary(1, 2), binary(1, 2, 3, 4),
			"the database lacks the migrations [3 4] of this binary: run `shop migrate`", false, []string{"00003_part.sql", "00004_part.sql"}, false},
		"an older binary": {binary(1, 2, 3), binary(1, 2),
			"the database has schema version 3, newer than version 2 of this binary: use a newer shop binary", true, nil, true},
		"a part left out": {binary(1, 2, 3), binary(1, 3), "", true, nil, false},
		"a part left out, another added": {binary(1, 2, 3), binary(1, 3, 4),
			"the database lacks the migrations [4] of this binary: run `shop migrate`", false, []string{"00004_part.sql"}, false},
		"a part added with a lower number": {binary(1, 3), binary(1, 2, 3),
			"the database lacks the migrations [2] of this binary: run `shop migrate`", false, []string{"00002_part.sql"}, false},
		"each lacks a migration": {binary(1, 3), binary(1, 2),
			"the database has schema version 3, newer than version 2 of this binary, and lacks its migrations [2]: " +
				"use a shop binary that has all of them", false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			db := empty(t)
			if test.first != nil {
				if _, err := core(test.first).Up(t.Context(), db); err != nil {
					t.Fatal(err)
				}
			}
			before := migrationtest.Schema(t, db)
			err := core(test.second).Check(t.Context(), db)
			if text := message(err); text != test.check {
				t.Errorf("Check returns %q, want %q", text, test.check)
			}
			if works(err) != test.works {
				t.Errorf("a process of the second binary starts: %v, want %v", works(err), test.works)
			}
			if after := migrationtest.Schema(t, db); after != before {
				t.Errorf("Check changes the schema to\n%s\nwant\n%s", after, before)
			}
			applied, err := core(test.second).Up(t.Context(), db)
			if (err != nil) != test.rejected || test.rejected && err.Error() != test.check ||
				!slices.Equal(applied, test.applied) {
				t.Errorf("Up applies %v, error %v; want %v, rejected %v", applied, err, test.applied, test.rejected)
			}
			if changed := migrationtest.Schema(t, db) != before; changed != (test.applied != nil) {
				t.Errorf("Up changes the schema: %v, want %v", changed, !changed)
			}
			if err := core(test.second).Check(t.Context(), db); !test.rejected && err != nil {
				t.Errorf("after Up Check of the second binary returns %v", err)
			}
			if test.first == nil {
				return
			}
			if err := core(test.first).Check(t.Context(), db); !works(err) {
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
	db, files := empty(t), binary(1, 3)
	if _, err := core(files).Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	before := migrationtest.Schema(t, db)
	files["00004_clash.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE half ();\nCREATE TABLE " +
		"part_3 ();\n")}
	applied, err := core(files).Up(t.Context(), db)
	if !strings.Contains(message(err), `00004_clash.sql: ERROR: relation "part_3" already exists`) || len(applied) > 0 {
		t.Errorf("Up applies %v, error %v; want none and an error that names the file and the table", applied, err)
	}
	if got := migrationtest.Schema(t, db); got != before {
		t.Errorf("after the failure the schema is\n%s\nwant it unchanged:\n%s", got, before)
	}
	err = core(files).Check(t.Context(), db)
	version, ok := errors.AsType[*migrations.VersionError](err)
	if !ok || !slices.Equal(version.Missing, []int64{4}) {
		t.Errorf("after the failure Check returns %v, want that migration 4 is missing", err)
	}
}

// TestMigrationsGiveWay has a transaction read a table that a migration changes. The migration must fail soon, so that
// later statements on the table go on. It succeeds after the transaction.
func TestMigrationsGiveWay(t *testing.T) {
	t.Parallel() // it waits most of the time
	db := empty(t)
	files := binary(1, 2)
	if _, err := core(files).Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	files["00003_part.sql"] = binary(3)["00003_part.sql"]
	files["00004_part.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE part_1 ADD COLUMN a int;")}
	release := testenv.HoldLock(t, db, `SELECT FROM part_1`)
	applied, err := core(files).Up(t.Context(), db)
	if !postgres.LockTimedOut(err) || !strings.Contains(message(err), "00004_part.sql") ||
		!slices.Equal(applied, []string{"00003_part.sql"}) {
		t.Errorf("while the table is read Up applies %v, error %v; want the third file, and that the fourth one does "+
			"not get its lock", applied, err)
	}
	release()
	applied, err = core(files).Up(t.Context(), db)
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
	if names, err := migrations.Up(t.Context(), db); err != nil || slices.Contains(names, "90000_books.sql") {
		t.Fatalf("Up of the core applies %v, error %v; want the core's files", names, err)
	}
	if _, err := migrations.CheckAll(t.Context(), db, books, loans); message(err) !=
		"migrations of books: the database lacks the migrations [90000] of this binary: run `shop migrate`" {
		t.Errorf("without the other modules' schema CheckAll returns %v", err)
	}
	for _, want := range [][]string{{"90000_books.sql", "90000_loans.sql"}, nil} {
		if names, err := migrations.UpAll(t.Context(), db, books, loans); err != nil || !slices.Equal(names, want) {
			t.Errorf("UpAll applies %v, error %v; want %v", names, err, want)
		}
	}
	for _, others := range [][]migrations.Set{{books, loans}, {loans}, nil} {
		if newer, err := migrations.CheckAll(t.Context(), db, others...); err != nil || newer != nil {
			t.Errorf("CheckAll with %d more sets returns %v, error %v; want neither", len(others), newer, err)
		}
	}
	exec(t, db, `INSERT INTO goose_db_version_loans (version_id, is_applied) VALUES (90001, true)`)
	newer, err := migrations.CheckAll(t.Context(), db, books, loans)
	if err != nil || len(newer) != 1 || newer[0].Set != "loans" || newer[0].Have != 90001 || newer[0].Want != 90000 {
		t.Errorf("CheckAll returns %v, error %v; want that version 90001 of loans is newer than 90000", newer, err)
	}
	if newer, err := migrations.CheckAll(t.Context(), db, books); err != nil || newer != nil {
		t.Errorf("without loans CheckAll returns %v, error %v; want neither", newer, err)
	}
}

// TestNewerSetOfAnotherModule has a database with a newer schema of one module. No set may be applied, not even those
// that come before it.
func TestNewerSetOfAnotherModule(t *testing.T) {
	db := empty(t)
	books, loans := modules()
	exec(t, db, `CREATE TABLE goose_db_version_loans AS SELECT 90001 AS version_id`)
	names, err := migrations.UpAll(t.Context(), db, books, loans)
	want := "migrations of loans: the database has schema version 90001, newer than version 90000 of this binary, " +
		"and lacks its migrations [90000]: use a shop binary that has all of them"
	if message(err) != want || names != nil || migrationtest.Schema(t, db) != "" {
		t.Errorf("UpAll applies %v, error %v; want no file and %q", names, err, want)
	}
}

// TestFailedSet applies a set whose file fails. The sets before it stay, and the error names the file.
func TestFailedSet(t *testing.T) {
	db := empty(t)
	books, loans := modules()
	names, err := migrations.UpAll(t.Context(), db, loans, books) // loans needs books
	if !strings.HasPrefix(message(err), "migrate: 90000_loans.sql: ") || len(names) == 0 {
		t.Errorf("UpAll applies %v, error %v; want the core's files, and an error that names the file", names, err)
	}
	if err := migrations.Core.Check(t.Context(), db); err != nil {
		t.Error(err)
	}
}

// TestOtherModules finds the modules whose schema a database has. A module that is not migrated yet does not count,
// and what is in another schema of PostgreSQL belongs to another service.
func TestOtherModules(t *testing.T) {
	db := empty(t)
	books, loans := modules()
	if _, err := migrations.UpAll(t.Context(), db, books, loans); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `CREATE TABLE goose_db_version_toys AS SELECT 0::bigint AS version_id`)
	exec(t, db, `CREATE TABLE "goose_db_version_Odd name" AS SELECT 1::bigint AS version_id`)
	exec(t, db, `CREATE SCHEMA elsewhere`)
	exec(t, db, `CREATE TABLE elsewhere.goose_db_version_films AS SELECT 1::bigint AS version_id`)
	for _, test := range []struct {
		known []migrations.Set
		want  []string
	}{
		{[]migrations.Set{books, loans}, []string{"Odd name"}},
		{[]migrations.Set{books}, []string{"Odd name", "loans"}},
		{nil, []string{"Odd name", "books", "loans"}},
	} {
		others, err := migrations.OtherModules(t.Context(), db, test.known...)
		slices.Sort(others)
		if err != nil || !slices.Equal(others, test.want) {
			t.Errorf("with %d known sets OtherModules returns %q, error %v; want %q",
				len(test.known), others, err, test.want)
		}
	}
}

// TestDatabaseOfOlderRelease has a database with the migrations of older releases. Nothing may be applied to it, and no
// process may start, because its tables have other columns.
func TestDatabaseOfOlderRelease(t *testing.T) {
	db := empty(t)
	books, _ := modules()
	exec(t, db, `CREATE TABLE goose_db_version AS SELECT version_id::bigint FROM generate_series(1, 25) AS version_id`)
	names, up := migrations.UpAll(t.Context(), db, books)
	_, check := migrations.CheckAll(t.Context(), db, books)
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
