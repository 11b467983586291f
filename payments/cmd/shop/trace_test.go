package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"example.com/shop/internal/testenv"
)

// TestCheckoutIsTraced opens a checkout. The collector of traces gets a span of the call to the provider.
func TestCheckoutIsTraced(t *testing.T) {
	var mu sync.Mutex
	var exported []byte
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		exported = append(exported, body...)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	o := validOptions()
	withProvider(&o)
	_, o.Payment.StripeURL = startProvider(t, o.Payment.StripeKey, "")
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	a := openAppWith(t, &o)
	testenv.Must(t, a.store.SeedProducts(t.Context()))
	handler := a.Handler()
	token, placed := signUpAndPlace(t, handler)
	decodeBody[struct{}](t, request(t, handler, http.MethodPost, "/api/orders/"+placed.ID.String()+"/payments", "", token))
	a.Parts[0].Close() // the tracer, which exports the last spans
	mu.Lock()
	defer mu.Unlock()
	if name := "payment provider: create"; !bytes.Contains(exported, []byte(name)) {
		t.Errorf("the collector got %d bytes without a span %q", len(exported), name)
	}
}
