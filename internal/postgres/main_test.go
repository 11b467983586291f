package postgres_test

import (
	"database/sql"
	"testing"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// open connects to a database with a pool of one session.
func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	gdb, err := postgres.Open(t.Context(), url, "test", 1)
	if err != nil {
		t.Fatal(err)
	}
	db, err := gdb.DB()
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

// query returns the one value that a statement selects.
func query[T any](t *testing.T, db *sql.DB, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRowContext(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}
