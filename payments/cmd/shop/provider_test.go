package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
)

// TestProvider runs `shop provider` on a database that does not exist yet, creates a session, and stops the command
// while a request is hung.
func TestProvider(t *testing.T) {
	database, err := url.Parse(testenv.Postgres(t))
	testenv.Must(t, err)
	admin, err := sql.Open("pgx", database.String())
	testenv.Must(t, err)
	t.Cleanup(func() { admin.Close() })
	database.Path += "_provider"
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "DROP DATABASE "+strings.TrimPrefix(database.Path, "/")); err != nil {
			t.Error(err)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log testenv.LogBuffer
	shop := program()
	shop.Out, shop.Err = io.Discard, &log
	ended := make(chan error, 1)
	go func() {
		ended <- app.Run(ctx, shop, &commands{}, []string{"provider", "--http-addr=127.0.0.1:0", "--database-url=" + database.String(),
			"--stripe-key=sk_test_1", "--stripe-webhook-secret=whsec_1"})
	}()
	var started struct{ Addr string }
	testenv.Eventually(t, "the simulator logs its address", func() bool {
		line, _, complete := strings.Cut(log.String(), "\n")
		return complete && json.Unmarshal([]byte(line), &started) == nil && started.Addr != ""
	})
	address := "http://" + started.Addr
	var health strings.Builder
	if code := runCommand(t.Context(), []string{"health", "--http-addr=" + started.Addr}, &health); code != 0 || health.String() != `{"status":"ready"}`+"\n" {
		t.Errorf("shop health ends with %d and prints %q, want 0 and that it is ready", code, health.String())
	}

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := stripe.NewClient("sk_test_1", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: &address, MaxNetworkRetries: stripe.Int64(0), HTTPClient: &http.Client{Transport: transport},
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
	})))
	session, err := client.V1CheckoutSessions.Create(t.Context(), &stripe.CheckoutSessionCreateParams{
		Mode: stripe.String("payment"), SuccessURL: stripe.String("https://shop.example/"),
		LineItems: []*stripe.CheckoutSessionCreateLineItemParams{{
			Quantity: stripe.Int64(1),
			PriceData: &stripe.CheckoutSessionCreateLineItemPriceDataParams{
				Currency: stripe.String("eur"), UnitAmount: stripe.Int64(100),
				ProductData: &stripe.CheckoutSessionCreateLineItemPriceDataProductDataParams{Name: stripe.String("Chair")},
			},
		}},
	})
	testenv.Must(t, err)
	if want := address + "/checkout/" + session.ID; session.URL != want {
		t.Errorf("the checkout is at %q, want %q", session.URL, want)
	}

	setKnobs(t, address, `{"api":"hung"}`)
	sent, hung := make(chan struct{}), make(chan error, 1)
	go func() {
		once := sync.OnceFunc(func() { close(sent) }) // the transport may repeat a GET
		trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { once() }}
		_, err := client.V1CheckoutSessions.Retrieve(httptrace.WithClientTrace(context.Background(), trace), session.ID, nil)
		hung <- err
	}()
	<-sent
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the command ended with %v, want nil", err)
	}
	if err := <-hung; err == nil {
		t.Error("a request that was hung was answered")
	}
	if text := log.String(); !strings.Contains(text, `"stopped"`) || strings.Contains(text, "grace") {
		t.Errorf("the log is %s, want it to stop without waiting for the hung request", text)
	}
}

func setKnobs(t *testing.T, address, knobs string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, address+"/sim/knobs", strings.NewReader(knobs))
	testenv.Must(t, err)
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	testenv.Must(t, err)
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("PUT /sim/knobs answered %d, want 200", res.StatusCode)
	}
}

// TestProviderOptions runs `shop provider` with options that it must reject.
func TestProviderOptions(t *testing.T) {
	valid := []string{"--http-addr=127.0.0.1:0", "--database-url=postgres://127.0.0.1:1/stripesim", "--stripe-key=sk_test_1", "--stripe-webhook-secret=whsec_1"}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want []string // parts of the output
	}{
		{"no options", nil, 2, []string{"SHOP_DATABASE_URL", "SHOP_HTTP_ADDR", "SHOP_STRIPE_KEY", "SHOP_STRIPE_WEBHOOK_SECRET"}},
		{"an address without a port", append(valid, "--http-addr=localhost"), 2, []string{"SHOP_HTTP_ADDR"}},
		{"a webhook address without a scheme", append(valid, "--webhook-url=shop/webhooks"), 2, []string{"SHOP_WEBHOOK_URL", `"shop/webhooks"`}},
		{"a public address of another scheme", append(valid, "--public-url=ftp://shop"), 2, []string{"SHOP_PUBLIC_URL"}},
		{"one connection", append(valid, "--database-conns=1"), 2, []string{"SHOP_DATABASE_CONNS"}},
		{"no database", valid, 1, []string{"connect to the simulator's database", "refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			code := runCommand(t.Context(), append([]string{"provider"}, tt.args...), &out)
			if code != tt.code || strings.Count(out.String(), "\n") != 1 {
				t.Errorf("got exit code %d and %q, want %d and one line", code, out.String(), tt.code)
			}
			for _, part := range tt.want {
				if !strings.Contains(out.String(), part) {
					t.Errorf("got %q, want %q in it", out.String(), part)
				}
			}
		})
	}
}
