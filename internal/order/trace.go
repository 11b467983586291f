package order

import (
	"context"
	"fmt"

	"example.com/shop/internal/keyset"
)

// Spans returns the spans in which orders were placed. It leaves out an order whose placement was not traced, and an
// id that belongs to no order.
func (s *Store) Spans(ctx context.Context, ids []string) (spans [][]byte, err error) {
	orders, _ := keyset.ParseIDs(ids)
	const statement = `SELECT span FROM orders WHERE id = ANY($1::uuid[]) AND span IS NOT NULL`
	if err := s.db.WithContext(ctx).Raw(statement, orders).Scan(&spans).Error; err != nil {
		return nil, fmt.Errorf("read the spans of orders: %w", err)
	}
	return spans, nil
}
