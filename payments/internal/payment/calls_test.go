package payment_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/payments/internal/payment"
)

// TestCallsAreTraced makes a call that succeeds and one that fails. Each has a span.
func TestCallsAreTraced(t *testing.T) {
	m := newMemory()
	var spans []string
	calls := payment.NewCalls(m, payment.CallsConfig{Trace: func(ctx context.Context, name string) (context.Context, func(error)) {
		return ctx, func(err error) { spans = append(spans, fmt.Sprintf("%s: failed %v", name, err != nil)) }
	}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	session, err := calls.Create(t.Context(), payment.Checkout{Key: "first"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = calls.Retrieve(t.Context(), payment.ClassPoll, "no "+session.ID)
	want := []string{"payment provider: create: failed false", "payment provider: retrieve: failed true"}
	if err == nil || !slices.Equal(spans, want) {
		t.Errorf("the spans are %q, want %q", spans, want)
	}
}
