package payment

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/keyset"
)

// BooksProvider is the part of a provider that the reconciliation with its books calls.
type BooksProvider interface {
	Books
	Expire(ctx context.Context, session string) (Session, error)
}

const (
	// booksOverlap is the time before the position from which the books are read again. A movement may become visible after
	// later ones. With a shorter time, such a movement could be lost; with a longer one, more rows are read again.
	booksOverlap = 15 * time.Minute
	// booksMargin is the time before the provider's present that is not read yet, because rows of it may still appear. A
	// longer one delays the report.
	booksMargin = time.Minute
	// booksChunk is the longest period that is read and stored at a time. With a longer one, an error repeats more pages.
	booksChunk = 24 * time.Hour
	// booksLook is the time between two looks at whether the books are due, and booksEvery the time between two reports.
	booksLook  = time.Minute
	booksEvery = time.Hour
	// sessionAge is longer than any session of the provider stays open, by an hour by which its clock may differ.
	sessionAge = 25 * time.Hour
)

// Reconciliation compares the provider's books with the tables. The books are the provider's movements: each is a new row
// there, while its payments and refunds change. It is safe to run in several processes at the same time.
type Reconciliation struct {
	store    *Store
	provider BooksProvider
	cfg      Config
	log      *slog.Logger
	foreign  prometheus.Counter
}

// NewReconciliation returns the reconciliation with a provider's books. It registers its metrics with reg.
func NewReconciliation(s *Store, p BooksProvider, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Reconciliation {
	return &Reconciliation{store: s, provider: p, cfg: cfg, log: log,
		foreign: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "payment_foreign_charges_total",
			Help: "Payments in the provider's books that another application or deployment has taken.",
		})}
}

// RunHourly makes a report every hour until ctx ends. An error is logged, and the report is tried again.
func (r *Reconciliation) RunHourly(ctx context.Context) error {
	ticker := time.NewTicker(booksLook)
	defer ticker.Stop()
	for {
		due, err := r.store.claimBooks(ctx)
		if err == nil && due {
			_, err = r.Run(ctx, time.Time{})
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the payment provider's books could not be read; they are read again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Run reads the books from the stored position, or again from an earlier time if from is one, has what they know better
// settled, and makes a report.
func (r *Reconciliation) Run(ctx context.Context, from time.Time) (*Report, error) {
	if err := r.store.initBooks(ctx); err != nil {
		return nil, err
	}
	position, err := r.store.booksPosition(ctx)
	if err != nil {
		return nil, err
	}
	if !from.IsZero() && from.Before(position) { // from a later time, movements would be left out for ever
		position = from
	}
	var foreign int64
	for more := true; more; {
		var others int64
		if others, position, more, err = r.readChunk(ctx, position); err != nil {
			return nil, err
		}
		foreign += others
	}
	r.foreign.Add(float64(foreign))
	expired, waiting, err := r.expireLost(ctx)
	if err != nil {
		return nil, err
	}
	report, err := r.store.makeReport(ctx, foreign, expired, waiting)
	if err != nil {
		return nil, err
	}
	if report.Balanced {
		r.log.InfoContext(ctx, "the payment provider's books agree with the tables", "report", report.Number, "position", report.Position)
	} else {
		r.log.ErrorContext(ctx, "the payment provider's books differ from the tables: read docs/payments.md, The provider's books",
			"report", report.Number, "lost_sessions", report.LostSessions, "currencies", report.Currencies)
	}
	return report, nil
}

// readChunk reads all pages of the period after a position, and then stores them in one transaction, with the end of the
// period as the position if that is later than the stored one. It returns the end, and reports whether there is another
// period.
func (r *Reconciliation) readChunk(ctx context.Context, position time.Time) (others int64, to time.Time, more bool, err error) {
	from := position.Add(-booksOverlap).Truncate(time.Second)
	to = position.Add(booksChunk).Truncate(time.Second)
	var rows []bookedRow
	var end time.Time // by the provider's clock when it answered the first page: rows that appear later are newer
	for after := ""; ; {
		page, err := patient(ctx, func() (MovementPage, error) { return r.provider.Movements(ctx, from, to, after) })
		if err != nil {
			return 0, to, false, fmt.Errorf("read the provider's books from %s to %s: %w", from, to, err)
		}
		if end.IsZero() {
			end = page.Now.Add(-booksMargin).Truncate(time.Second)
		}
		for _, m := range page.Rows {
			after = m.ID
			if m.Kind != OtherMovement && m.AmountCents > 0 && m.At.Before(end) {
				rows = append(rows, r.booked(m))
			}
		}
		if !page.More || len(page.Rows) == 0 {
			break
		}
	}
	if more = to.Before(end); !more {
		to = end
	}
	others, err = r.store.storeMovements(ctx, rows, to)
	return others, to, more, err
}

// patient reads a page. While the provider gets too many calls, or a call that somebody waits for goes first, it waits and
// tries again: a page that fails would repeat all pages of the period.
func patient[T any](ctx context.Context, read func() (T, error)) (page T, err error) {
	const tries, wait = 120, 500 * time.Millisecond // a minute: with less, a busy shop would never get a report
	for range tries {
		if page, err = read(); !isClass(err, Busy) {
			return page, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return page, err
		}
	}
	return page, err
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

// optionalID returns an id, or nil if a text is none.
func optionalID(text string) *uuid.UUID {
	id, err := keyset.ParseID(text)
	if err != nil {
		return nil
	}
	return &id
}

// expireLost expires open sessions of this deployment whose attempts the database does not have, as after a restore: their
// tabs could pay next to a new order. It expires only sessions that an operator has known of, by an incident that is
// closed. Otherwise it opens the incident. It returns the numbers of both.
func (r *Reconciliation) expireLost(ctx context.Context) (expired, waiting int64, err error) {
	var lost []Session
	ids, since := map[uuid.UUID]Session{}, time.Now().Add(-sessionAge)
	for after := ""; ; {
		page, err := patient(ctx, func() (SessionPage, error) { return r.provider.OpenSessions(ctx, since, after) })
		if err != nil {
			return 0, 0, fmt.Errorf("list open sessions: %w", err)
		}
		for _, s := range page.Rows {
			after = s.ID
			if id := optionalID(s.Attempt); id != nil && r.owns(s.Owner) && (r.cfg.Mode == "" || s.Live == (r.cfg.Mode == "live")) {
				ids[*id] = s
			}
		}
		if !page.More || len(page.Rows) == 0 {
			break
		}
	}
	unknown, err := r.store.unknownAttempts(ctx, ids) // asked after the list: attempts are committed before their sessions are made
	if err != nil || len(unknown) == 0 {
		return 0, 0, err
	}
	for _, id := range unknown {
		lost = append(lost, ids[id])
	}
	seenUntil, err := r.store.lookedAt(ctx)
	if err != nil {
		return 0, 0, err
	}
	var newest time.Time
	for _, s := range lost {
		if s.CreatedAt.After(seenUntil) {
			waiting++
			if s.CreatedAt.After(newest) {
				newest = s.CreatedAt
			}
			continue
		}
		if _, err := r.provider.Expire(ctx, s.ID); err != nil { // the next run tries again
			r.log.WarnContext(ctx, "an open session whose attempt the database does not have was not expired", "session", s.ID, "error", err)
			continue
		}
		expired++
		r.log.WarnContext(ctx, "an open session whose attempt the database does not have was expired", "session", s.ID, "attempt", s.Attempt)
	}
	if waiting > 0 {
		err = r.store.openIncident(ctx, fmt.Sprintf("%d open sessions at the provider belong to attempts that the database does not have", waiting), newest)
	}
	return expired, waiting, err
}
