package order

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/deadline"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// CancelKind is the kind of the tasks that cancel orders. The id of a task is the id of its order.
const CancelKind = "order.cancel"

// Config configures the service.
type Config struct {
	Timeout       time.Duration // the time from the placement of an order to its deadline
	Extension     time.Duration // the time by which a customer can extend the deadline; 0: not at all
	MaxExtensions int64         // how often the customer can do so

	MaxOpenOrders int64 // the most orders that a customer can have without having paid them; 0: no bound
	MaxOpenUnits  int64 // the most units of a product in these orders of a customer; 0: no bound

	Hooks
}

// payAtOnce reports whether customers can pay an order at once, for nothing.
func (c Config) payAtOnce() bool { return c.HoldKind == "" || c.PayAtOnce }

// Hooks connect the service with other packages. A field that is zero connects it with none.
type Hooks struct {
	Changed func(customer, order string)        // is called after an order of a customer has changed; it must not block
	Placed  func(id string, left time.Duration) // is called after an order was placed, with the time to its deadline; it must not block
	Tracer  Tracer                              // traces placements

	// Another package may hold orders while their customers pay them: it sets and clears orders.hold_until in its own
	// statements. When the customer of a held order asks to cancel it, the service owes a task of HoldKind, whose id
	// is the id of the order. HoldPublisher publishes it.
	HoldKind      string
	HoldPublisher Publisher
	PayAtOnce     bool // customers can also pay an order at once, for nothing, although HoldKind is set

	Dependents []Dependent // the other packages whose rows refer to orders
}

// Publisher publishes messages whose outbox rows are committed. Publish reports whether it succeeded: the relay
// repeats a failed publish. Cancelling ctx does not abort the publish.
type Publisher interface {
	Publish(ctx context.Context, msgs ...delay.Message) bool
}

// Service implements the operations on orders: those of customers, of the worker and of the reconciler.
type Service struct {
	*deadline.Table // the orders that time out; its methods are for the worker and the reconciler

	store   *Store
	pub     Publisher
	cfg     Config
	log     *slog.Logger
	metrics metrics

	placements *batch.Queue[*placing, uuid.UUID] // the placements that wait for their batches
}

// NewService returns a service for the orders of a store. It registers its metrics with reg.
func NewService(s *Store, pub Publisher, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Service {
	if cfg.Changed == nil {
		cfg.Changed = func(string, string) {}
	}
	if cfg.Placed == nil {
		cfg.Placed = func(string, time.Duration) {}
	}
	if cfg.Tracer == nil {
		cfg.Tracer = noTracer{}
	}
	service := &Service{store: s, pub: pub, cfg: cfg, log: log, metrics: newMetrics(reg)}
	service.placements = service.newPlacements()
	service.Table = service.newTable()
	return service
}

// Notify calls the hook Changed. Packages that change what a customer sees of an order call it.
func (s *Service) Notify(customer, order string) { s.cfg.Changed(customer, order) }

// Publisher returns the publisher of the tasks of [CancelKind]. A package that moves the due time of an order
// publishes the task with it.
func (s *Service) Publisher() Publisher { return s.pub }

// MaxExtension returns the time by which a customer can extend the deadline of an order in all; 0: not at all.
func (s *Service) MaxExtension() time.Duration {
	return s.cfg.Extension * time.Duration(s.cfg.MaxExtensions)
}

// SignUp returns the id of a new, anonymous customer. It writes nothing: the first order writes the customer's row.
func (s *Service) SignUp() uuid.UUID { return keyset.NewID() }

// Products lists the products by name.
func (s *Service) Products(ctx context.Context) ([]Product, error) {
	return s.store.products(ctx)
}

// withActions sets by how much and how often the customer of an order can extend its deadline, and whether the
// customer can pay it at once, and returns the order. o may be nil.
func (s *Service) withActions(o *Order) *Order {
	if o != nil && s.cfg.Extension > 0 && o.Status == Pending {
		left := max(s.cfg.MaxExtensions-o.Extensions, 0)
		o.ExtensionsLeft = &left
		if left > 0 && o.whyNotMovable() == nil {
			o.ExtensionSeconds = s.cfg.Extension.Seconds()
		}
	}
	if o != nil && s.cfg.payAtOnce() && o.HoldUntil == nil && o.WhyNotPayable() == nil {
		o.PayAtOnce = true
	}
	return o
}

// Pay pays an order at once, before its deadline. It is idempotent. It rejects an order that is held.
func (s *Service) Pay(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.pay(ctx, id, customer)
	if err != nil {
		return nil, rest.OutcomeUnknown(notFound(err, id), "Repeat the request: an order is paid once.")
	}
	if c.Changed {
		s.metrics.paid.Inc()
		s.Notify(customer.String(), id.String())
	}
	return s.withActions(&c.Order), c.whyNotPaid()
}

// Cancel cancels an order for its customer, before it is due. It is idempotent. An order that is held stays pending:
// its customer's request is recorded, and the order is cancelled when its hold ends, unless it is paid before.
func (s *Service) Cancel(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.cancel(ctx, id, customer, s.cfg.HoldKind)
	if err != nil {
		return nil, rest.OutcomeUnknown(notFound(err, id), "Repeat the request: an order is cancelled once.")
	}
	if c.Changed {
		s.Notify(customer.String(), id.String())
		switch {
		case c.Status == Cancelled:
			s.metrics.cancelled.WithLabelValues(string(ByCustomer)).Inc()
		case s.cfg.HoldKind != "":
			s.cfg.HoldPublisher.Publish(ctx, delay.At(id.String(), *c.CancelRequestedAt, c.ServerTime))
		}
	}
	return &c.Order, c.whyNotCancelled()
}

// Extend extends the deadline of an order by the configured time, before it passes, at most the configured number of
// times. If the order is held, the end of the hold moves by the same time.
func (s *Service) Extend(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.store.extend(ctx, id, customer, s.cfg.Extension, s.cfg.MaxExtensions)
	if err != nil {
		return nil, rest.OutcomeUnknown(notFound(err, id), "Look at the order before you repeat the request, "+
			"because each request extends the deadline again.")
	}
	if c.Changed {
		s.moved(c, Customer)
		return s.withActions(&c.Order), nil
	}
	if err := c.whyNotMovable(); err != nil {
		return nil, err
	}
	if s.cfg.Extension == 0 {
		return nil, NotExtendable.Errorf("Customers cannot extend deadlines in this shop.")
	}
	return nil, NotExtendable.Errorf("The deadline has been extended as often as it can be: %d times.", c.Extensions)
}

// The bounds of a deadline to which an operator moves an order, from now. The longer one is that of [Options].
const (
	minDeadline = time.Second
	maxDeadline = maxTimeout
)

// Reschedule moves the deadline of an order for an operator, before the deadline passes, to a time from a second to
// 30 days from now. The reason becomes part of the audit trail. It is idempotent. If the order is held, a later
// deadline moves the end of the hold by the same time, and an earlier one is rejected.
func (s *Service) Reschedule(ctx context.Context, id uuid.UUID, deadline time.Time, reason string) (*Order, error) {
	deadline = deadline.Round(time.Microsecond) // as the database stores it
	c, err := s.store.reschedule(ctx, id, deadline, reason)
	switch {
	case errors.Is(err, errNoOrder):
		return nil, rest.NotFound.Errorf("There is no order %s.", id)
	case err != nil:
		return nil, rest.OutcomeUnknown(err, "Repeat the request: it moves the deadline to the same time.")
	case c.Changed:
		s.moved(c, Operator)
		s.pub.Publish(ctx, delay.At(id.String(), c.DueAt, c.ServerTime)) // it may be due earlier now
		return s.withActions(&c.Order), nil
	}
	if err := c.whyNotMovable(); err != nil {
		return nil, err
	}
	left := deadline.Sub(c.ServerTime)
	switch {
	case deadline.Equal(c.ExpiresAt): // the request is a repetition
		return s.withActions(&c.Order), nil
	case left < minDeadline || left > maxDeadline:
		return nil, rest.InvalidFields(rest.FieldError{Pointer: "/deadline", Detail: fmt.Sprintf(
			"must be from a second to 30 days after the present, which is %s by the database's clock", stamp(c.ServerTime))})
	default:
		return nil, CheckoutOpen.Errorf("The order is held until %s, because its customer is paying it. "+
			"Its deadline, %s, can only be moved to a later time.", stamp(*c.HoldUntil), stamp(c.ExpiresAt))
	}
}

// moved counts that an actor moved a deadline, and notifies the customer.
func (s *Service) moved(c *change, actor Actor) {
	s.metrics.rescheduled.WithLabelValues(string(actor)).Inc()
	s.Notify(c.CustomerID.String(), c.ID.String())
}

// Get returns one of a customer's orders.
func (s *Service) Get(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	o, err := s.store.get(ctx, id, customer)
	return s.withActions(o), notFound(err, id)
}

// Events returns the audit trail of one of a customer's orders, oldest first.
func (s *Service) Events(ctx context.Context, customer, id uuid.UUID) ([]Event, error) {
	events, err := s.store.events(ctx, id, customer)
	return events, notFound(err, id)
}

// List returns a page of a customer's orders, newest first, and the cursor of the next page. The cursor is nil after
// the last page.
func (s *Service) List(ctx context.Context, customer uuid.UUID, page rest.Page) (orders []Order, next *keyset.Cursor, err error) {
	orders, err = s.store.list(ctx, customer, page.After, page.Limit+1) // the last one only shows that there is a next page
	if err != nil {
		return nil, nil, err
	}
	for i := range orders {
		s.withActions(&orders[i])
	}
	if len(orders) > page.Limit {
		orders = orders[:page.Limit]
		last := orders[page.Limit-1]
		next = &keyset.Cursor{At: last.CreatedAt, ID: last.ID}
	}
	return orders, next, nil
}

// notFound replaces errNoOrder by the error for the customer, which does not disclose whether another customer has an
// order with this id. It returns any other error, and nil, unchanged.
func notFound(err error, id uuid.UUID) error {
	if errors.Is(err, errNoOrder) {
		return rest.NotFound.Errorf("You have no order %s.", id)
	}
	return err
}
