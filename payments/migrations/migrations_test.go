package migrations_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/migrationtest"
	"example.com/shop/migrations"
	paymentsmigrations "example.com/shop/payments/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// openCore returns a database with the schema of the core alone.
func openCore(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// TestDownUndoesUp takes the migrations of payments back.
func TestDownUndoesUp(t *testing.T) {
	migrationtest.DownUndoesUp(t, openCore(t), paymentsmigrations.Set)
}

// TestProgramsWithAndWithoutPayments has one database for the programs without and with payments. Neither takes the
// migrations of the other for a newer schema.
func TestProgramsWithAndWithoutPayments(t *testing.T) {
	db := openCore(t)
	core := migrationtest.Schema(t, db)
	if _, err := migrations.Check(t.Context(), db, paymentsmigrations.Set); err == nil ||
		!strings.HasPrefix(err.Error(), "the database lacks the migrations [221") {
		t.Errorf("without the schema of payments Check returns %v, want that their migrations are missing", err)
	}
	names, err := migrations.UpAll(t.Context(), db, paymentsmigrations.Set)
	if err != nil || len(names) == 0 || !slices.Contains(names, "00221_payments.sql") {
		t.Errorf("UpAll applies %v, error %v; want the files of payments", names, err)
	}
	if with := migrationtest.Schema(t, db); with == core {
		t.Error("the files of payments have not changed the schema")
	}
	for _, others := range [][]migrations.Set{{paymentsmigrations.Set}, nil} {
		if newer, err := migrations.Check(t.Context(), db, others...); err != nil || newer != nil {
			t.Errorf("Check with %d more sets returns %v, error %v; want neither", len(others), newer, err)
		}
		if names, err := migrations.UpAll(t.Context(), db, others...); err != nil || names != nil {
			t.Errorf("UpAll with %d more sets applies %v, error %v; want neither", len(others), names, err)
		}
	}
}
