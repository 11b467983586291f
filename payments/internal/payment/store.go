package payment

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

// Each step of an attempt and of a refund is one statement, which is one round trip and one transaction.
var (
	//go:embed open.sql
	openSQL string
	//go:embed opened.sql
	openedSQL string
	//go:embed take.sql
	takeSQL string
	//go:embed left.sql
	leftSQL string
	//go:embed close.sql
	closeSQL string
	//go:embed succeed.sql
	succeedSQL string
	//go:embed answered.sql
	answeredSQL string
	//go:embed hear.sql
	hearSQL string
	//go:embed returned.sql
	returnedSQL string
	//go:embed pending.sql
	pendingSQL string
)

const (
	// maxAttempts is the largest number of attempts of an order.
	maxAttempts = 20
	// maxOpenAttempts is the largest number of an order's attempts whose checkouts were open.
	maxOpenAttempts = 5
)

// Store keeps attempts and refunds in PostgreSQL.
type Store struct {
	db *gorm.DB

	delay.TaskRows
}

// NewStore returns a store in a database that [postgres.Open] connected to.
func NewStore(db *gorm.DB) *Store { return &Store{db: db} }

// errNoOrder means that an id is not the id of one of the customer's orders. Another customer may have an order with this
// id.
var errNoOrder = errors.New("the customer has no order with this id")

// row runs a statement that returns at most one row, and reports whether there is one.
func (s *Store) row(ctx context.Context, dst any, statement string, args ...any) (found bool, err error) {
	return postgres.Scan(ctx, s.db, dst, statement, args...)
}

// rows runs a statement and scans its rows into dst, a pointer to a slice.
func (s *Store) rows(ctx context.Context, dst any, statement string, args ...any) error {
	_, err := postgres.Scan(ctx, s.db, dst, statement, args...)
	return err
}

// opening is the row that open.sql returns: the order, and the attempt, if one was opened.
type opening struct {
	order.Order `gorm:"embedded"`
	AttemptID   *uuid.UUID // nil: none was opened
	OpenedAt    time.Time
	NextCheck   time.Time

	SessionExpiresAt time.Time

	Attempts, OpenAttempts int64 // that the order had before: all that count, and those of them whose checkouts were open
}

// open opens an attempt with the given id, unless the order cannot have one now. providerNow is the present by the
// provider's clock.
func (s *Store) open(ctx context.Context, id, orderID, customer uuid.UUID, cfg Config, providerNow time.Time) (*opening, error) {
	var o opening
	found, err := s.row(ctx, &o, openSQL, id, orderID, customer, cfg.Grace.Microseconds(), s.RowKind(SettleKind), maxAttempts,
		cfg.Checkout.Microseconds(), providerNow, cfg.Extension.Microseconds(), maxOpenAttempts,
		minimumJSON, maxCreating.Microseconds())
	switch {
	case err != nil:
		return nil, fmt.Errorf("open payment of order %s: %w", orderID, err)
	case !found:
		return nil, errNoOrder
	}
	return &o, nil
}

// opened stores the session of an attempt that is creating, and reports whether the attempt is open now because of that.
func (s *Store) opened(ctx context.Context, a *Attempt, made Session) (bool, error) {
	var row struct {
		CheckoutURL   string
		CheckoutUntil time.Time
	}
	found, err := s.row(ctx, &row, openedSQL, a.ID, made.ID, made.URL)
	switch {
	case err != nil:
		return false, fmt.Errorf("store session of attempt %s: %w", a.ID, err)
	case !found:
		return false, nil
	}
	a.State, a.CheckoutURL, a.CheckoutUntil = Open, row.CheckoutURL, &row.CheckoutUntil
	return true, nil
}

// attempts begins a query for the fields of [Attempt]. The alias of payment_attempts is a, of orders o.
func (s *Store) attempts(ctx context.Context) *gorm.DB {
	const closing = `(a.state IN ('creating', 'open') AND (o.status <> 'pending'
		OR checkout_closes_at(o.expires_at, o.cancel_requested_at, a.checkout_until, a.session_until) <= now()))`
	return s.db.WithContext(ctx).Table("payment_attempts a").Joins("JOIN orders o ON o.id = a.order_id").
		Joins("LEFT JOIN refunds r ON r.attempt_id = a.id").
		Select(`a.id, a.order_id, a.state, a.applied, ` + closing + ` AS closing, a.amount_cents, upper(a.currency) AS currency,
			CASE WHEN NOT ` + closing + ` THEN coalesce(a.checkout_url, '') ELSE '' END AS checkout_url,
			CASE WHEN NOT ` + closing + ` THEN checkout_closes_at(o.expires_at, NULL, a.checkout_until, a.session_until) END AS checkout_until,
			a.opened_at, a.ended_at,
			a.session_expires_at,
			CASE WHEN r.id IS NOT NULL THEN json_build_object(
				'state', r.state, 'reason', CASE WHEN r.reason = 'late' AND o.status = 'paid' THEN 'duplicate' ELSE r.reason END,
				'amount_cents', r.amount_cents, 'ended_at', r.ended_at) END AS refund`) // see succeed.sql
}

// get returns an attempt, or nil if there is none with this id.
func (s *Store) get(ctx context.Context, id uuid.UUID) (*Attempt, error) {
	return scanAttempt(s.attempts(ctx).Where("a.id = ?", id))
}

// live returns the live attempt of an order, or nil if there is none.
func (s *Store) live(ctx context.Context, orderID uuid.UUID) (*Attempt, error) {
	return scanAttempt(s.attempts(ctx).Where("a.order_id = ? AND a.state IN ('creating', 'open')", orderID))
}

// scanAttempt returns the attempt that a query finds, or nil if it finds none.
func scanAttempt(query *gorm.DB) (*Attempt, error) {
	var a Attempt
	result := query.Scan(&a)
	switch {
	case result.Error != nil:
		return nil, fmt.Errorf("read payment attempt: %w", result.Error)
	case result.RowsAffected == 0:
		return nil, nil
	}
	return &a, nil
}

// ofOrder returns the attempts of one of a customer's orders, the latest first.
func (s *Store) ofOrder(ctx context.Context, customer, orderID uuid.UUID) ([]Attempt, error) {
	attempts := []Attempt{}
	query := s.attempts(ctx).Where("a.order_id = ? AND o.customer_id = ?", orderID, customer)
	if err := query.Order("a.number DESC").Scan(&attempts).Error; err != nil {
		return nil, fmt.Errorf("list payments of order %s: %w", orderID, err)
	}
	if len(attempts) > 0 {
		return attempts, nil
	}
	var known bool
	err := s.db.WithContext(ctx).Raw(`SELECT EXISTS (SELECT FROM orders WHERE id = ? AND customer_id = ?)`, orderID, customer).Scan(&known).Error
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for order %s: %w", orderID, err)
	case !known:
		return nil, errNoOrder
	}
	return attempts, nil
}

// list returns up to limit of a customer's attempts, the latest first. It starts with the attempt that follows the cursor, or
// with the latest one if after is nil.
func (s *Store) list(ctx context.Context, customer uuid.UUID, after *keyset.Cursor, limit int) ([]Attempt, error) {
	query := s.attempts(ctx).Where("o.customer_id = ?", customer)
	if after != nil {
		query = query.Where("(a.opened_at, a.id) < (?, ?)", after.At, after.ID)
	}
	attempts := []Attempt{}
	if err := query.Order("a.opened_at DESC, a.id DESC").Limit(limit).Scan(&attempts).Error; err != nil {
		return nil, fmt.Errorf("list payments: %w", err)
	}
	return attempts, nil
}

// taken is an attempt that is taken for a check: no other worker takes it before its next check.
type taken struct {
	ID         uuid.UUID
	OrderID    uuid.UUID
	State      State
	SessionID  string    // "" if the provider has not answered with a session
	Closing    bool      // reports whether the provider is to be asked to expire it
	Stale      bool      // reports whether it is older than maxCreating
	Told       bool      // reports whether an event has told of its end
	OrderEnded bool      // reports whether the order is paid or cancelled
	NextCheck  time.Time // when it is checked again unless the provider answers
	ServerTime time.Time // zero if take.sql has taken it
}

// take takes those attempts of the orders that are due for a check.
func (s *Store) take(ctx context.Context, orders []uuid.UUID) (attempts []taken, err error) {
	if err := s.rows(ctx, &attempts, takeSQL, orders, maxCreating.Microseconds()); err != nil {
		return nil, fmt.Errorf("take payment attempts: %w", err)
	}
	return attempts, nil
}

// answered stores that the provider has answered for an attempt that was taken, and that the attempt goes on.
func (s *Store) answered(ctx context.Context, a taken) error {
	if err := s.db.WithContext(ctx).Exec(answeredSQL, a.ID, a.NextCheck).Error; err != nil {
		return fmt.Errorf("store that the provider has answered for attempt %s: %w", a.ID, err)
	}
	return nil
}

// endChecks ends the checks of a closed attempt.
func (s *Store) endChecks(ctx context.Context, id uuid.UUID) error {
	err := s.db.WithContext(ctx).Exec(`UPDATE payment_attempts SET next_check = NULL WHERE id = ? AND state = 'closed'`, id).Error
	if err != nil {
		return fmt.Errorf("end the checks of attempt %s: %w", id, err)
	}
	return nil
}

// settlement is the row that close.sql and succeed.sql return: the order of the attempt, and what is due now.
type settlement struct {
	OrderID      uuid.UUID
	CustomerID   uuid.UUID
	RefundReason Reason     // why the success is refunded; "": it is not, or the attempt did not succeed
	RefundDueAt  time.Time  // when the refund is due, if there is one
	CancelDueAt  *time.Time // when the order that was released is due to be cancelled; nil: it was not released
	ServerTime   time.Time
}

// close closes an attempt that is in the given state. It returns nil if the attempt is in another state.
func (s *Store) close(ctx context.Context, id uuid.UUID, state State, actor reconcile.Actor) (*settlement, error) {
	var done settlement
	found, err := s.row(ctx, &done, closeSQL, id, state, s.RowKind(order.CancelKind), actor)
	switch {
	case err != nil:
		return nil, fmt.Errorf("close attempt %s: %w", id, err)
	case !found:
		return nil, nil
	}
	return &done, nil
}

// succeed stores the success of an attempt. refund is the id of the refund if the success must be refunded. It returns
// nil if the success is stored already.
func (s *Store) succeed(ctx context.Context, id uuid.UUID, paid Session, refund uuid.UUID, actor reconcile.Actor) (*settlement, error) {
	var done settlement
	found, err := s.row(ctx, &done, succeedSQL,
		id, paid.ID, paid.Intent, paid.AmountCents, paid.Currency, refund, s.RowKind(order.CancelKind), s.RowKind(RefundKind), actor)
	switch {
	case err != nil:
		return nil, fmt.Errorf("store the success of attempt %s: %w", id, err)
	case !found:
		return nil, nil
	}
	return &done, nil
}
