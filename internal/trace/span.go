package trace

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceparent is the name of the header that has the span of a caller. A stored span is a value of this header.
const traceparent = "traceparent"

// Span returns the span of a context in the form that is stored with a row, or nil if it is not exported.
func (t *Tracer) Span(ctx context.Context) []byte {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return []byte(carrier[traceparent])
}

// linksOf returns links to stored spans. It skips values that are not stored spans.
func linksOf(stored [][]byte) []trace.Link {
	links := make([]trace.Link, 0, len(stored))
	for _, s := range stored {
		carrier := propagation.MapCarrier{traceparent: string(s)}
		span := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
		if span.IsValid() {
			links = append(links, trace.Link{SpanContext: span})
		}
	}
	return links
}
