package payment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
)

// BooksProvider is the part of a provider that the reconciliation with its books calls.
type BooksProvider interface {
	Books
	Expire(ctx context.Context, session string) (Session, error)
}

const (
	// booksOverlap is the time before the position from which the books are read again, because a movement may become
	// visible after later ones.
	booksOverlap = 15 * time.Minute
	// booksMargin is the time before the provider's present that is not read yet, because rows of it may still appear.
	booksMargin = time.Minute
	// booksChunk is the longest period that is read and stored at a time. After an error, its pages are read again.
	booksChunk = 24 * time.Hour
	// booksLook is the time between two looks at whether the books are due, and booksEvery the time between two reports.
	booksLook  = time.Minute
	booksEvery = time.Hour
)

// BooksConfig configures the reconciliation with the provider's books.
type BooksConfig struct {
	Deployment  string // whose payments and sessions are this shop's; see [Owner]
	AttemptKind string // the kind of the tasks that check attempts
}

// Reconciliation compares the provider's books with the tables. The books are the provider's movements: each is a new
// row there, while its payments and refunds change. It is safe to run in several processes at the same time.
type Reconciliation struct {
	db       *gorm.DB
	tasks    delay.TaskRows
	provider BooksProvider
	cfg      BooksConfig
	log      *slog.Logger
}

// NewReconciliation returns the reconciliation with a provider's books.
func NewReconciliation(
	db *gorm.DB, tasks delay.TaskRows, p BooksProvider, cfg BooksConfig, log *slog.Logger,
) *Reconciliation {
	return &Reconciliation{db: db, tasks: tasks, provider: p, cfg: cfg, log: log}
}

// RunHourly makes a report every hour until ctx ends. An error is logged, and the report is tried again.
func (r *Reconciliation) RunHourly(ctx context.Context) error {
	look := func(ctx context.Context) {
		due, err := r.claim(ctx)
		if err == nil && due {
			_, err = r.Run(ctx, time.Time{})
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the payment provider's books could not be read; they are read again", "error", err)
		}
	}
	look(ctx)
	return reconcile.Every(ctx, booksLook, r.log, look)
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
		foreign, to, again, err := r.readChunk(ctx, position)
		if err != nil {
			return nil, err
		}
		report.Foreign += foreign
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
// the period as the position if that is later than the stored one. It returns the number of new payments of others
// and the end, and reports whether there is another period.
func (r *Reconciliation) readChunk(
	ctx context.Context, position time.Time,
) (foreign int64, to time.Time, more bool, err error) {
	from := position.Add(-booksOverlap).Truncate(time.Second)
	to = position.Add(booksChunk).Truncate(time.Second)
	read := func(after string) (MovementPage, error) { return r.provider.Movements(ctx, from, to, after) }
	movements, now, err := all(ctx, read, func(m Movement) string { return m.ID })
	if err != nil {
		return 0, to, false, fmt.Errorf("read the provider's books from %s to %s: %w", from, to, err)
	}
	end := now.Add(-booksMargin).Truncate(time.Second) // rows that appear later are newer
	rows := []bookedRow{}                              // in JSON [], and not null
	for _, m := range movements {
		if m.Kind != OtherMovement && m.AmountCents > 0 && m.At.Before(end) {
			rows = append(rows, r.booked(m))
		}
	}
	if more = to.Before(end); !more {
		to = end
	}
	foreign, err = r.storeMovements(ctx, rows, to)
	return foreign, to, more, err
}

// all reads all pages of a list. It returns the rows, and the provider's time when it answered the first page. While
// the provider gets too many calls, or a call that somebody waits for goes first, it waits and tries again, because a
// page that fails would repeat all pages of the period.
func all[T any](
	ctx context.Context, read func(after string) (Page[T], error), id func(T) string,
) (rows []T, now time.Time, err error) {
	const tries, wait = 120, 500 * time.Millisecond // a minute, so that a busy shop gets a report, too
	for after, tried := "", 0; ; {
		page, err := read(after)
		if isClass(err, Busy) && tried < tries {
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

// bookedRow is a movement as books_match.sql reads it.
type bookedRow struct {
	ID          string       `json:"id"`
	Kind        MovementKind `json:"kind"`
	At          time.Time    `json:"at"`
	AmountCents int64        `json:"amount_cents"`
	Currency    string       `json:"currency"`
	Source      string       `json:"source_id"`
	Intent      string       `json:"intent"`
	Refund      *uuid.UUID   `json:"refund_id"`
	Order       *uuid.UUID   `json:"meta_order"`
	Attempt     *uuid.UUID   `json:"meta_attempt"`
	Ours        bool         `json:"ours"`
}

func (r *Reconciliation) booked(m Movement) bookedRow {
	row := bookedRow{ID: m.ID, Kind: m.Kind, At: m.At, AmountCents: m.AmountCents, Currency: m.Currency,
		Source: m.Source, Intent: m.Intent, Refund: optionalID(m.Refund), Ours: r.owns(m.Owner)}
	if row.Ours {
		row.Order, row.Attempt = optionalID(m.Order), optionalID(m.Attempt)
	}
	return row
}

// owns reports whether an object at the provider names this deployment.
func (r *Reconciliation) owns(o Owner) bool {
	return o.Deployment != "" && o.Deployment == r.cfg.Deployment
}
