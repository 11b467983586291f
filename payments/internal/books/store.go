package books

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/refund"
)

var (
	//go:embed match.sql
	matchSQL string
	//go:embed settle.sql
	settleSQL string
	//go:embed unclaimed.sql
	unclaimedSQL string
	//go:embed report.sql
	reportSQL string
	//go:embed list.sql
	listSQL string
)

// scan runs a statement, scans its rows into dst, and reports whether there are any.
func (r *Reconciliation) scan(ctx context.Context, dst any, statement string, args ...any) (found bool, err error) {
	found, err = postgres.Scan(ctx, r.db, dst, statement, args...)
	if err != nil {
		return false, fmt.Errorf("payment books: %w", err)
	}
	return found, nil
}

// claim reports whether a report is due, and if so, makes it due again in ten minutes. This only saves calls.
func (r *Reconciliation) claim(ctx context.Context) (due bool, err error) {
	var row struct{ Position time.Time }
	return r.scan(ctx, &row, `
		UPDATE payment_books SET next_run = now() + interval '10 min' WHERE next_run <= now() RETURNING position`)
}

// locked runs do in a transaction that holds the lock of the books, so that no movement is stored while a report is
// made. After a deadlock, for example with a worker that takes several refunds, it does so again. The statements read
// whole tables, or store up to a day of movements, so they have no timeout.
func (r *Reconciliation) locked(ctx context.Context, do func(tx *gorm.DB, position time.Time) error) error {
	err := postgres.RetryDeadlock(func() error {
		return r.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			var position time.Time
			if err := tx.Raw(`SELECT position FROM payment_books FOR UPDATE`).Scan(&position).Error; err != nil {
				return err
			}
			if err := tx.Exec(`SELECT set_config('statement_timeout', '0', true)`).Error; err != nil {
				return err
			}
			return do(tx, position)
		})
	})
	if err != nil {
		return fmt.Errorf("payment books: %w", err)
	}
	return nil
}

// storeMovements stores movements and moves the position.
func (r *Reconciliation) storeMovements(ctx context.Context, rows []booked, position time.Time) error {
	body, err := json.Marshal(rows)
	if err != nil {
		return fmt.Errorf("payment books: %w", err)
	}
	return r.locked(ctx, func(tx *gorm.DB, _ time.Time) error {
		return tx.Exec(matchSQL, string(body), position).Error
	})
}

// complete has what the books know better settled, and completes and stores a report.
func (r *Reconciliation) complete(ctx context.Context, report *Report) error {
	return r.locked(ctx, func(tx *gorm.DB, position time.Time) error {
		if err := tx.Exec(`SELECT set_config('enable_seqscan', 'on', true)`).Error; err != nil {
			return err
		}
		err := tx.Exec(settleSQL, attempt.Kind, refund.Kind).Error
		if err != nil {
			return err
		}
		if err := tx.Exec(unclaimedSQL, keyset.NewID()).Error; err != nil {
			return err
		}
		if err := tx.Raw(reportSQL, position).Scan(&report.Currencies).Error; err != nil {
			return err
		}
		report.Position = position
		report.Balanced = report.LostSessions == 0 &&
			!slices.ContainsFunc(report.Currencies, func(c CurrencyReport) bool { return c.DifferenceCount > 0 })
		body, err := json.Marshal(report)
		if err != nil {
			return err
		}
		return tx.Raw(`
			WITH next AS (UPDATE payment_books SET next_run = clock_timestamp() + $2::bigint * interval '1 microsecond')
			INSERT INTO payment_reports (report) VALUES ($1::jsonb) RETURNING number, made_at`,
			string(body), every.Microseconds()).Row().Scan(&report.Number, &report.MadeAt)
	})
}

// Last returns the last report, or nil.
func (r *Reconciliation) Last(ctx context.Context) (*Report, error) {
	var row struct{ Report string }
	found, err := r.scan(ctx, &row, `
		SELECT (report || jsonb_build_object('number', number, 'made_at', made_at))::text AS report
		FROM payment_reports ORDER BY number DESC LIMIT 1`)
	if err != nil || !found {
		return nil, err
	}
	var report Report
	return &report, json.Unmarshal([]byte(row.Report), &report)
}

// List returns the answer of GET /ops/api/books.
func (r *Reconciliation) List(ctx context.Context) (json.RawMessage, error) {
	var list []byte
	if err := r.db.WithContext(ctx).Raw(listSQL).Row().Scan(&list); err != nil {
		return nil, fmt.Errorf("read the payment books: %w", err)
	}
	return list, nil
}
