package timeout

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

func TestMain(m *testing.M) {
	testenv.Main(m, func(ctx context.Context, db *sql.DB) ([]string, error) {
		_, err := db.ExecContext(ctx, schemaSQL)
		return []string{"loans"}, err
	})
}

// The tests time out loans of books: when a loan is due, its book is free again.
const schemaSQL = `
	CREATE TABLE books (id uuid PRIMARY KEY, free bigint NOT NULL);
	CREATE TABLE loans (
		id       uuid        PRIMARY KEY,
		book_id  uuid        NOT NULL REFERENCES books,
		status   text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'returned', 'expired')),
		due_at   timestamptz NOT NULL,
		ended_at timestamptz,
		ended_by text
	);
	CREATE INDEX loans_pending ON loans (due_at, id) WHERE status = 'pending';
	CREATE FUNCTION fail(code text) RETURNS TABLE (id uuid, state text, late_us bigint, left_us bigint) LANGUAGE plpgsql
		AS $$ BEGIN RAISE EXCEPTION USING errcode = code; END $$`

var loanRows = Rows{
	Table: "loans", Due: "due_at",
	TimeOut: `
		WITH setting AS MATERIALIZED (
			SELECT set_config('lock_timeout', '500', true)
		),
		locked AS MATERIALIZED (
			SELECT id FROM loans
			WHERE id = ANY ($1::uuid[]) AND status = 'pending' AND due_at <= now() AND (SELECT count(*)
				FROM setting) = 1
			ORDER BY id FOR UPDATE SKIP LOCKED
		),
		ended AS (
			UPDATE loans l SET status = 'expired', ended_at = clock_timestamp(), ended_by = $2::text
			FROM locked WHERE l.id = locked.id
				RETURNING l.id, l.due_at, l.ended_at, l.book_id AS owner, 'overdue' AS reason
		),
		freed AS (
			UPDATE books b SET free = free + 1 FROM ended e WHERE b.id = e.owner
		)`,
	Free: `
		WITH free AS MATERIALIZED (
			SELECT id FROM books WHERE id IN (SELECT book_id FROM loans WHERE id = ANY ($1::uuid[]))
			FOR NO KEY UPDATE SKIP LOCKED
		)
		SELECT id FROM loans WHERE id = ANY ($1::uuid[]) AND book_id IN (SELECT id FROM free)`,
}

// library is a database with books and loans.
type library struct {
	*Table
	db    *sql.DB
	other *sql.DB // another pool, whose sessions keep locks
	url   string

	observed []Result
}

// newLibrary returns a library whose pool has the given number of connections.
func newLibrary(t *testing.T, conns int) *library {
	t.Helper()
	l := &library{url: testenv.Postgres(t)}
	db, pool := parttest.OpenDB(t, l.url, conns)
	l.db = pool
	_, l.other = parttest.OpenDB(t, l.url, 1)
	l.Table = NewTable(db, "loan.expire", loanRows, slog.New(slog.DiscardHandler))
	return l
}

func (l *library) observe(_ context.Context, results []Result, _ Caller) {
	l.observed = append(l.observed, results...)
}

// book adds a book that is not free, and returns its id.
func (l *library) book(t *testing.T) string {
	t.Helper()
	id := keyset.NewID().String()
	testenv.Exec(t, l.db, `INSERT INTO books (id, free) VALUES ($1, 0)`, id)
	return id
}

// loan adds a loan of a book that is due after the duration in, and returns its id.
func (l *library) loan(t *testing.T, book string, in time.Duration) string {
	t.Helper()
	id := keyset.NewID().String()
	testenv.Exec(t, l.db,
		`INSERT INTO loans (id, book_id, due_at) VALUES ($1, $2, now() + $3 * interval '1 microsecond')`,
		id, book, in.Microseconds())
	return id
}
