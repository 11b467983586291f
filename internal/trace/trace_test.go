package trace

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"example.com/shop/internal/testenv"
)

// fakeRows have one row.
type fakeRows struct {
	id   string
	span []byte
	err  error
}

func (f *fakeRows) Spans(_ context.Context, ids []string) (spans [][]byte, err error) {
	for _, id := range ids {
		if id == f.id {
			spans = append(spans, f.span)
		}
	}
	return spans, f.err
}

// recorded returns a tracer, and what it has recorded.
func recorded(t *testing.T, rows *fakeRows) (*Tracer, *tracetest.SpanRecorder, *bytes.Buffer) {
	t.Helper()
	spans, log := tracetest.NewSpanRecorder(), &bytes.Buffer{}
	return newTracer(newProviders(sdk.WithSpanProcessor(spans)), rows.Spans,
		slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))), spans, log
}

// TestLinks traces the creation of a row, and then what is done with it.
func TestLinks(t *testing.T) {
	rows := &fakeRows{id: "1"}
	tracer, spans, log := recorded(t, rows)
	request, creation := tracer.requests.Start(t.Context(), "request")
	if rows.span = tracer.Span(request); rows.span == nil {
		t.Fatal("the request has no span")
	}
	want := creation.SpanContext()

	_, end := tracer.Batches("create rows")(t.Context(), [][]byte{nil, rows.span})
	end(nil)
	for range 2 {
		_, end = tracer.startTasks(request, "test.kind", []string{"0", "1"})
		end(errors.New("down"))
		rows.err = errors.New("no database") // one of two statements has failed
	}
	engine := gin.New()
	engine.Use(tracer.request)
	engine.POST("/rows/:id/confirm", func(c *gin.Context) { c.Status(http.StatusOK) })
	engine.POST("/rows/:id/cancel", func(c *gin.Context) { c.Status(http.StatusUnauthorized) })
	engine.GET("/healthz", func(*gin.Context) {})
	for _, request := range []string{"POST /rows/1/confirm", "GET /healthz", "GET /nothing"} {
		method, path, _ := strings.Cut(request, " ")
		engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
	}

	ended := spans.Ended()
	if len(ended) != 4 {
		t.Fatalf("%d spans were recorded, want 4", len(ended))
	}
	for _, s := range ended {
		links := s.Links()
		if len(links) != 1 || links[0].SpanContext.TraceID() != want.TraceID() ||
			links[0].SpanContext.SpanID() != want.SpanID() {
			t.Errorf("the span %q has the links %v, want one to the creation", s.Name(), links)
		}
		if s.Parent().IsValid() {
			t.Errorf("the span %q has the parent %v, want none: a link", s.Name(), s.Parent())
		}
	}
	if text := log.String(); !strings.Contains(text, "no database") {
		t.Errorf("the log is %q, want the reason why links are missing", text)
	}
}

// TestCalls traces calls to another service: only within another span.
func TestCalls(t *testing.T) {
	tracer, spans, _ := recorded(t, &fakeRows{})
	_, end := tracer.StartCall(t.Context(), "alone")
	end(nil)
	ctx, batch := tracer.requests.Start(t.Context(), "batch")
	_, end = tracer.StartCall(ctx, "call")
	end(errors.New("no answer"))
	batch.End()
	ended := spans.Ended()
	if len(ended) != 2 || ended[0].Name() != "call" || ended[0].SpanKind() != trace.SpanKindClient ||
		ended[0].Status().Code != codes.Error ||
		ended[0].Parent().SpanID() != batch.SpanContext().SpanID() {
		t.Errorf("the spans are %v, want that of the failed call within the batch, and that of the batch", ended)
	}
}

// TestRequests traces requests: within the trace of their caller, and with the status of the answer.
func TestRequests(t *testing.T) {
	tracer, spans, _ := recorded(t, &fakeRows{})
	engine := gin.New()
	engine.Use(tracer.request)
	engine.GET("/rows/:id", func(c *gin.Context) { c.Status(http.StatusInternalServerError) })
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/rows/1", http.NoBody)
	request.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	engine.ServeHTTP(httptest.NewRecorder(), request)
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Name() != "GET /rows/:id" ||
		ended[0].Parent().SpanID().String() != "b7ad6b7169203331" || ended[0].Status().Code != codes.Error {
		t.Errorf("the spans are %+v, want one of the route, with its caller as the parent, and with an error", ended)
	}
}

// TestSampler turns the sampling of requests off. A batch is sampled if it links to a request that is exported, for
// instance by a process with another sampler.
func TestSampler(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
	tracer, spans, _ := recorded(t, &fakeRows{})
	request, end := tracer.requests.Start(t.Context(), "request")
	end.End()
	if tracer.Span(request) != nil {
		t.Error("a request that is not exported has a span to link to")
	}
	placed := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	})
	stored := tracer.Span(trace.ContextWithSpanContext(t.Context(), placed))
	batch, endBatch := tracer.Batches("create rows")(t.Context(), [][]byte{stored})
	_, endCall := tracer.StartCall(batch, "call")
	endCall(nil)
	endBatch(nil)
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
	}
	if want := []string{"call", "create rows"}; !slices.Equal(names, want) {
		t.Errorf("the spans are %q, want %q", names, want)
	}
}

// TestEnabled turns tracing on and off with the standard variables.
func TestEnabled(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, test := range map[string]struct {
		env     map[string]string
		enabled bool
		failure string
	}{
		"nothing":     {nil, false, ""},
		"an endpoint": {map[string]string{endpoint: "http://c:4318"}, true, ""},
		"disabled":    {map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, false, ""},
		"no exporter": {map[string]string{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, false,
			""},
		"another protocol": {map[string]string{endpoint: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
			true, `is "grpc": set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{
				endpoint, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL",
			} {
				t.Setenv(variable, test.env[variable])
			}
			if enabled() != test.enabled {
				t.Errorf("tracing is enabled: %v, want %v", enabled(), test.enabled)
			}
			if err := checkProtocol(); (err == nil) != (test.failure == "") || err != nil &&
				!strings.Contains(err.Error(), test.failure) {
				t.Errorf("the error is %v, want %q", err, test.failure)
			}
		})
	}
}

// TestStop stops a provider before its next export. It exports every five seconds.
func TestStop(t *testing.T) {
	var exports atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { exports.Add(1) }))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	processor, options, err := newExport("test")
	testenv.Must(t, err)
	_, span := newProviders(options...).requests.Tracer("test").Start(t.Context(), "last")
	span.End()
	(&Tracer{exported: processor, log: slog.New(slog.DiscardHandler)}).Close()
	if exports.Load() != 1 {
		t.Errorf("the collector received %d exports, want 1", exports.Load())
	}
}
