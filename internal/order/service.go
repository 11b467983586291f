package order

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
)

// CancelKind is the kind of the delayed tasks that cancel orders; a task's id is the order's.
const CancelKind = "order.cancel"

// Config of the service.
type Config struct {
	Timeout time.Duration // from placing an order to its deadline
}

// publisher brings a message, whose outbox row is committed, to the queue, if it can right now. The end of ctx does not
// abort the publish.
type publisher interface {
	Publish(ctx context.Context, m delay.Message) bool
}

// Service is what customers, the worker and the reconciler do with orders.
type Service struct {
	store   *Store
	pub     publisher
	changes *Announcer
	cfg     Config
	log     *slog.Logger
	metrics metrics

	stuck stuck
}

// NewService returns a service of the orders in a store. Its metrics are registered with reg.
func NewService(s *Store, pub publisher, changes *Announcer, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Service {
	return &Service{
		store: s, pub: pub, changes: changes, cfg: cfg, log: log, metrics: newMetrics(reg),
		stuck: stuck{products: make(map[uuid.UUID]time.Time)},
	}
}

// SignUp returns the id of a new, anonymous customer. The database knows customers who have ordered.
func (s *Service) SignUp() uuid.UUID { return newID() }

// Products lists what is on sale, by name.
func (s *Service) Products(ctx context.Context) ([]Product, error) {
	return s.store.products(ctx)
}

// Place reserves stock for a customer and starts the time that they have to pay. Repeated with the same
// idempotency key it returns the order that it made the first time, as it is now, and true.
func (s *Service) Place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	o, replayed, err = s.place(ctx, customer, p)
	switch {
	case err != nil:
		s.metrics.refused.WithLabelValues(string(refusalOf(err).Code)).Inc()
	case replayed:
		s.metrics.replayed.Inc()
	default:
		s.metrics.placed.Inc()
	}
	return o, replayed, unknownOutcome(err, "Repeat the request with the same Idempotency-Key: it is the same order then. "+
		"Without a key, look at your orders first.")
}

func (s *Service) place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	if faults := p.faults(); len(faults) > 0 {
		return nil, false, &Error{Code: CodeInvalid, Detail: "The order is not one that can be placed.", Faults: faults}
	}
	o, replayed, err = s.store.place(ctx, newID(), customer, p, s.cfg.Timeout)
	if err == nil && !replayed {
		s.changes.announce(customer, o.ID)
		s.pub.Publish(ctx, delay.In(o.ID.String(), o.left()))
	}
	return o, replayed, err
}

// Pay pays an order before its deadline. Repeating it is harmless.
func (s *Service) Pay(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.pay(ctx, id, customer)
	if err != nil {
		return nil, unknownOutcome(err, "Repeat the request: an order is paid once.")
	}
	if c.Changed {
		s.metrics.paid.Inc()
		s.changes.announce(customer, id)
	}
	return &c.Order, c.whyNotPaid()
}

// Cancel cancels an order before its deadline, for its customer. Repeating it is harmless.
func (s *Service) Cancel(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.cancel(ctx, id, customer)
	if err != nil {
		return nil, unknownOutcome(err, "Repeat the request: an order is cancelled once.")
	}
	if c.Changed {
		s.metrics.cancelled.WithLabelValues(string(ByCustomer)).Inc()
		s.changes.announce(customer, id)
	}
	return &c.Order, c.whyNotCancelled()
}

// unknownOutcome says what to do after an error that leaves open whether the database committed.
func unknownOutcome(err error, advice string) error {
	if !Unavailable(err) {
		return err
	}
	return &Error{Code: CodeUnavailable, Detail: "It is not certain whether this was done. " + advice, Err: err}
}

// Get returns one of a customer's orders.
func (s *Service) Get(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	return s.store.get(ctx, id, customer)
}

// Events returns the audit trail of one of a customer's orders, oldest first.
func (s *Service) Events(ctx context.Context, customer, id uuid.UUID) ([]Event, error) {
	return s.store.events(ctx, id, customer)
}

// List returns up to limit of a customer's orders, newest first, and where the next page starts, nil on the
// last. The first page starts at nil.
func (s *Service) List(ctx context.Context, customer uuid.UUID, after *Cursor, limit int) (orders []Order, next *Cursor, err error) {
	orders, err = s.store.list(ctx, customer, after, limit+1) // one more tells if there is a next page
	if err != nil {
		return nil, nil, err
	}
	if len(orders) > limit {
		orders = orders[:limit]
		last := orders[limit-1]
		next = &Cursor{at: last.CreatedAt, id: last.ID}
	}
	return orders, next, nil
}

// newID makes an id that sorts by time, so that new rows go to the end of their indexes.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
