package order

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

var (
	//go:embed seed.sql
	seedSQL string
	//go:embed where.sql
	whereSQL string
)

// Products lists the products by name.
func (s *Service) Products(ctx context.Context) ([]Product, error) {
	products := []Product{}
	if err := s.store.db.WithContext(ctx).Order("name, id").Find(&products).Error; err != nil {
		return nil, fmt.Errorf("list products: %w", err)
	}
	return products, nil
}

// SeedProducts adds the sample products. It leaves those that exist unchanged.
func (s *Store) SeedProducts(ctx context.Context) error {
	if err := s.db.WithContext(ctx).Exec(seedSQL).Error; err != nil {
		return fmt.Errorf("seed products: %w", err)
	}
	return nil
}

const (
	getSQL = selectOrders + `WHERE o.id = $1 AND o.customer_id = $2`
	// The last order of the page before is $2 and $3; a $2 that is NULL stands for the first page.
	listSQL = selectOrders + `
		WHERE o.customer_id = $1 AND (o.created_at, o.id) < (coalesce($2::timestamptz, 'infinity'), $3::uuid)
		ORDER BY o.created_at DESC, o.id DESC LIMIT $4`
)

// Get returns one of a customer's orders.
func (s *Service) Get(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	var o Order
	found, err := postgres.Scan(ctx, s.store.db, &o, getSQL, id, customer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read order %s: %w", id, err)
	case !found:
		return nil, NotFound(id)
	}
	s.setActions(&o)
	return &o, nil
}

// Events returns the audit trail of one of a customer's orders, oldest first.
func (s *Service) Events(ctx context.Context, customer, id uuid.UUID) ([]Event, error) {
	var events []Event
	err := s.store.db.WithContext(ctx).Table("order_trail t").
		Joins("JOIN orders o ON o.id = t.order_id").
		Select("t.type, t.actor, t.at, t.deadline, t.reason").
		Where("o.id = ? AND o.customer_id = ?", id, customer).
		Order("t.at, t.number").Scan(&events).Error
	switch {
	case err != nil:
		return nil, fmt.Errorf("read events of order %s: %w", id, err)
	case len(events) == 0: // an order has at least one
		return nil, NotFound(id)
	}
	return events, nil
}

// List returns up to limit of a customer's orders, newest first, and the cursor of the next page. It starts behind the
// cursor after, or with the newest order if after is nil. The returned cursor is nil after the last page.
func (s *Service) List(
	ctx context.Context, customer uuid.UUID, after *keyset.Cursor, limit int,
) (orders []Order, next *string, err error) {
	var at *time.Time
	var id uuid.UUID
	if after != nil {
		at, id = &after.At, after.ID
	}
	orders = []Order{}
	more := limit + 1 // the last one only shows that there is a next page
	_, err = postgres.Scan(ctx, s.store.db, &orders, listSQL, customer, at, id, more)
	if err != nil {
		return nil, nil, fmt.Errorf("list orders: %w", err)
	}
	for i := range orders {
		s.setActions(&orders[i])
	}
	if len(orders) > limit {
		orders = orders[:limit]
		last := orders[limit-1]
		cursor := keyset.Cursor{At: last.CreatedAt, ID: last.ID}.String()
		next = &cursor
	}
	return orders, next, nil
}

// Where returns what operators ask about the order that has an id. For the id "" it returns the orders that are overdue
// for the longest time, at most 20.
func (s *Service) Where(ctx context.Context, id string) ([]app.FoundRow, error) {
	if id == "" {
		return s.where(ctx, nil)
	}
	if order, err := keyset.ParseID(id); err == nil {
		return s.where(ctx, &order)
	}
	return nil, nil // an order has no such id
}

// where runs where.sql for an order, or for the overdue orders if order is nil.
func (s *Service) where(ctx context.Context, order *uuid.UUID) (rows []app.FoundRow, err error) {
	if err := s.store.db.WithContext(ctx).Raw(whereSQL, order, CancelKind).Scan(&rows).Error; err != nil {
		return nil, fmt.Errorf("read where orders are: %w", err)
	}
	return rows, nil
}
