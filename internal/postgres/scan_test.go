package postgres_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestScanInTransaction checks that a transaction that deadlocks ends with that error, so that the whole of it can be
// repeated. In a failed transaction, a repeated statement would fail with another one.
func TestScanInTransaction(t *testing.T) {
	db, err := postgres.Open(t.Context(), testenv.Postgres(t), "test", 1, nil, nil)
	testenv.Must(t, err)
	pool(t, db)
	err = db.Transaction(func(tx *gorm.DB) error {
		var row struct{ ID int }
		_, err := postgres.Scan(t.Context(), tx, &row,
			`DO $$ BEGIN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END $$`)
		return err
	})
	if failed, ok := errors.AsType[*pgconn.PgError](err); !ok || failed.Code != "40P01" {
		t.Errorf("the transaction ends with %v, want SQLSTATE 40P01", err)
	}
}
