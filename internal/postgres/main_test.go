package postgres_test

import (
	"database/sql"
	"testing"

	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// open connects to a database with a pool of one session, which plans as the service does.
func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	gdb, err := postgres.Open(t.Context(), url, "test", 1, postgres.IndexPlans, nil)
	testenv.Must(t, err)
	return pool(t, gdb)
}

// pool returns the pool of a database, which is closed when the test ends.
func pool(t *testing.T, gdb *gorm.DB) *sql.DB {
	t.Helper()
	db, err := gdb.DB()
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}
