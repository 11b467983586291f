package payment

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

var (
	//go:embed books_match.sql
	booksMatchSQL string
	//go:embed books_settle.sql
	booksSettleSQL string
	//go:embed books_unclaimed.sql
	booksUnclaimedSQL string
	//go:embed books_report.sql
	booksReportSQL string
	//go:embed books_list.sql
	booksListSQL string
)

// initBooksSQL stores the first position: a day before the first attempt. It reads the attempts only if there is no position.
const initBooksSQL = `INSERT INTO payment_books (position, next_run)
	SELECT coalesce(min(opened_at), now()) - interval '1 day', now() FROM payment_attempts WHERE NOT EXISTS (SELECT FROM payment_books)
	ON CONFLICT DO NOTHING`

func (s *Store) initBooks(ctx context.Context) error { return s.booksExec(ctx, initBooksSQL) }

func (s *Store) booksExec(ctx context.Context, statement string, args ...any) error {
	if err := s.db.WithContext(ctx).Exec(statement, args...).Error; err != nil {
		return fmt.Errorf("payment books: %w", err)
	}
	return nil
}

// claimBooks reports whether a report is due, at its time or because of an event, and if so, makes it due again in ten
// minutes. This only saves calls.
func (s *Store) claimBooks(ctx context.Context) (due bool, err error) {
	if err := s.initBooks(ctx); err != nil {
		return false, err
	}
	var row struct{ Position time.Time }
	due, err = s.row(ctx, &row, `
		WITH told AS (UPDATE provider_events SET books_from = NULL WHERE books_from <= now() RETURNING id)
		UPDATE payment_books SET next_run = now() + interval '10 min' WHERE next_run <= now() OR EXISTS (SELECT FROM told) RETURNING position`)
	if err != nil {
		return false, fmt.Errorf("payment books: %w", err)
	}
	return due, nil
}

// booksPosition returns the time before which all movements are read.
func (s *Store) booksPosition(ctx context.Context) (time.Time, error) {
	var row struct{ Position time.Time }
	if _, err := s.row(ctx, &row, `SELECT position FROM payment_books`); err != nil {
		return time.Time{}, fmt.Errorf("payment books: %w", err)
	}
	return row.Position, nil
}

// booked runs do in a transaction that holds the lock of the books, so that no movement is stored while a report is made.
// After a deadlock, for example with an event about several refunds, it does so again.
func (s *Store) booked(ctx context.Context, do func(tx *Store, position time.Time) error) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			var position time.Time
			if err := tx.Raw(`SELECT position FROM payment_books FOR UPDATE`).Scan(&position).Error; err != nil {
				return err
			}
			return do(&Store{db: tx, TaskRows: s.TaskRows}, position)
		})
	})
	if err != nil {
		return fmt.Errorf("payment books: %w", err)
	}
	return nil
}

// storeMovements stores movements and moves the position. It returns the number of new charges that are foreign.
func (s *Store) storeMovements(ctx context.Context, rows []bookedRow, position time.Time) (others int64, err error) {
	if rows == nil {
		rows = []bookedRow{}
	}
	body, err := json.Marshal(rows)
	if err != nil {
		return 0, fmt.Errorf("payment books: %w", err)
	}
	err = s.booked(ctx, func(tx *Store, _ time.Time) error {
		// The statement stores up to a day of movements.
		if err := tx.booksExec(ctx, `SELECT set_config('statement_timeout', '0', true)`); err != nil {
			return err
		}
		var row struct{ Others int64 }
		_, err := tx.row(ctx, &row, booksMatchSQL, string(body), position)
		others = row.Others
		return err
	})
	return others, err
}

// makeReport has what the books know better settled, and stores the next report.
func (s *Store) makeReport(ctx context.Context, foreign, expired, lost int64) (report *Report, err error) {
	err = s.booked(ctx, func(tx *Store, position time.Time) error {
		report = &Report{Position: position, Foreign: foreign, ExpiredSessions: expired, LostSessions: lost, Currencies: []CurrencyReport{}}
		// The statements read whole tables.
		if err := tx.booksExec(ctx, `SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'on', true)`); err != nil {
			return err
		}
		if err := tx.booksExec(ctx, booksSettleSQL, s.RowKind(SettleKind), s.RowKind(RefundKind)); err != nil {
			return err
		}
		if err := tx.booksExec(ctx, booksUnclaimedSQL, keyset.NewID()); err != nil {
			return err
		}
		if err := tx.rows(ctx, &report.Currencies, booksReportSQL, position); err != nil {
			return err
		}
		report.Balanced = lost == 0 && !slices.ContainsFunc(report.Currencies, func(c CurrencyReport) bool { return c.DifferenceCount > 0 })
		return tx.storeReport(ctx, report)
	})
	return report, err
}

// report returns the last report, or nil.
func (s *Store) report(ctx context.Context) (*Report, error) {
	var row struct{ Report string }
	found, err := s.row(ctx, &row, `SELECT (report || jsonb_build_object('number', number, 'made_at', made_at))::text AS report
		FROM payment_reports ORDER BY number DESC LIMIT 1`)
	if err != nil || !found {
		return nil, err
	}
	var r Report
	return &r, json.Unmarshal([]byte(row.Report), &r)
}

// storeReport stores a report, from which it gets its number and time, and makes the next one due.
func (s *Store) storeReport(ctx context.Context, r *Report) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var row struct {
		Number int64
		MadeAt time.Time
	}
	if _, err := s.row(ctx, &row, `
		WITH next AS (UPDATE payment_books SET next_run = clock_timestamp() + $2::bigint * interval '1 microsecond')
		INSERT INTO payment_reports (report) VALUES ($1::jsonb) RETURNING number, made_at`, string(body), booksEvery.Microseconds()); err != nil {
		return err
	}
	r.Number, r.MadeAt = row.Number, row.MadeAt
	return nil
}

// booksList returns the answer of GET /ops/api/books.
func (s *Store) booksList(ctx context.Context) (json.RawMessage, error) {
	var list []byte
	if err := s.db.WithContext(ctx).Raw(booksListSQL).Row().Scan(&list); err != nil {
		return nil, fmt.Errorf("read the payment books: %w", err)
	}
	return list, nil
}

// unknownAttempts returns those of the attempts that the database does not have.
func (s *Store) unknownAttempts(ctx context.Context, sessions map[uuid.UUID]Session) (unknown []uuid.UUID, err error) {
	ids := make([]uuid.UUID, 0, len(sessions))
	for id := range sessions {
		ids = append(ids, id)
	}
	var rows []struct{ ID uuid.UUID }
	err = s.rows(ctx, &rows, `SELECT id FROM unnest($1::uuid[]) AS id WHERE NOT EXISTS (SELECT FROM payment_attempts a WHERE a.id = id.id)`, ids)
	if err != nil {
		return nil, fmt.Errorf("look for payment attempts: %w", err)
	}
	for _, row := range rows {
		unknown = append(unknown, row.ID)
	}
	return unknown, nil
}

// lookedAt returns until when an operator has looked at lost sessions: when the newest was made that an incident was about,
// by the provider's clock. It is the zero time if an incident is open, or there was none.
func (s *Store) lookedAt(ctx context.Context) (time.Time, error) {
	var row struct{ SeenUntil time.Time }
	_, err := s.row(ctx, &row, `SELECT max(seen_until) AS seen_until FROM payment_incidents WHERE kind = 'lost_sessions'
		HAVING bool_and(closed_at IS NOT NULL) AND max(seen_until) IS NOT NULL`)
	if err != nil {
		return time.Time{}, fmt.Errorf("read payment incidents: %w", err)
	}
	return row.SeenUntil, nil
}

// openIncident opens an incident about lost sessions, or replaces the text of the one that is open. newest is when the
// newest was made.
func (s *Store) openIncident(ctx context.Context, detail string, newest time.Time) error {
	return s.booksExec(ctx, `INSERT INTO payment_incidents (id, kind, detail, seen_until) VALUES ($1, 'lost_sessions', $2, $3)
		ON CONFLICT (kind) WHERE closed_at IS NULL DO UPDATE SET detail = excluded.detail, seen_until = excluded.seen_until`,
		keyset.NewID(), detail, newest)
}
