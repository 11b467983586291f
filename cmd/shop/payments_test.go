package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

func TestValidatePayments(t *testing.T) {
	checkValidation(t, []validation{
		{"all options", func(o *serveCommand) {
			o.Payment.StripeKey, o.Payment.WebhookSecret, o.Payment.PublicURL = "sk_test_1", "whsec_1, whsec_2", "https://shop.test"
		}, nil},
		{"the defaults", func(o *serveCommand) {
			o.Payment.StripeURL, o.Payment.PaymentGrace = "https://api.stripe.com", 2*time.Minute
		}, nil},
		{"without a webhook secret and a public URL", func(o *serveCommand) { o.Payment.StripeKey = "sk_test_1" }, []string{"SHOP_STRIPE_WEBHOOK_SECRET", "SHOP_PUBLIC_URL"}},
		{"in a worker", func(o *serveCommand) { o.Roles, o.Payment.StripeKey = []string{"worker"}, "sk_test_1" }, nil},
		{"wrong URLs", func(o *serveCommand) { o.Payment.StripeURL, o.Payment.PublicURL = "api.stripe.com", "shop" }, []string{"SHOP_STRIPE_URL", "SHOP_PUBLIC_URL"}},
		{"no grace", func(o *serveCommand) { o.Payment.PaymentGrace = 0 }, []string{"SHOP_PAYMENT_GRACE", "1s to 24h"}},
	})
}

// TestPaymentsAreInContract checks that a process describes the paths of payments only if it serves them: only with a
// provider.
func TestPaymentsAreInContract(t *testing.T) {
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	describes := func() bool {
		handler, err := openAppWith(t, &o).Handler()
		testenv.Must(t, err)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.yaml", http.NoBody))
		return strings.Contains(recorder.Body.String(), "\n  /api/payments:\n")
	}
	if describes() {
		t.Error("without a provider, the contract describes /api/payments")
	}
	o.Payment.StripeKey, o.Payment.WebhookSecret, o.Payment.PublicURL = "sk_test_1", "whsec_1", "https://shop.test"
	if !describes() {
		t.Error("with a provider, the contract does not describe /api/payments")
	}
}
