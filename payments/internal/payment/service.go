package payment

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
)

// Config configures the service.
type Config struct {
	Grace      time.Duration // from the end of a checkout to the end of the hold of its order
	Checkout   time.Duration // from the opening of an attempt, in which its customer may pay even after the deadline
	Extension  time.Duration // the time by which customers can extend the deadline of an order in all
	Deployment string        // written on sessions and payments, to tell whose they are; see [Owner]
	Pages      string        // the base URL of the shop's pages, where browsers return to from the checkout
}

// publisher publishes messages whose outbox rows are committed. See [delay.Publisher].
type publisher interface {
	Publish(ctx context.Context, msgs ...delay.Message) bool
}

// Publishers holds the publishers of the kinds of task that attempts owe.
type Publishers struct {
	Cancel publisher // of [order.CancelKind]
	Settle publisher // of [SettleKind]
}

// notifier tells open pages that an order of a customer, or one of its payments, has changed.
type notifier interface {
	Notify(customer, order string)
}

// Service opens attempts for customers, and settles them for customers, for the provider's webhooks, for the workers and
// for the reconcilers.
type Service struct {
	store    *Store
	provider *Calls
	refunds  *Refunds
	publish  Publishers
	notify   notifier
	cfg      Config
	log      *slog.Logger
	metrics  metrics
}

// NewService returns a service for the attempts of a store. It registers its metrics with reg.
func NewService(
	s *Store, calls *Calls, refunds *Refunds, publish Publishers, notify notifier, cfg Config,
	log *slog.Logger, reg prometheus.Registerer,
) *Service {
	return &Service{
		store: s, provider: calls, refunds: refunds, publish: publish, notify: notify, cfg: cfg, log: log,
		metrics: newMetrics(reg),
	}
}

// Rows describes the rows of [SettleKind]. Their ids are those of orders.
func (s *Service) Rows() reconcile.Rows {
	return checkedRows(s.store.db, pendingSQL, leftSQL, s.settle)
}

// Open returns the live attempt of one of a customer's orders, with the URL of its checkout. It opens an attempt if the
// order has none; then opened is true. It is idempotent: after an error, a repeated call continues the same attempt.
func (s *Service) Open(ctx context.Context, customer, orderID uuid.UUID) (a *Attempt, opened bool, err error) {
	// maxTries is the largest number of times that Open looks for the live attempt. An attempt may end, or another session
	// may open one, between two statements. With a larger number, a customer could wait longer for the answer.
	const maxTries = 5
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
	return nil, false, &rest.Error{Class: ProviderAway, Detail: "The last checkout of the order is ending, or other requests change " +
		"the order's payments. Nothing was charged. Repeat the request in some seconds."}
}

// liveAttempt returns the live attempt of an order, also after the deadline if its checkout is still open. It opens one if
// there is none, and the deadline has not passed. It returns nil if neither is possible because another session changes
// the order's attempts at the same time, or because the live attempt is closing: since open.sql read the order, or because
// its session ends long before the deadline of the order.
func (s *Service) liveAttempt(ctx context.Context, customer, orderID uuid.UUID) (a *Attempt, opened bool, err error) {
	o, err := s.store.open(ctx, keyset.NewID(), orderID, customer, s.cfg, s.provider.Clock())
	if err != nil {
		return nil, false, rest.OutcomeUnknown(notFound(err, orderID), "Repeat the request: it then continues the same payment.")
	}
	if o.AttemptID != nil {
		s.metrics.opened.Inc()
		s.publish.Settle.Publish(ctx, delay.At(orderID.String(), o.NextCheck, o.ServerTime))
		return &Attempt{
			ID: *o.AttemptID, OrderID: orderID, State: Creating, AmountCents: o.TotalCents, Currency: o.Currency, OpenedAt: o.OpenedAt,
			SessionExpiresAt: o.SessionExpiresAt,
		}, true, nil
	}
	a, err = s.store.live(ctx, orderID)
	switch {
	case err != nil:
		return nil, false, err
	case a != nil && !a.Closing:
		return a, false, nil
	}
	if err := o.WhyNotPayable(); err != nil {
		return nil, false, err
	}
	if err := tooSmall(&o.Order); err != nil {
		return nil, false, err
	}
	if a == nil && (o.Attempts >= maxAttempts || o.OpenAttempts >= maxOpenAttempts) {
		return nil, false, TooManyAttempts.Errorf(
			"The order has had %d payment attempts, %d of them with an open checkout. It may have at most %d, and %d.",
			o.Attempts, o.OpenAttempts, maxAttempts, maxOpenAttempts)
	}
	return nil, false, nil
}

// inUseWait is the time that a request waits while another request creates the same session. The provider needs about
// this time. After a shorter wait the session often does not exist yet; a longer one delays the customer.
const inUseWait = 300 * time.Millisecond

// createSession makes the provider's session of an attempt that is creating. It returns nil if the caller must look at the
// attempt again: another request creates the session, or the attempt has ended meanwhile. Nobody can pay the session of
// an attempt that has ended, because its URL has not left the shop.
func (s *Service) createSession(ctx context.Context, a *Attempt) (*Attempt, error) {
	made, err := s.provider.Create(ctx, s.checkout(a))
	switch {
	case isClass(err, Refused, Replayed, Missing): // closed at once, so that the customer can try again
		s.log.ErrorContext(ctx, "the payment provider refused to create a session", "attempt", a.ID, "error", err)
		if err := s.close(ctx, a.ID, Creating, reconcile.Actor(order.Customer)); err != nil {
			return nil, err
		}
		return nil, &rest.Error{Class: CheckoutRefused, Err: err,
			Detail: "The payment provider refused to open a checkout for this order. Nothing was charged. Try again, or pay another way."}
	case causeIs(err, KeyInUse): // another request, of another tab, is creating the session
		select {
		case <-time.After(inUseWait):
		case <-ctx.Done():
		}
		return nil, nil
	case err != nil:
		return nil, providerAway(err)
	}
	isOpen, err := s.store.opened(ctx, a, made)
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(err, "Repeat the request: it then continues the same payment.")
	case isOpen:
		return a, nil
	}
	// Another request has opened it, or it has ended.
	current, err := s.store.get(ctx, a.ID)
	if err != nil || current != nil && current.State == Open && current.CheckoutURL != "" {
		return current, err
	}
	if _, err := s.provider.Expire(ctx, made.ID); err != nil { // the session expires by itself at SessionExpiresAt
		s.log.WarnContext(ctx, "a session that nobody can pay was not expired at the payment provider", "attempt", a.ID, "error", err)
	}
	return nil, nil
}

// checkout returns what the provider is asked for. It follows from the attempt alone: a repeated call must be equal.
func (s *Service) checkout(a *Attempt) Checkout {
	return Checkout{
		Owner:       Owner{Deployment: s.cfg.Deployment, Order: a.OrderID.String(), Attempt: a.ID.String()},
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
	if isClass(err, Blocked) {
		return &rest.Error{Class: PaymentsBlocked, Err: err, Detail: "The shop opens no checkouts now, until an " +
			"operator has looked at its payments. Nothing was charged. Try again later."}
	}
	return &rest.Error{Class: ProviderAway, Err: err,
		Detail: "The payment provider does not answer. Nothing was charged. Repeat the request: it then continues the same payment."}
}

// OfOrder returns the attempts of one of a customer's orders, the latest first.
func (s *Service) OfOrder(ctx context.Context, customer, orderID uuid.UUID) ([]Attempt, error) {
	attempts, err := s.store.ofOrder(ctx, customer, orderID)
	return attempts, notFound(err, orderID)
}

// List returns a page of a customer's attempts, the latest first, and the cursor of the next page. The cursor is nil
// after the last page.
func (s *Service) List(ctx context.Context, customer uuid.UUID, page rest.Page) (attempts []Attempt, next *keyset.Cursor, err error) {
	attempts, err = s.store.list(ctx, customer, page.After, page.Limit+1) // one more shows that there is a next page
	if err != nil {
		return nil, nil, err
	}
	if len(attempts) > page.Limit {
		attempts = attempts[:page.Limit]
		last := attempts[page.Limit-1]
		next = &keyset.Cursor{At: last.OpenedAt, ID: last.ID}
	}
	return attempts, next, nil
}

// notFound replaces errNoOrder by the error for the customer, which does not disclose whether another customer has an order
// with this id. It returns any other error, and nil, unchanged.
func notFound(err error, orderID uuid.UUID) error {
	if errors.Is(err, errNoOrder) {
		return rest.NotFound.Errorf("There is no order %s.", orderID)
	}
	return err
}
