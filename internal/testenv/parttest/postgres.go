package parttest

import (
	"database/sql"
	"testing"

	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// OpenDB connects to the database at a URL with a pool of the service, of at most the given number of sessions. The
// pool is closed when the test ends.
func OpenDB(t testing.TB, url string, sessions int) (*gorm.DB, *sql.DB) {
	t.Helper()
	db, err := postgres.Open(t.Context(), url, "test", sessions, postgres.IndexPlans, nil)
	testenv.Must(t, err)
	pool, err := db.DB()
	testenv.Must(t, err)
	t.Cleanup(func() { pool.Close() })
	return db, pool
}
