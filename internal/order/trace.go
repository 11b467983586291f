package order

import (
	"context"
	"fmt"

	"example.com/shop/internal/keyset"
)

// PlacementTracer traces placements. A span is stored with the order, so that what is done with the order later can
// link to it, also after Redis was wiped.
type PlacementTracer interface {
	// Span returns the span of a request, or nil if the request is not traced.
	Span(ctx context.Context) []byte
	// StartBatch begins a span of the transaction that places a batch, and returns the function that ends it. spans has
	// the span of each request, nil if the request is not traced.
	StartBatch(ctx context.Context, name string, spans [][]byte) (span context.Context, end func(error))
}

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
