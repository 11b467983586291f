package order

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

// CancelKind is the kind of the tasks that cancel orders. The id of a task is the id of its order.
const CancelKind = "order.cancel"

// Config configures the service.
type Config struct {
	Timeout time.Duration // from the placement of an order to its deadline
}

// publisher publishes messages whose outbox rows are committed. Publish reports whether it succeeded: the relay repeats
// a failed publish. Cancelling ctx does not abort the publish.
type publisher interface {
	Publish(ctx context.Context, m delay.Message) bool
}

// notifier tells open pages that an order of a customer has changed.
type notifier interface {
	Notify(customer, order string)
}

// Service implements the operations on orders: those of customers, of the worker and of the reconciler.
type Service struct {
	store   *Store
	pub     publisher
	notify  notifier
	cfg     Config
	log     *slog.Logger
	metrics metrics

	timeouts *delay.Timeouts
}

// NewService returns a service for the orders of a store. It registers its metrics with reg.
func NewService(s *Store, pub publisher, notify notifier, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Service {
	service := &Service{store: s, pub: pub, notify: notify, cfg: cfg, log: log, metrics: newMetrics(reg)}
	service.timeouts = service.newTimeouts()
	return service
}

// SignUp returns the id of a new, anonymous customer. It writes nothing: the first order writes the customer's row.
func (s *Service) SignUp() uuid.UUID { return newID() }

// Products lists the products by name.
func (s *Service) Products(ctx context.Context) ([]Product, error) {
	return s.store.products(ctx)
}

// Place places an order: it reserves the stock, and the time to pay begins. If the customer has placed an order with
// the same idempotency key before, Place returns that order in its present state, and replayed is true.
func (s *Service) Place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	o, replayed, err = s.place(ctx, customer, p)
	switch {
	case err != nil:
		s.metrics.rejected.WithLabelValues(rest.AsError(err).Kind.Code).Inc()
	case replayed:
		s.metrics.replayed.Inc()
	default:
		s.metrics.placed.Inc()
	}
	return o, replayed, rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: it then returns the same order. "+
		"Without a key, look at your orders first.")
}

func (s *Service) place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	if errs := p.fieldErrors(); len(errs) > 0 {
		return nil, false, rest.InvalidFields(errs...)
	}
	o, replayed, err = s.store.place(ctx, newID(), customer, p, s.cfg.Timeout)
	if err == nil && !replayed {
		s.notify.Notify(customer.String(), o.ID.String())
		s.pub.Publish(ctx, delay.In(o.ID.String(), o.left()))
	}
	return o, replayed, err
}

// Pay pays an order before its deadline. It is idempotent.
func (s *Service) Pay(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.pay(ctx, id, customer)
	if err != nil {
		return nil, rest.OutcomeUnknown(err, "Repeat the request: an order is paid once.")
	}
	if c.Changed {
		s.metrics.paid.Inc()
		s.notify.Notify(customer.String(), id.String())
	}
	return &c.Order, c.whyNotPaid()
}

// Cancel cancels an order for its customer, before its deadline. It is idempotent.
func (s *Service) Cancel(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.cancel(ctx, id, customer)
	if err != nil {
		return nil, rest.OutcomeUnknown(err, "Repeat the request: an order is cancelled once.")
	}
	if c.Changed {
		s.metrics.cancelled.WithLabelValues(string(ByCustomer)).Inc()
		s.notify.Notify(customer.String(), id.String())
	}
	return &c.Order, c.whyNotCancelled()
}

// Get returns one of a customer's orders.
func (s *Service) Get(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	return s.store.get(ctx, id, customer)
}

// Events returns the audit trail of one of a customer's orders, oldest first.
func (s *Service) Events(ctx context.Context, customer, id uuid.UUID) ([]Event, error) {
	return s.store.events(ctx, id, customer)
}

// List returns a page of a customer's orders, newest first, and the cursor of the next page. The cursor is nil after
// the last page.
func (s *Service) List(ctx context.Context, customer uuid.UUID, page rest.Page) (orders []Order, next *rest.Cursor, err error) {
	orders, err = s.store.list(ctx, customer, page.After, page.Limit+1) // one more shows that there is a next page
	if err != nil {
		return nil, nil, err
	}
	if len(orders) > page.Limit {
		orders = orders[:page.Limit]
		last := orders[page.Limit-1]
		next = &rest.Cursor{At: last.CreatedAt, ID: last.ID}
	}
	return orders, next, nil
}

// newID returns a UUID of version 7, which sorts by time: new rows go to the end of their indexes.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
