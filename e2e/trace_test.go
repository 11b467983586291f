package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// TestTraces creates an order, wipes Redis, and restarts the process. The program exports a span of the request, of the
// transaction that places the order, and of the batch in which the order times out. A batch has a span only if it links
// to an exported request.
func TestTraces(t *testing.T) {
	t.Parallel()
	var spans testenv.LogBuffer
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(&spans, r.Body); err != nil { // protobuf, which has the names of spans as they are
			t.Errorf("the collector cannot read spans: %v", err)
		}
	}))
	t.Cleanup(collector.Close)
	await := func(name string) {
		t.Helper()
		faulttest.Eventually(t, "a span "+name, func() bool { return strings.Contains(spans.String(), name) })
	}
	site := orders.NewSite(t, testenv.Redis(t), envTimeout+"=12s", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL,
		"OTEL_BSP_SCHEDULE_DELAY=100")
	p := site.Serve(t)
	p.Create()
	await("POST /api/orders")
	await("place orders")
	testenv.Must(t, testenv.RedisClient(t, site.Redis).FlushDB(t.Context()).Err())
	p.Interrupt()
	if log := p.Text(); !strings.Contains(log, `"trace_id"`) {
		t.Errorf("the log of requests has no trace_id:\n%s", log)
	}
	site.Serve(t)
	await("process " + orders.Kind)
}
