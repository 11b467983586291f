package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// openGorm connects to a new database with a pool of a few sessions.
func openGorm(t *testing.T, conns int) *gorm.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), testenv.Postgres(t), "test", conns, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool(t, db)
	return db
}

// once returns the build function of a pipeline that is not repeated.
func once(b *pgx.Batch) func() *pgx.Batch { return func() *pgx.Batch { return b } }

// queueInt queues a statement whose result, an integer, is appended to got.
func queueInt(b *pgx.Batch, got *[]int, statement string, args ...any) {
	b.Queue(statement, args...).QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		*got = append(*got, n)
		return err
	})
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

// TestPipelineIsOneTransaction checks that the statements of a pipeline are one transaction, and that each of them
// sees the rows of those before it.
func TestPipelineIsOneTransaction(t *testing.T) {
	db := openGorm(t, 2)
	count := newTable(t, db)
	for run := range 2 { // the statements are prepared in the first
		var b pgx.Batch
		var got []int
		b.Queue(`SELECT set_config('lock_timeout', '123', true)`)
		queueInt(&b, &got, `SELECT txid_current()::bigint - $1`, 0)
		queueInt(&b, &got, `INSERT INTO numbers VALUES ($1) RETURNING n`, run)
		queueInt(&b, &got, `SELECT count(*) FROM numbers`)
		queueInt(&b, &got, `SELECT txid_current()::bigint - $1`, 0)
		queueInt(&b, &got, `SELECT rtrim(current_setting('lock_timeout'), 'ms')::int`)
		if err := postgres.Pipeline(t.Context(), db, once(&b)); err != nil {
			t.Fatal(err)
		}
		if len(got) != 5 || got[0] != got[3] || got[1] != run || got[2] != run+1 || got[4] != 123 || count() != run+1 {
			t.Errorf("results are %v, and there are %d rows; want one transaction, and %d rows", got, count(), run+1)
		}
		if timeout := testenv.Query[string](t, pool(t, db), `SELECT current_setting('lock_timeout')`); timeout != "3s" {
			t.Errorf("lock_timeout is %s after the transaction, want 3s", timeout)
		}
	}
}

// TestPipelineFails checks that no statement has an effect if one of them or the commit fails, and that the session
// is usable afterwards.
func TestPipelineFails(t *testing.T) {
	db := openGorm(t, 1)
	count := newTable(t, db)
	insert := func(b *pgx.Batch, n int) { b.Queue(`INSERT INTO numbers VALUES ($1)`, n) }
	for name, test := range map[string]struct {
		queue func(*pgx.Batch)
		want  func(error) bool
	}{
		"first statement": {func(b *pgx.Batch) { b.Queue(`SELECT 1 / $1::int`, 0); insert(b, 1) }, isError("22012")},
		"last statement":  {func(b *pgx.Batch) { insert(b, 1); insert(b, 2); insert(b, 2) }, postgres.Duplicate},
		"unknown table":   {func(b *pgx.Batch) { insert(b, 1); b.Queue(`SELECT FROM missing`) }, isError("42P01")},
		"commit":          {func(b *pgx.Batch) { insert(b, 6); insert(b, 7); insert(b, 8) }, isError("P0001")},
	} {
		for range 2 { // the second time with prepared statements
			before := count()
			var b pgx.Batch
			test.queue(&b)
			err := postgres.Pipeline(t.Context(), db, once(&b))
			if !test.want(err) {
				t.Errorf("%s: Pipeline returns %v, want the error", name, err)
			}
			if n := count(); n != before {
				t.Errorf("%s: %d rows were inserted, want none", name, n-before)
			}
		}
	}
}

// isError returns a function that reports whether an error is PostgreSQL's and has a code.
func isError(code string) func(error) bool {
	return func(err error) bool {
		pg, ok := errors.AsType[*pgconn.PgError](err)
		return ok && pg.Code == code
	}
}

// TestPipelineReturnsErrorOfReader checks that Pipeline returns the error of a function that reads a result. The
// statements are committed then.
func TestPipelineReturnsErrorOfReader(t *testing.T) {
	db := openGorm(t, 1)
	count := newTable(t, db)
	errRead := errors.New("read")
	var b pgx.Batch
	b.Queue(`INSERT INTO numbers VALUES (1) RETURNING n`).QueryRow(func(pgx.Row) error { return errRead })
	b.Queue(`INSERT INTO numbers VALUES (2)`)
	if err := postgres.Pipeline(t.Context(), db, once(&b)); !errors.Is(err, errRead) {
		t.Errorf("Pipeline returns %v, want %v", err, errRead)
	}
	if n := count(); n != 2 {
		t.Errorf("%d rows were inserted, want 2", n)
	}
}

// TestPipelineWithEndedContext checks that a pipeline whose context has ended, or ends during a statement, returns an
// error, and that the pool then has a usable session.
func TestPipelineWithEndedContext(t *testing.T) {
	db := openGorm(t, 1)
	count := newTable(t, db)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	running, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	for name, ctx := range map[string]context.Context{"ended": ended, "ends": running} {
		var b pgx.Batch
		b.Queue(`INSERT INTO numbers VALUES (1)`)
		b.Queue(`SELECT pg_sleep(60)`)
		if err := postgres.Pipeline(ctx, db, once(&b)); !errors.Is(err, ctx.Err()) || !postgres.Unavailable(err) {
			t.Errorf("context %s: Pipeline returns %v, want the error of the context", name, err)
		}
		if n := count(); n != 0 {
			t.Errorf("context %s: %d rows were inserted, want none", name, n)
		}
	}
}
