package trace

import (
	"slices"

	"go.opentelemetry.io/otel/trace"
)

// A stored span has the id of the trace, that of the span, and the flags, one after the other, as in the header traceparent.
const (
	traceIDLen = len(trace.TraceID{})
	spanIDLen  = len(trace.SpanID{})
	storedLen  = traceIDLen + spanIDLen + 1
)

func encode(span trace.SpanContext) []byte {
	t, s := span.TraceID(), span.SpanID()
	return slices.Concat(t[:], s[:], []byte{byte(span.TraceFlags())})
}

// decode returns a stored span. ok is false if it is none.
func decode(stored []byte) (span trace.SpanContext, ok bool) {
	if len(stored) != storedLen {
		return span, false
	}
	span = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID:    trace.TraceID(stored[:traceIDLen]),
		SpanID:     trace.SpanID(stored[traceIDLen : traceIDLen+spanIDLen]),
		TraceFlags: trace.TraceFlags(stored[storedLen-1]),
		Remote:     true,
	})
	return span, span.IsValid()
}

// linksOf returns links to stored spans. It leaves out nil.
func linksOf(stored [][]byte) []trace.Link {
	links := make([]trace.Link, 0, len(stored))
	for _, s := range stored {
		if span, ok := decode(s); ok {
			links = append(links, trace.Link{SpanContext: span})
		}
	}
	return links
}
