package migrations_test

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/examples/booking/migrations"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/migrationtest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestMigrationsCanBeTakenBack takes the migrations of bookings back.
func TestMigrationsCanBeTakenBack(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	defer db.Close()
	migrationtest.DownUndoesUp(t, db, migrations.Set)
}
