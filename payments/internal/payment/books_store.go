package payment

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
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

// Report compares the provider's books with the tables.
type Report struct {
	Number          int64            `json:"number"`
	MadeAt          time.Time        `json:"made_at"`
	Position        time.Time        `json:"position"` // all movements before it are read
	Balanced        bool             `json:"balanced"` // reports whether nothing needs an operator, apart from unclaimed money
	Foreign         int64            `json:"foreign_charges"`
	ExpiredSessions int64            `json:"expired_sessions"`
	LostSessions    int64            `json:"lost_sessions"` // open ones that an operator must look at before they are expired
	Currencies      []CurrencyReport `json:"currencies"`
}

// CurrencyReport is the part of a report about one currency. The amounts are cents:
//
//	there.closing = here.closing + unclaimed + under way - missing + missing refunds - returned twice + other + unexplained
type CurrencyReport struct {
	Currency           string          `json:"currency"`
	There              Sums            `json:"there"`
	Here               Sums            `json:"here"`
	UnclaimedCents     int64           `json:"unclaimed_cents"` // of this deployment, and matches no attempt
	KeptCents          int64           `json:"kept_cents"`      // the part of it that an operator has kept
	UnderWayCents      int64           `json:"under_way_cents"` // final on one side only, until now
	MissingCents       int64           `json:"missing_cents"`   // captured here, and not there
	MissingRefundCents int64           `json:"missing_refund_cents"`
	TwiceCents         int64           `json:"returned_twice_cents"` // settled outside, and refunded there
	ByHandCents        int64           `json:"by_hand_cents"`        // refunded there, known here only by the books
	OtherCents         int64           `json:"other_cents"`          // other amounts or currencies
	UnexplainedCents   int64           `json:"unexplained_cents"`
	DifferenceCount    int64           `json:"difference_count"`
	Differences        json.RawMessage `json:"differences"` // at most 100
}

// Sums are the movements since the last report: opening + captured - refunded - disputed = closing.
type Sums struct {
	OpeningCents  int64 `json:"opening_cents"`
	CapturedCents int64 `json:"captured_cents"`
	RefundedCents int64 `json:"refunded_cents"`
	DisputedCents int64 `json:"disputed_cents"`
	ClosingCents  int64 `json:"closing_cents"`
	// The sums of all reports until this one, from which the next report follows.
	TotalCaptured int64 `json:"total_captured_cents"`
	TotalRefunded int64 `json:"total_refunded_cents"`
	TotalDisputed int64 `json:"total_disputed_cents"`
}

// after returns the sums of a report whose predecessor has the sums before. total are the sums of all reports.
func (before Sums) after(captured, refunded, disputed int64) Sums {
	s := Sums{OpeningCents: before.ClosingCents, TotalCaptured: captured, TotalRefunded: refunded, TotalDisputed: disputed,
		CapturedCents: captured - before.TotalCaptured, RefundedCents: refunded - before.TotalRefunded, DisputedCents: disputed - before.TotalDisputed}
	s.ClosingCents = s.OpeningCents + s.CapturedCents - s.RefundedCents - s.DisputedCents
	return s
}

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
	var row struct{ Report int64 }
	due, err = s.row(ctx, &row, `
		WITH told AS (UPDATE provider_events SET books_from = NULL WHERE books_from <= now() RETURNING id)
		UPDATE payment_books SET next_run = now() + interval '10 min' WHERE next_run <= now() OR EXISTS (SELECT FROM told) RETURNING report`)
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

// booked runs do in a transaction that holds the lock of the books. So no movement is added to a report that is made. After
// a deadlock, for example with an event about several refunds, it does so again.
func (s *Store) booked(ctx context.Context, do func(tx *Store, report int64, position time.Time) error) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			var books struct {
				Report   int64
				Position time.Time
			}
			if err := tx.Raw(`SELECT report, position FROM payment_books FOR UPDATE`).Scan(&books).Error; err != nil {
				return err
			}
			return do(&Store{db: tx, TaskRows: s.TaskRows}, books.Report, books.Position)
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
	err = s.booked(ctx, func(tx *Store, _ int64, _ time.Time) error {
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

// comparison is a row that books_report.sql returns.
type comparison struct {
	Currency                                                                 string
	ThereCaptured, ThereRefunded, ThereDisputed                              int64
	HereCaptured, HereRefunded, HereDisputed                                 int64
	Unclaimed, Kept, UnderWay, Missing, MissingRefunds, Twice, ByHand, Other int64
	Count                                                                    int64
	Differences                                                              string
}

// makeReport has what the books know better settled, and stores the next report.
func (s *Store) makeReport(ctx context.Context, foreign, expired, lost int64) (*Report, error) {
	var report *Report
	err := s.booked(ctx, func(tx *Store, number int64, position time.Time) error {
		report = &Report{Foreign: foreign, ExpiredSessions: expired, LostSessions: lost, Balanced: lost == 0, Currencies: []CurrencyReport{}}
		// The statements read whole tables.
		if err := tx.booksExec(ctx, `SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'on', true)`); err != nil {
			return err
		}
		var count struct{ Checks int64 }
		if _, err := tx.row(ctx, &count, booksSettleSQL, s.RowKind(SettleKind), s.RowKind(RefundKind)); err != nil {
			return err
		}
		if err := tx.booksExec(ctx, booksUnclaimedSQL, keyset.NewID()); err != nil {
			return err
		}
		last, err := tx.report(ctx)
		if err != nil {
			return err
		}
		report.Number, report.Position = number+1, position
		var rows []comparison
		if err := tx.rows(ctx, &rows, booksReportSQL, report.Number, position); err != nil {
			return err
		}
		for _, row := range rows {
			c := row.compare(last.of(row.Currency))
			report.Balanced = report.Balanced && c.UnexplainedCents == 0 && c.DifferenceCount == 0
			report.Currencies = append(report.Currencies, c)
		}
		return tx.storeReport(ctx, report)
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// compare returns a currency's part of a report. last is that of the report before.
func (row comparison) compare(last CurrencyReport) CurrencyReport {
	t := last.There
	c := CurrencyReport{Currency: row.Currency,
		There:          t.after(t.TotalCaptured+row.ThereCaptured, t.TotalRefunded+row.ThereRefunded, t.TotalDisputed+row.ThereDisputed),
		Here:           last.Here.after(row.HereCaptured, row.HereRefunded, row.HereDisputed),
		UnclaimedCents: row.Unclaimed, KeptCents: row.Kept, UnderWayCents: row.UnderWay, MissingCents: row.Missing,
		MissingRefundCents: row.MissingRefunds, TwiceCents: row.Twice, ByHandCents: row.ByHand, OtherCents: row.Other,
		DifferenceCount: row.Count, Differences: json.RawMessage(row.Differences)}
	c.UnexplainedCents = c.There.ClosingCents - c.Here.ClosingCents - c.UnclaimedCents - c.UnderWayCents +
		c.MissingCents - c.MissingRefundCents + c.TwiceCents - c.OtherCents
	return c
}

// of returns the part of a report about a currency. r may be nil.
func (r *Report) of(currency string) CurrencyReport {
	if r != nil {
		for _, c := range r.Currencies {
			if c.Currency == currency {
				return c
			}
		}
	}
	return CurrencyReport{}
}

// report returns the last report, or nil.
func (s *Store) report(ctx context.Context) (*Report, error) {
	var row struct{ Report string }
	found, err := s.row(ctx, &row, `SELECT report::text AS report FROM payment_reports ORDER BY number DESC LIMIT 1`)
	if err != nil || !found {
		return nil, err
	}
	var r Report
	return &r, json.Unmarshal([]byte(row.Report), &r)
}

func (s *Store) storeReport(ctx context.Context, r *Report) error {
	var row struct{ At time.Time }
	if _, err := s.row(ctx, &row, `SELECT clock_timestamp() AS at`); err != nil {
		return err
	}
	r.MadeAt = row.At
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := s.booksExec(ctx, `INSERT INTO payment_reports (number, made_at, report) VALUES ($1, $2, $3::jsonb)`, r.Number, r.MadeAt, string(body)); err != nil {
		return err
	}
	return s.booksExec(ctx, `UPDATE payment_books SET report = $1, next_run = clock_timestamp() + $2::bigint * interval '1 microsecond'`,
		r.Number, booksEvery.Microseconds())
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
