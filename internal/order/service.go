package order

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// CancelKind is the kind of the tasks that cancel orders. The id of a task is the id of its order.
const CancelKind = "order.cancel"

// Config configures the service.
type Config struct {
	Options
	Hooks
}

// Hooks connect the service with other packages. A field that is zero connects the service with no package.
type Hooks struct {
	// Changed is called after an order of a customer has changed. It must not block.
	Changed func(customer, order string)
	// Placed is called after an order was placed, with the time to its deadline. It must not block.
	Placed func(id string, left time.Duration)
	// Tracer traces placements.
	Tracer Tracer

	// Another package may hold orders while their customers pay them: it sets and clears orders.hold_until in its own
	// statements. Then NoPayAtOnce tells that customers can pay orders in no other way.
	NoPayAtOnce bool

	// NotChargeable returns an error if a total cannot be charged. Charges says the same to place.sql.
	NotChargeable func(totalCents int64, currency string) *rest.Error
	Charges       string
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
	service := &Service{store: s, pub: pub, cfg: cfg, log: log, metrics: newMetrics(reg)}
	service.placements = batch.New(service.placementQueue())
	return service
}

// Notify calls the hook Changed. Packages that change what a customer sees of an order call it.
func (s *Service) Notify(customer, order string) { s.cfg.Changed(customer, order) }

// Publisher returns the publisher of the tasks of [CancelKind]. A package that moves the due time of an order publishes
// the order's task with it.
func (s *Service) Publisher() Publisher { return s.pub }

// setActions sets by how much and how often the customer of an order can extend its deadline, and whether the
// customer can pay it at once.
func (s *Service) setActions(o *Order) {
	if s.cfg.OrderExtension > 0 && o.Status == Pending {
		left := max(s.cfg.MaxExtensions-o.Extensions, 0)
		o.ExtensionsLeft = &left
		if left > 0 && o.whyNotMovable() == nil {
			o.ExtensionSeconds = s.cfg.OrderExtension.Seconds()
		}
	}
	o.PayAtOnce = !s.cfg.NoPayAtOnce && o.HoldUntil == nil && o.WhyNotPayable() == nil
}

// Store keeps orders in PostgreSQL.
type Store struct {
	db   *gorm.DB
	gate *postgres.Gate // for statements that may wait for a product's lock

	delay.TaskRows
}

// NewStore returns a store in a database that [postgres.Open] connected to.
func NewStore(db *gorm.DB) *Store {
	return &Store{db: db, gate: postgres.NewGate(db)}
}

// orderSQL completes pay.sql, cancel.sql, reschedule.sql, get.sql and list.sql: it returns the orders that they read
// or changed.
//
//go:embed order.sql
var orderSQL string

// change is a row of order.sql: an order, and whether the statement changed it.
type change struct {
	Order   `gorm:"embedded"`
	Changed bool
}

// run runs a statement, which order.sql completes, to read or change an order. The error for an order that the
// statement does not find is the same whether it belongs to another customer or does not exist.
func (s *Service) run(ctx context.Context, id uuid.UUID, statement string, args ...any) (*change, error) {
	var c change
	found, err := postgres.Scan(ctx, s.store.db, &c, statement+orderSQL, args...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read or change order %s: %w", id, err)
	case !found:
		return nil, noOrder(id)
	}
	s.setActions(&c.Order)
	return &c, nil
}

func noOrder(id uuid.UUID) error { return rest.NotFound.Errorf("There is no order %s.", id) }
