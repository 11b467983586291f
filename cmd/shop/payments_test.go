package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

func TestValidatePayments(t *testing.T) {
	checkValidation(t, []validation{
		{"all options", func(o *serveCommand) {
			o.Payment.StripeKey, o.Payment.WebhookSecret, o.Payment.PublicURL = "rk_live_1", "whsec_1, whsec_2", "https://shop.test"
			o.Payment.Deployment = "production"
		}, nil},
		{"the defaults", func(o *serveCommand) {
			o.Payment.StripeURL, o.Payment.PaymentGrace = "https://api.stripe.com", 2*time.Minute
		}, nil},
		{"without a webhook secret and a public URL", func(o *serveCommand) { o.Payment.StripeKey, o.Payment.Deployment = "sk_live_1", "a" }, []string{"SHOP_STRIPE_WEBHOOK_SECRET", "SHOP_PUBLIC_URL"}},
		{"in a worker", func(o *serveCommand) {
			o.Roles, o.Payment.StripeKey, o.Payment.Deployment = []string{"worker"}, "sk_live_1", "shop-2"
		}, nil},
		{"without a deployment", func(o *serveCommand) {
			o.Roles, o.Payment.StripeKey = []string{"worker"}, "sk_live_1"
		}, []string{"SHOP_DEPLOYMENT"}},
		{"wrong deployments", func(o *serveCommand) { o.Payment.Deployment = "Our Shop" }, []string{"SHOP_DEPLOYMENT", `"Our Shop"`}},
		{"a test key", func(o *serveCommand) {
			o.Roles, o.Payment.StripeKey, o.Payment.Deployment = []string{"worker"}, "rk_test_1", "production"
		}, []string{"is a test key", "SHOP_ALLOW_TEST_PAYMENTS"}},
		{"a test key that is allowed", func(o *serveCommand) {
			o.Roles, o.Payment.StripeKey, o.Payment.Deployment = []string{"worker"}, "rk_test_1", "production"
			o.Payment.AllowTestPayments = true
		}, nil},
		{"wrong URLs", func(o *serveCommand) { o.Payment.StripeURL, o.Payment.PublicURL = "api.stripe.com", "shop" }, []string{"SHOP_STRIPE_URL", "SHOP_PUBLIC_URL"}},
		{"no grace", func(o *serveCommand) { o.Payment.PaymentGrace = 0 }, []string{"SHOP_PAYMENT_GRACE", "1s to 24h"}},
	})
}

// withProvider sets the options of a process with payments. Nothing answers at the provider's URL.
func withProvider(o *serveCommand) {
	o.Payment.StripeURL, o.Payment.StripeKey = "http://127.0.0.1:1", "sk_test_1"
	o.Payment.WebhookSecret, o.Payment.PublicURL = "whsec_1", "https://shop.test"
	o.Payment.Deployment, o.Payment.AllowTestPayments = "test", true
}

// TestPaymentsAreInContract checks that a process describes the paths of payments only if it serves them: only with a
// provider.
func TestPaymentsAreInContract(t *testing.T) {
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	describes := func() bool {
		handler, err := openAppWith(t, &o).Handler()
		testenv.Must(t, err)
		return strings.Contains(request(t, handler, http.MethodGet, "/openapi.yaml", "", "").Body.String(), "\n  /api/payments:\n")
	}
	if describes() {
		t.Error("without a provider, the contract describes /api/payments")
	}
	withProvider(&o)
	if !describes() {
		t.Error("with a provider, the contract does not describe /api/payments")
	}
}

// TestNoFreeGoods checks that customers can pay an order at once, which costs them nothing, only without a provider, or
// with the option, of which the log warns.
func TestNoFreeGoods(t *testing.T) {
	const warning = "customers can pay orders at once, for nothing"
	for name, test := range map[string]struct {
		provider, option bool
		free, warned     bool
	}{
		"without a provider":                  {free: true},
		"with a provider":                     {provider: true},
		"with a provider and the option":      {provider: true, option: true, free: true, warned: true},
		"with the option, without a provider": {option: true, free: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := validOptions()
			o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
			o.Order.PayAtOnce = test.option
			if test.provider {
				withProvider(&o)
			}
			log := &testenv.Log{}
			a := openLoggedApp(t, &o, slog.NewTextHandler(log, nil))
			testenv.Must(t, a.store.SeedProducts(t.Context()))
			handler, err := a.Handler()
			testenv.Must(t, err)

			signedUp := request(t, handler, http.MethodPost, "/api/customers", "", "")
			token := decodeBody[struct{ Token string }](t, signedUp).Token
			const body = `{"items":[{"product_id":"01900000-0000-7000-8000-000000000001","quantity":1}]}`
			placed := decodeBody[order.Order](t, request(t, handler, http.MethodPost, "/api/orders", body, token))
			path := "/api/orders/" + placed.ID.String()
			read := decodeBody[order.Order](t, request(t, handler, http.MethodGet, path, "", token))
			if placed.PayAtOnce != test.free || read.PayAtOnce != test.free {
				t.Errorf("pay_at_once is %v when the order is placed and %v when it is read, want %v", placed.PayAtOnce, read.PayAtOnce, test.free)
			}
			want := http.StatusNotFound
			if test.free {
				want = http.StatusOK
			}
			if paid := request(t, handler, http.MethodPost, path+"/pay", "", token); paid.Code != want {
				t.Errorf("POST %s/pay is answered with %d %s, want %d", path, paid.Code, paid.Body, want)
			}
			contract := request(t, handler, http.MethodGet, "/openapi.yaml", "", "").Body.String()
			if described := strings.Contains(contract, "\n  /api/orders/{id}/pay:\n"); described != test.free {
				t.Errorf("the contract describes the route: %v, want %v", described, test.free)
			}
			if n := strings.Count(log.String(), warning); (n == 1) != test.warned || n > 1 {
				t.Errorf("the log warns %d times, want a warning: %v; log:\n%s", n, test.warned, log)
			}
		})
	}
}

// request sends a request of a customer, who may have no token, to a handler.
func request(t *testing.T, handler http.Handler, method, path, body, token string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return recorder
}

// decodeBody decodes the body of a successful answer.
func decodeBody[T any](t *testing.T, answer *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if answer.Code/100 != 2 {
		t.Fatalf("the answer is %d %s, want 2xx", answer.Code, answer.Body)
	}
	testenv.Must(t, json.Unmarshal(answer.Body.Bytes(), &v))
	return v
}
