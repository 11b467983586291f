package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// openGorm connects to a new database with a pool of a few sessions.
func openGorm(t *testing.T, conns int) *gorm.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), testenv.Postgres(t), "test", conns, nil, nil)
	testenv.Must(t, err)
	pool(t, db)
	return db
}

// newTable adds a table of numbers. A trigger rejects 7 at the commit, and a unique constraint rejects duplicates.
func newTable(t *testing.T, db *gorm.DB) (count func() int) {
	t.Helper()
	pool := pool(t, db)
	testenv.Exec(t, pool, `CREATE TABLE numbers (n int UNIQUE)`)
	testenv.Exec(t, pool, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.n = 7 THEN RAISE EXCEPTION 'seven'; END IF; RETURN NEW; END $$`)
	testenv.Exec(t, pool,
		`CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			EXECUTE FUNCTION fail()`)
	return func() int { return testenv.Query[int](t, pool, `SELECT count(*) FROM numbers`) }
}

// isError returns a function that reports whether an error is PostgreSQL's and has a code.
func isError(code string) func(error) bool {
	return func(err error) bool {
		pg, ok := errors.AsType[*pgconn.PgError](err)
		return ok && pg.Code == code
	}
}

// TestTransactRollsBack checks that nothing has an effect if the function, a statement or the commit fails, or if the
// function panics, and that the only session of the pool is usable afterwards.
func TestTransactRollsBack(t *testing.T) {
	db := openGorm(t, 1)
	count := newTable(t, db)
	errDecided := errors.New("decided")
	insert := func(tx *postgres.Tx, n int) { tx.Queue(`INSERT INTO numbers VALUES ($1)`, n) }
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	for name, test := range map[string]struct {
		do   func(tx *postgres.Tx) error
		want func(error) bool
	}{
		"before the first round trip": {func(tx *postgres.Tx) error { insert(tx, 1); return errDecided }, is(errDecided)},
		"after a round trip": {func(tx *postgres.Tx) error {
			insert(tx, 1)
			return errors.Join(tx.Send(t.Context()), errDecided)
		}, is(errDecided)},
		"first round trip": {func(tx *postgres.Tx) error {
			insert(tx, 1)
			tx.Queue(`SELECT 1 / $1::int`, 0)
			return tx.Send(t.Context())
		}, isError("22012")},
		"an error that is not returned": {func(tx *postgres.Tx) error {
			tx.Queue(`SELECT 1 / $1::int`, 0)
			_ = tx.Send(t.Context())
			return nil
		}, isError("22012")},
		"last round trip": {func(tx *postgres.Tx) error { insert(tx, 1); insert(tx, 1); return nil }, postgres.Duplicate},
		"commit":          {func(tx *postgres.Tx) error { insert(tx, 7); return tx.Send(t.Context()) }, isError("P0001")},
		"idle for too long": {func(tx *postgres.Tx) error {
			insert(tx, 1)
			tx.Queue(`SET LOCAL idle_in_transaction_session_timeout = 1`)
			testenv.Must(t, tx.Send(t.Context()))
			<-time.After(100 * time.Millisecond)
			return nil
		}, postgres.Unavailable},
	} {
		for range 2 { // the second time with prepared statements
			if err := postgres.Transact(t.Context(), db, test.do); !test.want(err) {
				t.Errorf("%s: Transact returns %v, want the error", name, err)
			}
			if n := count(); n != 0 {
				t.Errorf("%s: %d rows were inserted, want none", name, n)
			}
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = postgres.Transact(t.Context(), db, func(tx *postgres.Tx) error {
			insert(tx, 1)
			testenv.Must(t, tx.Send(t.Context()))
			panic("a bug")
		})
	}()
	if n := count(); n != 0 {
		t.Errorf("after a panic %d rows were inserted, want none", n)
	}
}

// TestTransactWithEndedContext ends the context before a transaction, and in the middle of one.
func TestTransactWithEndedContext(t *testing.T) {
	db := openGorm(t, 1)
	count := newTable(t, db)
	for name, sends := range map[string]int{"before": 0, "in the middle": 1} {
		ctx, cancel := context.WithCancel(t.Context())
		if sends == 0 {
			cancel()
		}
		err := postgres.Transact(ctx, db, func(tx *postgres.Tx) error {
			tx.Queue(`INSERT INTO numbers VALUES (1)`)
			err := tx.Send(ctx)
			cancel()
			return err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Transact returns %v, want the error of the context", name, err)
		}
		if n := count(); n != 0 {
			t.Errorf("%s: %d rows were inserted, want none", name, n)
		}
	}
}

// deadlock raises the error of a deadlock.
const deadlock = `DO $$ BEGIN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END $$`

// TestTransactAfterDeadlock has a transaction end with a deadlock. The function runs again, and only its second run
// has an effect.
func TestTransactAfterDeadlock(t *testing.T) {
	db := openGorm(t, 1)
	count, runs := newTable(t, db), 0
	testenv.Must(t, postgres.Transact(t.Context(), db, func(tx *postgres.Tx) error {
		tx.Queue(`INSERT INTO numbers VALUES (1)`)
		if runs++; runs == 1 {
			tx.Queue(deadlock)
		}
		return nil
	}))
	if n := count(); runs != 2 || n != 1 {
		t.Errorf("the function ran %d times, and there are %d rows; want twice, and one row", runs, n)
	}
}

// TestScanInTransaction checks that a transaction that deadlocks ends with that error, so that the whole of it can be
// repeated. In a failed transaction, a repeated statement would fail with another one.
func TestScanInTransaction(t *testing.T) {
	err := openGorm(t, 1).Transaction(func(tx *gorm.DB) error {
		_, err := postgres.Scan(t.Context(), tx, &struct{ ID int }{}, deadlock)
		return err
	})
	if !isError("40P01")(err) {
		t.Errorf("the transaction ends with %v, want SQLSTATE 40P01", err)
	}
}
