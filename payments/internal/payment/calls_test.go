package payment_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/payments/internal/provider"
)

// TestCallsAreTraced makes a call that succeeds and one that fails. Each has a span.
func TestCallsAreTraced(t *testing.T) {
	m := newMemory()
	var spans []string
	calls := provider.NewCalls(m, provider.CallsConfig{Trace: func(ctx context.Context, name string) (context.Context, func(error)) {
		return ctx, func(err error) { spans = append(spans, fmt.Sprintf("%s: failed %v", name, err != nil)) }
	}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	session, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = calls.Retrieve(t.Context(), provider.ClassPoll, "no "+session.ID)
	want := []string{"payment provider: create: failed false", "payment provider: retrieve: failed true"}
	if err == nil || !slices.Equal(spans, want) {
		t.Errorf("the spans are %q, want %q", spans, want)
	}
}
