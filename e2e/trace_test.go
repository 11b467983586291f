package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// spanCollector receives the spans of processes.
type spanCollector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*trace.Span
}

func newSpanCollector(t testing.TB) *spanCollector {
	t.Helper()
	c := &spanCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.receive(r); err != nil {
			t.Errorf("the collector cannot read spans: %v", err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *spanCollector) receive(r *http.Request) error {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = unzipped
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var request collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(text, &request); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return nil
}

// named returns the spans whose name is the given one.
func (c *spanCollector) named(name string) (spans []*trace.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// created returns the ids of the requests that created an order. A request that was rejected because the machine was
// slow has a span, too. It is left out.
func (c *spanCollector) created() map[string]bool {
	ids := map[string]bool{}
	for _, s := range c.named("POST /api/orders") {
		for _, a := range s.Attributes {
			if a.Key == "http.response.status_code" && a.Value.GetIntValue() == http.StatusCreated {
				ids[spanID(s.TraceId, s.SpanId)] = true
			}
		}
	}
	return ids
}

// linked counts the spans in ids to which the spans of a name link.
func (c *spanCollector) linked(name string, ids map[string]bool) int {
	found := map[string]bool{}
	for _, s := range c.named(name) {
		for _, l := range s.Links {
			if id := spanID(l.TraceId, l.SpanId); ids[id] {
				found[id] = true
			}
		}
	}
	return len(found)
}

func spanID(traceID, span []byte) string { return fmt.Sprintf("%x-%x", traceID, span) }

// TestTraces creates orders, wipes Redis, and restarts the process. The spans in which the orders time out link to
// those of the requests that created the orders.
func TestTraces(t *testing.T) {
	t.Parallel()
	const n = 100
	spans := newSpanCollector(t)
	site := orders.NewSite(t, testenv.Redis(t), envTimeout+"=6s", "OTEL_EXPORTER_OTLP_ENDPOINT="+spans.URL,
		"OTEL_BSP_SCHEDULE_DELAY=100")
	p := site.Serve(t)
	var owned []faulttest.Owned
	for range n {
		owned = append(owned, p.Create())
	}
	faulttest.Eventually(t, "all requests that created an order are traced",
		func() bool { return len(spans.created()) == n })
	testenv.Must(t, faulttest.RedisClient(t, site.Redis).FlushDB(t.Context()).Err())
	p.Interrupt()
	if log := p.Text(); !strings.Contains(log, `"trace_id"`) {
		t.Errorf("the log of requests has no trace_id:\n%s", log)
	}
	p = site.Serve(t)
	p.WaitForTimeouts(owned)
	created := spans.created()
	for _, name := range []string{"place orders", "process " + orders.Kind} {
		faulttest.Eventually(t, fmt.Sprintf("the spans %q link to 99 of 100 requests", name), func() bool {
			return 100*spans.linked(name, created) >= 99*n
		})
	}
}
