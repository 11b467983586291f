package trace

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"example.com/shop/internal/rest"
)

// Tracer traces what a process does. A nil Tracer traces nothing. See [New].
type Tracer struct {
	*otelpgx.Tracer // of the statements
	requests        trace.Tracer
	batches         trace.Tracer
	calls           trace.Tracer
	createdIn       Spans
	exported        sdk.SpanProcessor
	log             *slog.Logger
}

func newTracer(from providers, spans Spans, log *slog.Logger) *Tracer {
	const scope = "example.com/shop/internal/trace"
	return &Tracer{
		Tracer:   newQueryTracer(from.within),
		requests: from.requests.Tracer(scope), batches: from.linked.Tracer(scope), calls: from.within.Tracer(scope),
		createdIn: spans, log: log,
	}
}

const stopTimeout = 3 * time.Second // for the export of the last spans, when the process stops

// Close exports the spans that wait for their export.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := t.exported.Shutdown(ctx); err != nil {
		t.log.Warn("the last spans may not be exported", "error", err)
	}
}

// Batches returns a function that begins a span which links to the requests that a transaction handles as a batch, for
// instance those that create rows. Its argument spans has the spans of the requests.
func (t *Tracer) Batches(name string) func(ctx context.Context, spans [][]byte) (context.Context, func(error)) {
	return func(ctx context.Context, spans [][]byte) (context.Context, func(error)) {
		if t == nil {
			return ctx, func(error) {}
		}
		return t.start(ctx, name, spans, attribute.Int("messaging.batch.message_count", len(spans)))
	}
}

// startTasks begins a span that links to the requests which created the rows of a batch of tasks.
func (t *Tracer) startTasks(ctx context.Context, kind string, ids []string) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	return t.start(ctx, "process "+kind, t.creations(ctx, ids), attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", kind), attribute.Int("messaging.batch.message_count", len(ids)))
}

// start begins a span that has links and no parent. Without links it begins no span, because no request of the batch is
// exported.
func (t *Tracer) start(
	ctx context.Context, name string, spans [][]byte, attributes ...attribute.KeyValue,
) (context.Context, func(error)) {
	links := linksOf(spans)
	if len(links) == 0 {
		return ctx, func(error) {}
	}
	ctx, span := t.batches.Start(ctx, name, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...), trace.WithAttributes(attributes...))
	return ctx, ending(span)
}

// StartCall begins a span of a call to another service, within the span of the request or the batch that makes it.
func (t *Tracer) StartCall(ctx context.Context, name string) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.calls.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, ending(span)
}

func ending(span trace.Span) func(error) {
	return func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

var quiet = []string{"/healthz", "/readyz", "/metrics"} // monitoring requests these routes every few seconds

// request is a handler that makes a span of a request, as the semantic conventions for HTTP say. The span of a
// request that changes a row links to the request that created the row.
func (t *Tracer) request(c *gin.Context) {
	route, method := c.FullPath(), c.Request.Method
	if route == "" || slices.Contains(quiet, route) {
		return
	}
	ctx := propagation.TraceContext{}.Extract(c.Request.Context(), propagation.HeaderCarrier(c.Request.Header))
	ctx, span := t.requests.Start(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	c.Request = c.Request.WithContext(ctx)
	c.Next()
	if !span.IsRecording() {
		return
	}
	status := c.Writer.Status()
	if id := c.Param("id"); id != "" && status < http.StatusBadRequest && !slices.Contains(rest.ReadMethods, method) {
		for _, link := range linksOf(t.creations(ctx, []string{id})) { // none if the id is not that of a row
			span.AddLink(link)
		}
	}
	span.SetAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route),
		attribute.String("url.path", c.Request.URL.Path), attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
}

// lookupTimeout is how long a request or a batch waits for the spans that it links to. It is part of the 8 s that a
// worker's batch has in all.
const lookupTimeout = 3 * time.Second

// creations returns the spans in which rows were created, as far as they can be read.
func (t *Tracer) creations(ctx context.Context, ids []string) [][]byte {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	spans, err := t.createdIn(ctx, ids)
	if err != nil { // the handler that follows reports that the database does not answer
		t.log.DebugContext(ctx, "links of traces are missing, because the spans of rows cannot be read", "error", err)
	}
	return spans
}
