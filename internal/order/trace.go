package order

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
)

// Tracer traces placements. A span is stored with the order, so that what is done with the order later can link to
// it, also after Redis was wiped.
type Tracer interface {
	// Span returns the span of a request, or nil if the request is not traced.
	Span(ctx context.Context) []byte
	// StartPlacing begins a span of the transaction that places a batch, and returns the function that ends it. spans
	// are those of the requests, nil for each that is not traced.
	StartPlacing(ctx context.Context, spans [][]byte) (span context.Context, end func(error))
}

// noTracer traces nothing.
type noTracer struct{}

func (noTracer) Span(context.Context) []byte { return nil }

func (noTracer) StartPlacing(ctx context.Context, _ [][]byte) (span context.Context, end func(error)) {
	return ctx, func(error) {}
}

// maxOthers is the largest number of rows of other packages whose orders Spans looks for, one by one. A worker's
// batches of such rows are smaller, and a reconciler that catches up must not wait for more.
const maxOthers = 20

// Spans returns the spans in which orders were placed. ids are those of orders, or of rows of other packages that
// refer to orders. An order whose placement was not traced has no span.
func (s *Store) Spans(ctx context.Context, ids []string, dependents []Dependent) ([][]byte, error) {
	orders, _ := keyset.ParseIDs(ids)
	spans, found, err := s.spans(ctx, orders)
	if err != nil {
		return nil, err
	}
	var others []uuid.UUID
	for _, id := range orders {
		if found[id] || len(others) == maxOthers {
			continue
		}
		order, known, err := orderOf(s.db.WithContext(ctx), dependents, id.String())
		if err != nil {
			return spans, err
		}
		if known {
			others = append(others, order)
		}
	}
	if len(others) == 0 {
		return spans, nil
	}
	more, _, err := s.spans(ctx, others)
	return append(spans, more...), err
}

// spans returns the spans of orders, and says which of the orders exist.
func (s *Store) spans(ctx context.Context, ids []uuid.UUID) (spans [][]byte, found map[uuid.UUID]bool, err error) {
	var rows []struct {
		ID   uuid.UUID
		Span []byte
	}
	if err := s.db.WithContext(ctx).Raw(`SELECT id, span FROM orders WHERE id = ANY($1::uuid[])`, ids).Scan(&rows).Error; err != nil {
		return nil, nil, fmt.Errorf("read the spans of orders: %w", err)
	}
	found = make(map[uuid.UUID]bool, len(rows))
	for _, row := range rows {
		found[row.ID] = true
		if row.Span != nil {
			spans = append(spans, row.Span)
		}
	}
	return spans, found, nil
}
