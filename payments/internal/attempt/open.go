package attempt

import (
	"context"
	_ "embed"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

var (
	//go:embed open.sql
	openSQL string
	//go:embed opened.sql
	openedSQL string
)

const (
	// maxAttempts is the largest number of attempts of an order.
	maxAttempts = 20
	// maxOpenAttempts is the largest number of an order's attempts whose checkouts were open.
	maxOpenAttempts = 5
	// maxCreating is the age at which an attempt that is still creating is closed: longer than the provider needs for
	// an answer. Nobody can pay the session, because its URL has not left the service.
	maxCreating = 30 * time.Second
)

// repeatOpen tells a customer what to do if the outcome of the request is not known.
const repeatOpen = "Repeat the request: it then continues the same payment."

// opening is the row that open.sql returns: the order, and the attempt, if one was opened.
type opening struct {
	order.Order `gorm:"embedded"`
	AttemptID   *uuid.UUID // nil: none was opened
	OpenedAt    time.Time

	SessionExpiresAt time.Time

	Attempts, OpenAttempts int64 // that the order had before: all that count, and those of them whose checkouts were open
}

// checkoutShown is the row that opened.sql returns.
type checkoutShown struct {
	CheckoutURL   string
	CheckoutUntil time.Time
}

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
			s.notify.Notify(customer.String(), orderID.String())
		}
		if a != nil || err != nil {
			return a, opened, err
		}
	}
	return nil, false, &rest.Error{Class: ProviderAway, Detail: "The last checkout of the order is ending, or other " +
		"requests change the order's payments. Nothing was charged. Repeat the request in some seconds."}
}

// liveAttempt returns the live attempt of an order, also after the deadline if its checkout is still open. It opens
// one if there is none, and the deadline has not passed. It returns nil if neither is possible because another session
// changes the order's attempts at the same time, or because the live attempt is closing: since open.sql read the
// order, or because its session ends long before the deadline of the order.
func (s *Service) liveAttempt(ctx context.Context, customer, orderID uuid.UUID) (a *Attempt, opened bool, err error) {
	o, err := one[opening](ctx, s.db, "open a payment attempt", openSQL, keyset.NewID(), orderID, customer,
		s.cfg.Grace.Microseconds(), s.tasks.RowKind(Kind), maxAttempts, s.cfg.Checkout.Microseconds(), s.provider.Clock(),
		s.cfg.Extension.Microseconds(), maxOpenAttempts, provider.ChargesJSON, maxCreating.Microseconds())
	switch {
	case err != nil:
		return nil, false, rest.OutcomeUnknown(err, repeatOpen)
	case o == nil:
		return nil, false, noOrder(orderID)
	}
	if o.AttemptID != nil {
		s.metrics.opened.Inc()
		return &Attempt{
			ID: *o.AttemptID, OrderID: orderID, State: Creating, AmountCents: o.TotalCents, Currency: o.Currency,
			OpenedAt: o.OpenedAt, SessionExpiresAt: o.SessionExpiresAt,
		}, true, nil
	}
	a, err = s.attempt(ctx, "order_id = ? AND state IN ('creating', 'open')", orderID)
	switch {
	case err != nil:
		return nil, false, err
	case a != nil && !a.Closing:
		return a, false, nil
	}
	if err := o.WhyNotPayable(); err != nil {
		return nil, false, err
	}
	if err := WhyNotChargeable(o.TotalCents, o.Currency); err != nil {
		return nil, false, err
	}
	if a == nil && (o.Attempts >= maxAttempts || o.OpenAttempts >= maxOpenAttempts) {
		return nil, false, TooManyAttempts.Errorf(
			"The order has had %d payment attempts, %d of them with an open checkout. It may have at most %d, and %d.",
			o.Attempts, o.OpenAttempts, maxAttempts, maxOpenAttempts)
	}
	return nil, false, nil
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
		if err := s.close(ctx, a.ID, Creating, reconcile.Actor(order.Customer)); err != nil {
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
	opened, err := one[checkoutShown](ctx, s.db, "store the session of a payment attempt", openedSQL,
		a.ID, made.ID, made.URL)
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(err, repeatOpen)
	case opened != nil:
		a.State, a.CheckoutURL, a.CheckoutUntil = Open, opened.CheckoutURL, &opened.CheckoutUntil
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
