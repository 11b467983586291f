package attempt

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

const (
	// maxAttempts is the largest number of attempts of an order: enough for one on each day of the longest deadline.
	maxAttempts = 50
	// maxCreating is the age at which an attempt that is still creating is closed: longer than the provider needs for
	// an answer. Nobody can pay the session, because its URL has not left the service.
	maxCreating = 30 * time.Second
)

// repeatOpen tells a customer what to do if the outcome of the request is not known.
const repeatOpen = "Repeat the request: it then continues the same payment."

// Open returns the live attempt of one of a customer's orders, with the URL of its checkout. It opens an attempt if the
// order has none; then opened is true. It is idempotent: after an error, a repeated call continues the same attempt.
func (s *Service) Open(ctx context.Context, customer, orderID uuid.UUID) (a *Attempt, opened bool, err error) {
	const maxTries = 5 // an attempt may end, or another session may open one, between two statements
	if err := s.provider.Ready(ctx); err != nil {
		return nil, false, providerAway(err)
	}
	for range maxTries {
		var isNew bool
		if a, isNew, err = s.liveAttempt(ctx, customer, orderID); err != nil {
			return nil, false, err
		}
		opened = opened || isNew
		if a != nil && a.State == Creating {
			a, err = s.createSession(ctx, a)
			s.orders.Notify(customer.String(), orderID.String())
		}
		if a != nil || err != nil {
			return a, opened, err
		}
	}
	return nil, false, &rest.Error{Class: ProviderAway, Detail: "The last checkout of the order is ending, or other " +
		"requests change the order's payments. Nothing was charged. Repeat the request in some seconds."}
}

// liveAttempt returns the live attempt of an order, also after the deadline if its checkout is still open. It opens
// one if there is none, and the deadline has not passed. It returns nil if neither is possible now: the live attempt is
// closing, or has just ended.
func (s *Service) liveAttempt(ctx context.Context, customer, orderID uuid.UUID) (a *Attempt, opened bool, err error) {
	a, why, err := s.openAttempt(ctx, customer, orderID)
	if err != nil || a != nil {
		return a, a != nil, err
	}
	a, err = s.attempt(ctx, "order_id = ? AND state IN ('creating', 'open')", orderID)
	switch {
	case err != nil:
		return nil, false, err
	case a != nil && !a.Closing:
		return a, false, nil
	case rest.AsError(why).Class == order.CheckoutOpen:
		return nil, false, nil
	}
	return nil, false, why
}

// openAttempt opens an attempt to pay an order, holds the order, and owes the task that settles the attempt, or returns
// the reason why it does not. Open tells the pages of the customer when the provider has answered.
func (s *Service) openAttempt(ctx context.Context, customer, orderID uuid.UUID) (a *Attempt, why, err error) {
	err = postgres.Transact(ctx, s.db, func(tx *postgres.Tx) error {
		var had int
		_, err := s.orders.Update(ctx, tx, orderID, func(o *order.Order) error {
			if o.CustomerID != customer {
				return order.NotFound(orderID)
			}
			a, why = s.open(tx, o, had)
			return nil
		}, func(tx *postgres.Tx) {
			const count = `SELECT count(*) FROM payment_attempts WHERE order_id = $1`
			tx.Queue(count, orderID).QueryRow(func(row pgx.Row) error { return row.Scan(&had) })
		})
		return err
	})
	if err != nil {
		return nil, nil, rest.OutcomeUnknown(err, repeatOpen)
	}
	if a != nil {
		s.metrics.opened.Inc()
	}
	return a, why, nil
}

const (
	// callTime is the time at the end of a session that is left for calls and for errors of the clocks.
	callTime = 5 * time.Minute
	// The provider accepts sessions of 30 minutes to 24 hours.
	minSession = 31 * time.Minute
	maxSession = 23*time.Hour + 55*time.Minute
)

// open opens an attempt for an order, and holds the order until a grace after the end of the attempt's checkout. The
// checkout ends at the deadline of the order, or some minutes after the opening if that is later, even if the deadline
// moves afterwards.
//
// had is the number of attempts that the order has had.
//
// The provider's session must not expire before. Only the length of this time comes from the database's clock. Its
// start is the present by the provider's clock, which decides when the session expires.
func (s *Service) open(tx *postgres.Tx, o *order.Order, had int) (*Attempt, error) {
	if err := o.WhyNotPayable(); err != nil {
		return nil, err
	}
	if err := WhyNotChargeable(o.TotalCents, o.Currency); err != nil {
		return nil, err
	}
	if had >= maxAttempts {
		return nil, TooManyAttempts.Errorf("The order has had %d payment attempts, and may have no more.", had)
	}
	now := o.ServerTime
	open := max(o.ExpiresAt.Sub(now), s.cfg.Checkout)
	if err := o.Hold(now.Add(open + s.cfg.Grace)); err != nil {
		return nil, err
	}
	session := min(max(open+s.cfg.Grace+callTime, minSession), maxSession)
	closes := now.Add(min(open, session-callTime))
	firstCheck := now.Add(min(maxCreating, closes.Sub(now)))
	a := &Attempt{
		ID: keyset.NewID(), OrderID: o.ID, State: Creating, AmountCents: o.TotalCents, Currency: o.Currency,
		OpenedAt: now, CheckoutUntil: &closes,
		SessionExpiresAt: s.provider.Clock().Add(session).Truncate(time.Microsecond), // as the database stores it
	}
	tx.Queue(`
		INSERT INTO payment_attempts (id, order_id, number, amount_cents, currency, opened_at, closes_at,
		                              next_check, session_expires_at)
		VALUES ($1, $2, $3, $4, lower($5), $6, $7, $8, $9)`,
		a.ID, o.ID, had+1, a.AmountCents, a.Currency, now, closes, firstCheck, a.SessionExpiresAt)
	tx.Queue(delay.OweSQL, Kind, a.ID.String(), firstCheck) // the relay publishes the task: it is never urgent
	return a, nil
}

// inUseWait is the time that a request waits while another request creates the same session: about as long as the
// provider needs for that.
const inUseWait = 300 * time.Millisecond

// createSession makes the provider's session of an attempt that is creating. It returns nil if the caller must look at
// the attempt again: another request creates the session, or the attempt has ended meanwhile. Nobody can pay the
// session of an attempt that has ended, because its URL has not left the shop.
func (s *Service) createSession(ctx context.Context, a *Attempt) (*Attempt, error) {
	made, err := s.provider.Create(ctx, s.checkout(a))
	switch {
	case provider.IsClass(err, provider.Refused, provider.Replayed, provider.Missing):
		// The attempt is closed at once, so that the customer can try again.
		s.log.ErrorContext(ctx, "the payment provider refused to create a session", "attempt", a.ID, "error", err)
		if err := s.close(ctx, a.ID, a.OrderID, Creating, order.Customer); err != nil {
			return nil, err
		}
		return nil, &rest.Error{Class: CheckoutRefused, Err: err,
			Detail: "The payment provider refused to open a checkout for this order. Nothing was charged. " +
				"Try again, or pay another way."}
	case provider.CauseIs(err, provider.KeyInUse): // another request, of another tab, is creating the session
		select {
		case <-time.After(inUseWait):
		case <-ctx.Done():
		}
		return nil, nil
	case err != nil:
		return nil, providerAway(err)
	}
	// An answer that comes after the order's deadline is not too late, but one that comes after the checkout is.
	opened := s.db.WithContext(ctx).Exec(`
		UPDATE payment_attempts SET state = 'open', session_id = $2, checkout_url = $3
		WHERE id = $1 AND state = 'creating' AND closes_at > clock_timestamp()`, a.ID, made.ID, made.URL)
	switch {
	case opened.Error != nil:
		return nil, rest.OutcomeUnknown(opened.Error, repeatOpen)
	case opened.RowsAffected > 0:
		a.State, a.CheckoutURL = Open, made.URL
		return a, nil
	}
	// Another request has opened it, or it has ended.
	current, err := s.attempt(ctx, "id = ?", a.ID)
	if err != nil || current != nil && current.State == Open && current.CheckoutURL != "" {
		return current, err
	}
	if _, err := s.provider.Expire(ctx, made.ID); err != nil { // the session expires by itself at SessionExpiresAt
		s.log.WarnContext(ctx, "a session that nobody can pay was not expired at the payment provider",
			"attempt", a.ID, "error", err)
	}
	return nil, nil
}

// checkout returns what the provider is asked for. It follows from the attempt alone: a repeated call must be equal.
func (s *Service) checkout(a *Attempt) provider.Checkout {
	return provider.Checkout{
		Owner:       provider.Owner{Deployment: s.cfg.Deployment, Order: a.OrderID.String(), Attempt: a.ID.String()},
		AmountCents: a.AmountCents,
		Currency:    strings.ToLower(a.Currency),
		Title:       "Order " + a.OrderID.String(),
		ExpiresAt:   a.SessionExpiresAt,
		ReturnURL:   s.cfg.Pages + "/?returned=" + a.OrderID.String(), // payments.js reads it
		Key:         a.ID.String(),
	}
}

// providerAway returns the error for a provider that does not answer, or to which this process may not write.
func providerAway(err error) error {
	if provider.IsClass(err, provider.Blocked) {
		return &rest.Error{Class: PaymentsBlocked, Err: err, Detail: "The shop opens no checkouts now, until an " +
			"operator has looked at its payments. Nothing was charged. Try again later."}
	}
	return &rest.Error{Class: ProviderAway, Err: err,
		Detail: "The payment provider does not answer. Nothing was charged. " + repeatOpen}
}

// WhyNotChargeable returns an error if the provider does not charge the total of an order, nil if it does.
func WhyNotChargeable(totalCents int64, currency string) *rest.Error {
	why := provider.ChargeOf(currency).WhyNot(totalCents, currency)
	if why == "" {
		return nil
	}
	return NotChargeable.Errorf("The order costs %s, and %s: order something else.",
		provider.Amount(totalCents, currency), why)
}
