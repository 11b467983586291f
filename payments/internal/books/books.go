// Package books compares the provider's books, which are its balance transactions, with the tables, so that money that
// the webhooks or the database have lost is found.
//
// Each hour a process reads the movements since the last position. Only they tell of disputes, of refunds by hand, and
// of refunds that fail at the customer's bank after the provider has confirmed them. Payments and refunds that the
// tables do not know are checked at the provider. What belongs to this deployment and matches no attempt is unclaimed:
// an incident opens, and no refund is sent until an operator has closed it.
package books

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/background"
	"example.com/shop/payments/internal/provider"
)

// Provider is the part of a provider that the reconciliation with its books calls.
type Provider interface {
	provider.Books
	Expire(ctx context.Context, session string) (provider.Session, error)
}

const (
	// overlap is the time before the position from which the books are read again, because a movement may become
	// visible after later ones.
	overlap = 15 * time.Minute
	// margin is the time before the provider's present that is not read yet, because rows of it may still appear.
	margin = time.Minute
	// chunk is the longest period that is read and stored at a time. After an error, its pages are read again.
	chunk = 24 * time.Hour
	// look is the time between two looks at whether the books are due, and every the time between two reports.
	look  = time.Minute
	every = time.Hour
)

// Reconciliation compares the provider's books with the tables. The books are the provider's movements: each is a new
// row there, while its payments and refunds change. It is safe to run in several processes at the same time.
type Reconciliation struct {
	db         *gorm.DB
	provider   Provider
	deployment string // whose payments and sessions are this shop's; see [provider.Owner]
	log        *slog.Logger
}

// NewReconciliation returns the reconciliation of a deployment with a provider's books.
func NewReconciliation(db *gorm.DB, p Provider, deployment string, log *slog.Logger) *Reconciliation {
	return &Reconciliation{db: db, provider: p, deployment: deployment, log: log}
}

// RunHourly makes a report every hour until ctx ends. An error is logged, and the report is tried again.
func (r *Reconciliation) RunHourly(ctx context.Context) error {
	lookOnce := func(ctx context.Context) {
		due, err := r.claim(ctx)
		if err == nil && due {
			_, err = r.Run(ctx, time.Time{})
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the payment provider's books could not be read; they are read again", "error", err)
		}
	}
	lookOnce(ctx)
	return background.Every(ctx, look, r.log, lookOnce)
}

// Run reads the books from the stored position, or again from an earlier time if from is one, has what they know
// better settled, and makes a report.
func (r *Reconciliation) Run(ctx context.Context, from time.Time) (*Report, error) {
	var books struct{ Position time.Time }
	if found, err := r.scan(ctx, &books, `SELECT position FROM payment_books`); err != nil {
		return nil, err
	} else if !found {
		return nil, errors.New("the table payment_books lacks the row of its migration: insert the time to read from")
	}
	position := books.Position
	if !from.IsZero() && from.Before(position) { // from a later time, movements would be left out for ever
		position = from
	}
	report := &Report{Currencies: []CurrencyReport{}}
	for more := true; more; {
		to, again, err := r.readChunk(ctx, position)
		if err != nil {
			return nil, err
		}
		position, more = to, again
	}
	expired, lost, err := r.expireLost(ctx)
	if err != nil {
		return nil, err
	}
	report.ExpiredSessions, report.LostSessions = expired, lost
	if err := r.complete(ctx, report); err != nil {
		return nil, err
	}
	if report.Balanced {
		r.log.InfoContext(ctx, "the payment provider's books agree with the tables",
			"report", report.Number, "position", report.Position)
	} else {
		r.log.ErrorContext(ctx,
			"the payment provider's books differ from the tables: read docs/payments.md, The provider's books",
			"report", report.Number, "lost_sessions", report.LostSessions, "currencies", report.Currencies)
	}
	return report, nil
}

// readChunk reads all pages of the period after a position, and then stores them in one transaction, with the end of
// the period as the position if that is later than the stored one. It returns the
// end, and reports whether there is another period.
func (r *Reconciliation) readChunk(ctx context.Context, position time.Time) (to time.Time, more bool, err error) {
	from := position.Add(-overlap).Truncate(time.Second)
	to = position.Add(chunk).Truncate(time.Second)
	read := func(after string) (provider.Page[provider.Movement], error) {
		return r.provider.Movements(ctx, from, to, after)
	}
	movements, now, err := all(ctx, read, func(m provider.Movement) string { return m.ID })
	if err != nil {
		return to, false, fmt.Errorf("read the provider's books from %s to %s: %w", from, to, err)
	}
	end := now.Add(-margin).Truncate(time.Second) // rows that appear later are newer
	rows := []booked{}                            // in JSON [], and not null
	for _, m := range movements {
		if m.Kind != provider.OtherMovement && m.AmountCents > 0 && m.At.Before(end) {
			rows = append(rows, r.booked(m))
		}
	}
	if more = to.Before(end); !more {
		to = end
	}
	return to, more, r.storeMovements(ctx, rows, to)
}

// all reads all pages of a list. It returns the rows, and the provider's time when it answered the first page. While
// the provider gets too many calls, or a call that somebody waits for goes first, it waits and tries again, because a
// page that fails would repeat all pages of the period.
func all[T any](
	ctx context.Context, read func(after string) (provider.Page[T], error), id func(T) string,
) (rows []T, now time.Time, err error) {
	const tries, wait = 120, 500 * time.Millisecond // a minute, so that a busy shop gets a report, too
	for after, tried := "", 0; ; {
		page, err := read(after)
		if provider.IsClass(err, provider.Busy) && tried < tries {
			tried++
			select {
			case <-time.After(wait):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil {
			return nil, now, err
		}
		if after == "" {
			now = page.Now
		}
		rows = append(rows, page.Rows...)
		if !page.More || len(page.Rows) == 0 {
			return rows, now, nil
		}
		after, tried = id(page.Rows[len(page.Rows)-1]), 0
	}
}

// booked is a movement as match.sql reads it.
type booked struct {
	ID          string                `json:"id"`
	Kind        provider.MovementKind `json:"kind"`
	At          time.Time             `json:"at"`
	AmountCents int64                 `json:"amount_cents"`
	Currency    string                `json:"currency"`
	Source      string                `json:"source_id"`
	Intent      string                `json:"intent"`
	Refund      *uuid.UUID            `json:"refund_id"`
	Order       *uuid.UUID            `json:"meta_order"`
	Attempt     *uuid.UUID            `json:"meta_attempt"`
	Ours        bool                  `json:"ours"`
}

func (r *Reconciliation) booked(m provider.Movement) booked {
	row := booked{ID: m.ID, Kind: m.Kind, At: m.At, AmountCents: m.AmountCents, Currency: m.Currency,
		Source: m.Source, Intent: m.Intent, Refund: provider.OptionalID(m.Refund), Ours: m.In(r.deployment)}
	if row.Ours {
		row.Order, row.Attempt = provider.OptionalID(m.Order), provider.OptionalID(m.Attempt)
	}
	return row
}
