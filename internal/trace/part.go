// Package trace traces requests, statements, commands to Redis, calls to other services, and the batches of workers
// and reconcilers with OpenTelemetry.
//
// The span of the request that created a row is stored with the row. Later work on the row, perhaps half an hour later
// and after Redis was wiped, has a trace of its own that links to this span. One trace for the whole life of a row
// would be too long to look at, and a batch works on many rows.
package trace

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/exaring/otelpgx"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
)

// Spans returns the spans in which rows were created, by the ids of the rows.
type Spans func(ctx context.Context, ids []string) ([][]byte, error)

// New returns a tracer, which traces the statements and the commands of a process, if a standard variable of
// OpenTelemetry names a collector: OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. Otherwise it
// returns nil, which traces nothing. The other variables, such as OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME, have
// their usual meaning, except that the protocol must be http/protobuf.
func New(b *app.Base, name string, spans Spans) (*Tracer, error) {
	if !enabled() {
		return nil, nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		b.Log.Warn("spans are not exported, or not as the variables say", "error", err)
	}))
	processor, options, err := newExport(name)
	if err != nil {
		return nil, app.Usage(err)
	}
	all := newProviders(options...)
	t := newTracer(all, spans, b.Log)
	t.exported = processor
	postgres.TraceBy(b.Pool, t)
	err = redisotel.InstrumentTracing(b.Redis, redisotel.WithTracerProvider(all.within),
		redisotel.WithDBStatement(false), redisotel.WithCallerEnabled(false))
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("trace the commands to Redis: %w", err)
	}
	return t, nil
}

// Part is what a tracer adds to a process: a span of each request, and the export of the last spans.
func (t *Tracer) Part() app.Part {
	if t == nil {
		return app.Part{}
	}
	return app.Part{First: t.request, Close: t.Close}
}

func enabled() bool {
	return !strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") && os.Getenv("OTEL_TRACES_EXPORTER") != "none" &&
		(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

func checkProtocol() error {
	const name, want = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"
	if protocol := cmp.Or(os.Getenv(name), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), want); protocol != want {
		return fmt.Errorf("the protocol of OpenTelemetry is %q: set %s=%s, "+
			"which collectors receive at port 4318", protocol, name, want)
	}
	return nil
}

const maxLinks = 1000 // of a span, because a batch of a reconciler has up to 1,000 rows

// newExport returns the processor that exports ended spans, and the options of the providers that make these spans.
func newExport(name string) (sdk.SpanProcessor, []sdk.TracerProviderOption, error) {
	if err := checkProtocol(); err != nil {
		return nil, nil, err
	}
	exporter, err := otlptracehttp.New(context.Background())
	if err != nil {
		return nil, nil, fmt.Errorf("export traces: %w", err)
	}
	// The environment comes last, so that it can replace the name.
	res, err := resource.New(context.Background(), resource.WithAttributes(attribute.String("service.name", name)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("describe the process in its traces: %w", err)
	}
	limits := sdk.NewSpanLimits()
	if os.Getenv("OTEL_SPAN_LINK_COUNT_LIMIT") == "" {
		limits.LinkCountLimit = maxLinks
	}
	processor := sdk.NewBatchSpanProcessor(exporter)
	return processor, []sdk.TracerProviderOption{
		sdk.WithSpanProcessor(processor), sdk.WithResource(res), sdk.WithRawSpanLimits(limits),
	}, nil
}

// providers make spans. They differ in the spans that they export.
type providers struct {
	requests trace.TracerProvider // the spans that the variables OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG choose
	linked   trace.TracerProvider // all spans, because a span with links is made only if it links to an exported span
	within   trace.TracerProvider // spans within an exported span, so that the commands of an idle worker make none
}

func newProviders(options ...sdk.TracerProviderOption) providers {
	sampled := func(by sdk.Sampler) trace.TracerProvider {
		return sdk.NewTracerProvider(append(options[:len(options):len(options)], sdk.WithSampler(by))...)
	}
	return providers{
		requests: sdk.NewTracerProvider(options...),
		linked:   sampled(sdk.AlwaysSample()),
		within:   sampled(sdk.ParentBased(sdk.NeverSample())),
	}
}

func newQueryTracer(provider trace.TracerProvider) *otelpgx.Tracer {
	return otelpgx.NewTracer(otelpgx.WithTracerProvider(provider), otelpgx.WithSpanNameFunc(nameOf),
		otelpgx.WithDisableConnectionDetailsInAttributes(), otelpgx.WithDisableSQLStatementInAttributes())
}

// nameOf returns the name of a statement's span: its first word.
func nameOf(statement string) string {
	for line := range strings.Lines(statement) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			word, _, _ := strings.Cut(line, " ")
			return strings.ToUpper(word)
		}
	}
	return "statement"
}
