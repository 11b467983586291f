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

// TestSpans places orders, one of which is not traced, and reads their spans.
func TestSpans(t *testing.T) {
	t.Parallel()
	var begun [][][]byte
	ended := 0
	s := newShop(t, func(c *order.Config) {
		c.BeginBatch = func(ctx context.Context, spans [][]byte) (context.Context, func(error)) {
			begun = append(begun, spans)
			return ctx, func(error) { ended++ }
		}
	})
	product := s.Product(t, 3)
	var ids []string
	for _, span := range [][]byte{{1, 2, 3}, nil, {4}} {
		o, _, err := s.Place(t.Context(), s.Customer(t), order.Placement{
			Lines: []order.Line{ordertest.Line(product, 1)}, Span: span,
		})
		testenv.Must(t, err)
		ids = append(ids, o.ID.String())
	}
	if len(begun) != 3 || ended != 3 || !bytes.Equal(begun[0][0], []byte{1, 2, 3}) {
		t.Errorf("the transactions began with the spans %v, and %d of them ended; want each with the span of its "+
			"placement", begun, ended)
	}
	spans, err := s.Store.Spans(t.Context(), append(ids, uuid.NewString(), "foreign"))
	testenv.Must(t, err)
	slices.SortFunc(spans, bytes.Compare)
	if len(spans) != 2 || !bytes.Equal(spans[0], []byte{1, 2, 3}) || !bytes.Equal(spans[1], []byte{4}) {
		t.Errorf("the spans of the orders are %v, want those of the two that were traced", spans)
	}
}
