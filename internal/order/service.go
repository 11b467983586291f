package order

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// CancelKind is the kind of the tasks that cancel orders. The id of a task is the id of its order.
const CancelKind = "order.cancel"

// Config configures the service. A field that is zero connects it with no other package.
type Config struct {
	Options

	// Changed is called after an order of a customer has changed. It must not block.
	Changed func(customer, order string)
	// Placed is called after an order was placed, with the time to its deadline. It must not block.
	Placed func(id string, left time.Duration)
	// SpanOf returns the span of a request that places an order, or nil if the request is not traced.
	SpanOf func(ctx context.Context) []byte
	// BeginBatch is called before a transaction that places a batch, with the spans of its requests. It returns the
	// context of the transaction, and a function that is called after it.
	BeginBatch func(ctx context.Context, spans [][]byte) (context.Context, func(error))

	// NoPayAtOnce tells that customers pay orders only where another package holds them, by [Service.Update].
	NoPayAtOnce bool
	// NotChargeable returns an error if a total cannot be charged.
	NotChargeable func(totalCents int64, currency string) *rest.Error
}

// Publisher publishes messages whose outbox rows are committed. Publish reports whether it succeeded, but a caller need
// not repeat it, because the relay does. Cancelling ctx does not abort the publish.
type Publisher interface {
	Publish(ctx context.Context, msgs ...delay.Message) bool
}

// Service implements the operations on orders.
type Service struct {
	store   *Store
	pub     Publisher
	cfg     Config
	log     *slog.Logger
	metrics metrics

	placements *batch.Batcher[*placing] // the placements that wait for their batches
	waits      singleflight.Group       // the waits for locked products, by the products' ids
}

// NewService returns a service for the orders of a store. It registers its metrics with reg.
func NewService(s *Store, pub Publisher, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Service {
	if cfg.Changed == nil {
		cfg.Changed = func(string, string) {}
	}
	if cfg.Placed == nil {
		cfg.Placed = func(string, time.Duration) {}
	}
	if cfg.SpanOf == nil {
		cfg.SpanOf = func(context.Context) []byte { return nil }
	}
	if cfg.BeginBatch == nil {
		cfg.BeginBatch = func(ctx context.Context, _ [][]byte) (context.Context, func(error)) {
			return ctx, func(error) {}
		}
	}
	service := &Service{store: s, pub: pub, cfg: cfg, log: log, metrics: newMetrics(reg)}
	service.placements = service.newBatcher()
	return service
}

// Notify calls Changed. Packages that change what a customer sees of an order call it.
func (s *Service) Notify(customer, order string) { s.cfg.Changed(customer, order) }

// Pay pays one of a customer's orders at once, before its deadline. It is idempotent. It rejects an order that is held.
func (s *Service) Pay(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	return s.changeOwn(ctx, customer, id, (*Order).Pay, "Repeat the request: an order is paid once.")
}

// Cancel cancels one of a customer's orders, before its deadline. It is idempotent. It rejects an order that is held.
func (s *Service) Cancel(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	leave, err := s.store.gate.Enter(ctx) // it may wait for the locks of products
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.changeOwn(ctx, customer, id, (*Order).Cancel, "Repeat the request: an order is cancelled once.")
}

// Extend extends the deadline of one of a customer's orders, before it passes, by the configured time, and at most the
// configured number of times. If the order is held, the end of the hold moves by the same time.
func (s *Service) Extend(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	extend := func(o *Order) error { return o.Extend(s.cfg.OrderExtension, s.cfg.MaxExtensions) }
	return s.changeOwn(ctx, customer, id, extend,
		"Look at the order before you repeat the request, because each request extends the deadline again.")
}

// Reschedule moves the deadline of an order for an operator, before the deadline passes, to a time from a second to
// 30 days from now. The reason becomes part of the audit trail. It is idempotent. If the order is held, a later
// deadline moves the end of the hold by the same time, and an earlier one is rejected.
func (s *Service) Reschedule(ctx context.Context, id uuid.UUID, deadline time.Time, reason string) (*Order, error) {
	move := func(o *Order) error { return o.Reschedule(deadline, reason) }
	return s.change(ctx, id, move, "Repeat the request: it moves the deadline to the same time.")
}

// changeOwn is change for a customer. The error for an order of another customer is that for one that does not exist.
func (s *Service) changeOwn(
	ctx context.Context, customer, id uuid.UUID, do func(*Order) error, ifUnknown string,
) (*Order, error) {
	return s.change(ctx, id, func(o *Order) error {
		if o.CustomerID != customer {
			return NotFound(id)
		}
		return do(o)
	}, ifUnknown)
}

// change changes an order, and announces the change. ifUnknown tells a client what to do if the outcome is not known.
func (s *Service) change(ctx context.Context, id uuid.UUID, do func(*Order) error, ifUnknown string) (*Order, error) {
	var c Change
	var rejection error // is answered after the commit: what it says of the order must survive a failover, too
	err := postgres.Transact(ctx, s.store.db, func(tx *postgres.Tx) (err error) {
		c, err = s.store.Update(ctx, tx, id, func(o *Order) error {
			rejection = do(o)
			return nil
		})
		return err
	})
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(err, ifUnknown)
	case rejection != nil:
		return nil, rejection
	}
	s.Announce(ctx, c)
	s.setActions(&c.Order)
	return &c.Order, nil
}

// Update is [Store.Update], for a package that changes orders in transactions of its own.
func (s *Service) Update(
	ctx context.Context, tx *postgres.Tx, id uuid.UUID, change func(*Order) error, reads ...func(*postgres.Tx),
) (Change, error) {
	return s.store.Update(ctx, tx, id, change, reads...)
}

// Announce counts a change that is committed, tells the open pages of the customer, and publishes the order's task if
// it is due earlier than before.
func (s *Service) Announce(ctx context.Context, c Change) {
	if !c.Changed {
		return
	}
	s.Notify(c.CustomerID.String(), c.ID.String())
	switch {
	case c.Status == Paid && c.EndedBy == Customer:
		s.metrics.paid.Inc()
	case c.Status == Cancelled:
		s.metrics.cancelled.WithLabelValues(string(c.CancelReason)).Inc()
	case c.task != nil:
		s.pub.Publish(ctx, *c.task)
	}
}

// setActions sets by how much and how often the customer of an order can extend its deadline, and whether the
// customer can pay it at once.
func (s *Service) setActions(o *Order) {
	if s.cfg.OrderExtension > 0 && o.Status == Pending {
		left := max(s.cfg.MaxExtensions-o.Extensions, 0)
		o.ExtensionsLeft = &left
		if left > 0 && o.WhyNotPayable() == nil {
			o.ExtensionSeconds = s.cfg.OrderExtension.Seconds()
		}
	}
	o.PayAtOnce = !s.cfg.NoPayAtOnce && o.HoldUntil == nil && o.WhyNotPayable() == nil
}
