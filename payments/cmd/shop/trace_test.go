package main

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/testenv"
)

// callTracer records the names of calls to other services. It traces nothing.
type callTracer struct {
	mu    sync.Mutex
	calls []string
}

func (*callTracer) Request(*gin.Context) {}

func (*callTracer) StartTasks(ctx context.Context, _ string, _ []string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

func (t *callTracer) StartCall(ctx context.Context, name string) (context.Context, func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, name)
	return ctx, func(error) {}
}

// TestCheckoutIsTraced opens a checkout. The process's tracer sees the call to the provider.
func TestCheckoutIsTraced(t *testing.T) {
	o := validOptions()
	withProvider(&o)
	_, o.Payment.StripeURL = startProvider(t, o.Payment.StripeKey, "")
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	tracer := &callTracer{}
	config := o.Config(program())
	config.Tracer = tracer
	a := openApp(t, &o, config, slog.DiscardHandler)
	testenv.Must(t, a.store.SeedProducts(t.Context()))
	handler, err := a.Handler()
	testenv.Must(t, err)
	token, placed := signUpAndPlace(t, handler)
	decodeBody[struct{}](t, request(t, handler, http.MethodPost, "/api/orders/"+placed.ID.String()+"/payments", "", token))
	if want := []string{"payment provider: create"}; !slices.Equal(tracer.calls, want) {
		t.Errorf("the calls that are traced are %q, want %q", tracer.calls, want)
	}
}
