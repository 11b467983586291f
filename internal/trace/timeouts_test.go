package trace

import (
	"context"
	"log/slog"
	"testing"

	"go.opentelemetry.io/otel/codes"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
)

// TestTimeouts times out rows for a worker, then for a reconciler, and then with a panic. Each batch has a span. The
// ids are no UUIDs, so that the table needs no database.
func TestTimeouts(t *testing.T) {
	rows := &fakeRows{id: "1"}
	tracer, spans, _ := recorded(t, rows)
	request, creation := tracer.requests.Start(t.Context(), "request")
	rows.span = tracer.Span(request)
	creation.End()
	panics := false
	table := timeout.NewTable(nil, "test.kind", timeout.Rows{
		Observe: func(context.Context, []timeout.Result, timeout.Caller) {
			if panics {
				panic("a mistake")
			}
		},
	}, slog.New(slog.DiscardHandler))
	tasks := []delay.Task{{ID: "0"}, {ID: "1"}}
	for _, tracer := range []*Tracer{tracer, nil} {
		outcomes, err := tracer.Timeouts("test.kind", table).Handle(t.Context(), tasks)
		if err != nil || len(outcomes) != 2 {
			t.Errorf("Handle returns %v, %v; want two outcomes", outcomes, err)
		}
	}
	traced := tracer.Timeouts("test.kind", table)
	_, _, err := traced.TimeOut(t.Context(), []string{"1"})
	testenv.Must(t, err)
	panics = true
	func() {
		defer func() { _ = recover() }()
		_, _ = traced.Handle(t.Context(), tasks)
	}()
	ended := spans.Ended()[1:] // the first one is the request
	if len(ended) != 3 {
		t.Fatalf("%d batches have spans, want 3", len(ended))
	}
	for i, span := range ended {
		failed := span.Status().Code == codes.Error
		if span.Name() != "process test.kind" || len(span.Links()) != 1 || failed != (i == 2) {
			t.Errorf("span %d is %s with %d links and the status %v; want a link to the request, and an error only after "+
				"the panic", i, span.Name(), len(span.Links()), span.Status())
		}
	}
}
