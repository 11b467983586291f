package order_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
)

// tracer gives each placement the next of its spans.
type tracer struct {
	spans   [][]byte
	batches [][][]byte
	ended   int
}

func (t *tracer) Span(context.Context) []byte {
	span := t.spans[0]
	t.spans = t.spans[1:]
	return span
}

func (t *tracer) StartBatch(ctx context.Context, _ string, spans [][]byte) (context.Context, func(error)) {
	t.batches = append(t.batches, spans)
	return ctx, func(error) { t.ended++ }
}

// TestSpans places orders, one of which is not traced, and reads their spans.
func TestSpans(t *testing.T) {
	t.Parallel()
	traced := &tracer{spans: [][]byte{{1, 2, 3}, nil, {4}}}
	s := newShop(t, func(c *order.Config) { c.Tracer = traced })
	product := s.Product(t, 3)
	var ids []string
	for range 3 {
		ids = append(ids, s.MustPlace(t, s.Customer(t), ordertest.Line(product, 1)).ID.String())
	}
	if len(traced.batches) != 3 || traced.ended != 3 || !bytes.Equal(traced.batches[0][0], []byte{1, 2, 3}) {
		t.Errorf("the transactions were traced with the spans %v, and %d of them ended; want each with the span of "+
			"its placement", traced.batches, traced.ended)
	}
	spans, err := s.Store.Spans(t.Context(), append(ids, uuid.NewString(), "foreign"))
	testenv.Must(t, err)
	slices.SortFunc(spans, bytes.Compare)
	if len(spans) != 2 || !bytes.Equal(spans[0], []byte{1, 2, 3}) || !bytes.Equal(spans[1], []byte{4}) {
		t.Errorf("the spans of the orders are %v, want those of the two that were traced", spans)
	}
}
