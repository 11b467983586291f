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
	//go:embed extend.sql
	extendSQL string
)

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

// change is the row that pay.sql, cancel.sql and extend.sql return: the order, and whether the statement changed it.
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

func (s *Store) extend(ctx context.Context, id, customer uuid.UUID, extension time.Duration) (*change, error) {
	return s.change(ctx, extendSQL, id, customer, extension.Microseconds())
}

// change runs a statement that changes one order. Its first parameters are the id of the order and that of its customer.
func (s *Store) change(ctx context.Context, statement string, id, customer uuid.UUID, more ...any) (*change, error) {
	var c change
	found, err := s.row(ctx, &c, statement, append([]any{id, customer}, more...)...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("change order %s: %w", id, err)
	case !found:
		return nil, errNoOrder
	}
	return &c, nil
}

// orders begins a query for the fields of [Order]. The alias of the table orders is o.
func (s *Store) orders(ctx context.Context) *gorm.DB {
	return s.db.WithContext(ctx).Table("orders o").Select(`o.id, o.customer_id, o.status, o.cancel_reason, o.total_cents, o.currency,
		o.created_at, o.expires_at, o.due_at, o.hold_until,
		CASE WHEN o.hold_until IS NOT NULL THEN greatest(o.expires_at, o.checkout_until) END AS checkout_until, o.cancel_requested_at, o.extended_at, o.paid_at, o.cancelled_at,
		clock_timestamp() AS server_time, (
		SELECT json_agg(json_build_object('product_id', p.id, 'name', p.name,
		                                  'quantity', i.quantity, 'unit_price_cents', i.unit_price_cents) ORDER BY p.id)
		FROM order_items i JOIN products p ON p.id = i.product_id
		WHERE i.order_id = o.id) AS items`)
}

func (s *Store) get(ctx context.Context, id, customer uuid.UUID) (*Order, error) {
	var o Order
	result := s.orders(ctx).Where("o.id = ? AND o.customer_id = ?", id, customer).Scan(&o)
	switch {
	case result.Error != nil:
		return nil, fmt.Errorf("read order %s: %w", id, result.Error)
	case result.RowsAffected == 0:
		return nil, errNoOrder
	}
	return &o, nil
}

// list returns up to limit of a customer's orders, newest first. It starts behind the cursor after, or with the newest
// order if after is nil.
func (s *Store) list(ctx context.Context, customer uuid.UUID, after *keyset.Cursor, limit int) ([]Order, error) {
	query := s.orders(ctx).Where("o.customer_id = ?", customer)
	if after != nil {
		query = query.Where("(o.created_at, o.id) < (?, ?)", after.At, after.ID)
	}
	orders := []Order{}
	if err := query.Order("o.created_at DESC, o.id DESC").Limit(limit).Scan(&orders).Error; err != nil {
		return nil, fmt.Errorf("list orders: %w", err)
	}
	return orders, nil
}

func (s *Store) events(ctx context.Context, id, customer uuid.UUID) ([]Event, error) {
	var events []Event
	err := s.db.WithContext(ctx).Table("order_trail t").
		Joins("JOIN orders o ON o.id = t.order_id").
		Select("t.type, t.actor, t.at").
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
