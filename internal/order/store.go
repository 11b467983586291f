package order

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// Each step of an order's life is one round trip and one transaction. Each step but the first, the placement, is one
// statement. due.go has the statement of the step that the worker and the reconciler take.
var (
	//go:embed pay.sql
	paySQL string
	//go:embed cancel.sql
	cancelSQL string
	//go:embed reschedule.sql
	rescheduleSQL string

	//go:embed get.sql
	getSQL string
	//go:embed list.sql
	listSQL string
	// orderSQL completes the statements above: it returns the orders that they read or changed.
	//go:embed order.sql
	orderSQL string
)

// listOrder completes list.sql after order.sql.
const listOrder = "ORDER BY o.created_at DESC, o.id DESC"

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

// row runs a statement that returns at most one row, and reports whether there is one.
func (s *Store) row(ctx context.Context, dst any, statement string, args ...any) (found bool, err error) {
	return postgres.Scan(ctx, s.db, dst, statement, args...)
}

// errNoOrder means that an id is not the id of one of the customer's orders. Another customer may have an order with this
// id.
var errNoOrder = errors.New("the customer has no order with this id")

// change is a row of order.sql: an order, and whether the statement changed it.
type change struct {
	Order   `gorm:"embedded"`
	Changed bool
}

func (s *Store) pay(ctx context.Context, id, customer uuid.UUID) (*change, error) {
	return s.change(ctx, paySQL, id, customer)
}

// cancel cancels an order, or records the request if the order is held. holdKind is the kind of the task to owe then, ""
// for none.
func (s *Store) cancel(ctx context.Context, id, customer uuid.UUID, holdKind string) (*change, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.change(ctx, cancelSQL, id, customer, s.RowKind(holdKind))
}

// extend moves the deadline of a customer's order by an extension, unless the order has had the most extensions.
func (s *Store) extend(ctx context.Context, id, customer uuid.UUID, extension time.Duration, most int64) (*change, error) {
	return s.change(ctx, rescheduleSQL, id, customer, extension.Microseconds(), most, nil, nil, nil, nil,
		s.RowKind(CancelKind))
}

// reschedule moves the deadline of an order for an operator, who gives a reason.
func (s *Store) reschedule(ctx context.Context, id uuid.UUID, deadline time.Time, reason string) (*change, error) {
	return s.change(ctx, rescheduleSQL, id, nil, nil, nil, deadline, reason,
		minDeadline.Microseconds(), maxDeadline.Microseconds(), s.RowKind(CancelKind))
}

// change runs a statement that changes the order with an id, the first parameter.
func (s *Store) change(ctx context.Context, statement string, id uuid.UUID, more ...any) (*change, error) {
	var c change
	found, err := s.row(ctx, &c, statement+orderSQL, append([]any{id}, more...)...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("change order %s: %w", id, err)
	case !found:
		return nil, errNoOrder
	}
	return &c, nil
}

func (s *Store) get(ctx context.Context, id, customer uuid.UUID) (*Order, error) {
	var o Order
	found, err := s.row(ctx, &o, getSQL+orderSQL, id, customer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read order %s: %w", id, err)
	case !found:
		return nil, errNoOrder
	}
	return &o, nil
}

// list returns up to limit of a customer's orders, newest first. It starts behind the cursor after, or with the newest
// order if after is nil.
func (s *Store) list(ctx context.Context, customer uuid.UUID, after *keyset.Cursor, limit int) ([]Order, error) {
	var at *time.Time
	var id uuid.UUID
	if after != nil {
		at, id = &after.At, after.ID
	}
	orders := []Order{}
	if _, err := postgres.Scan(ctx, s.db, &orders, listSQL+orderSQL+listOrder, customer, at, id, limit); err != nil {
		return nil, fmt.Errorf("list orders: %w", err)
	}
	return orders, nil
}

func (s *Store) events(ctx context.Context, id, customer uuid.UUID) ([]Event, error) {
	var events []Event
	err := s.db.WithContext(ctx).Table("order_trail t").
		Joins("JOIN orders o ON o.id = t.order_id").
		Select("t.type, t.actor, t.at, t.deadline, t.reason").
		Where("o.id = ? AND o.customer_id = ?", id, customer).
		Order("t.number").Scan(&events).Error
	switch {
	case err != nil:
		return nil, fmt.Errorf("read events of order %s: %w", id, err)
	case len(events) == 0: // an order has at least one
		return nil, errNoOrder
	}
	return events, nil
}

func (s *Store) products(ctx context.Context) ([]Product, error) {
	products := []Product{}
	if err := s.db.WithContext(ctx).Order("name, id").Find(&products).Error; err != nil {
		return nil, fmt.Errorf("list products: %w", err)
	}
	return products, nil
}

// SeedProducts adds the sample products. It leaves those that exist unchanged.
func (s *Store) SeedProducts(ctx context.Context) error {
	products := []Product{
		{Name: "Espresso beans, 1 kg", PriceCents: 2190, Supply: 10_000},
		{Name: "Moka pot, 6 cups", PriceCents: 3450, Supply: 40},
		{Name: "Hand grinder", PriceCents: 8900, Supply: 25},
		{Name: "Porcelain cup", PriceCents: 1250, Supply: 2_000},
		{Name: "Barista course, one seat", PriceCents: 14900, Supply: 6},
	}
	for i := range products {
		// Fixed ids make seeding idempotent, and examples can name the products.
		products[i].ID = uuid.MustParse(fmt.Sprintf("01900000-0000-7000-8000-%012d", i+1))
		products[i].Currency = "EUR"
		products[i].Available = products[i].Supply
	}
	if err := s.db.WithContext(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&products).Error; err != nil {
		return fmt.Errorf("seed products: %w", err)
	}
	return nil
}
