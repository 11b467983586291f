package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/programtest"
	"example.com/shop/payments/stripesim"
)

func TestValidatePayments(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*serveCommand)
		want   []string // parts of the error; nil if the options are valid
	}{
		{"all options", func(o *serveCommand) {
			o.Payment.StripeKey, o.Payment.WebhookSecret, o.PublicURL = "rk_live_1", "whsec_1, whsec_2", "https://shop.test"
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
		{"payments for nothing with a live key", func(o *serveCommand) {
			o.Roles, o.Payment.StripeKey, o.Payment.Deployment = []string{"worker"}, "sk_live_1", "production"
			o.Payment.PayAtOnce = true
		}, []string{"SHOP_PAY_AT_ONCE", "live key"}},
		{"wrong URLs", func(o *serveCommand) { o.Payment.StripeURL, o.PublicURL = "api.stripe.com", "shop" }, []string{"SHOP_STRIPE_URL", "SHOP_PUBLIC_URL"}},
		{"no grace", func(o *serveCommand) { o.Payment.PaymentGrace = 0 }, []string{"SHOP_PAYMENT_GRACE", "1s to 24h"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := validOptions()
			tt.change(&o)
			err := o.check()
			programtest.CheckError(t, err, tt.want)
		})
	}
}

// TestWrongValuesAreNamedTogether checks that a wrong role or level of the log hides no other wrong option.
func TestWrongValuesAreNamedTogether(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--roles=worker,cook", "--log-level=loud", "--stripe-url=stripe", "--payment-grace=1ms"},
		{"doctor", "--log-level=loud", "--stripe-url=stripe"},
		{"payments", "reconcile", "--log-level=loud", "--stripe-url=stripe"},
		{"provider", "--log-level=loud", "--webhook-url=stripe"},
	} {
		var out strings.Builder
		code := runCommand(t.Context(), args, &out)
		if code != 2 || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%v exits with %d and prints %q, want 2 and one line", args, code, &out)
		}
		for _, arg := range args {
			name, _, isFlag := strings.Cut(arg, "=")
			if isFlag && !strings.Contains(out.String(), "("+name+") ") {
				t.Errorf("%v prints %q, want %s in it", args, &out, name)
			}
		}
	}
}

// TestServeWithoutPayments serves without payments on a database that has their schema.
func TestServeWithoutPayments(t *testing.T) {
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // ends a process that starts
	defer cancel()
	err := o.Serve.Run(ctx, program())
	if err == nil || !strings.HasPrefix(err.Error(), "the database has the schema of payments, which this ") {
		t.Errorf("the program without payments returns %v, want that it refuses the database", err)
	}
}

// TestServeWithoutKey serves without a key of the provider on a database whose payments are live, or were tests. On the
// live one an API must not start: customers could pay there for nothing. A worker may.
func TestServeWithoutKey(t *testing.T) {
	for _, test := range []struct {
		mode, role string
		refused    bool
	}{{"live", "api", true}, {"live", "worker", false}, {"test", "api", false}} {
		o := validOptions()
		o.DatabaseURL, o.RedisURL, o.Roles = testenv.Postgres(t), "redis://127.0.0.1:1/0", []string{test.role}
		db, err := sql.Open("pgx", o.DatabaseURL)
		testenv.Must(t, err)
		testenv.Exec(t, db, `INSERT INTO payment_deployment (deployment, mode) VALUES ('production', '`+test.mode+`')`)
		db.Close()
		p, err := newShop(t.Context(), o.Config(program()), &o.Options, o.Payment, slog.New(slog.DiscardHandler))
		if err == nil {
			p.Close()
		}
		refused := err != nil && strings.Contains(err.Error(), "deployment production, mode live") &&
			strings.Contains(err.Error(), "SHOP_STRIPE_KEY")
		if refused != test.refused || (err != nil) != test.refused {
			t.Errorf("without a key, the role %s on a %s database ends with %v, want a refusal: %v",
				test.role, test.mode, err, test.refused)
		}
	}
}

// TestPaymentsAreInContract checks that a process describes the paths of payments only if it serves them: only with a
// provider.
func TestPaymentsAreInContract(t *testing.T) {
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	describes := func() bool {
		handler := openAppWith(t, &o).Handler()
		contract := request(t, handler, http.MethodGet, "/openapi.yaml", "", "").Body.String()
		return strings.Contains(contract, " /api/payments:\n")
	}
	if describes() {
		t.Error("without a provider, the contract describes /api/payments")
	}
	withProvider(&o)
	if !describes() {
		t.Error("with a provider, the contract does not describe /api/payments")
	}
}

// waysToPay returns the options of a shop whose customers may pay at a provider, and at once.
func waysToPay(t *testing.T, atProvider, atOnce bool) serveCommand {
	t.Helper()
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	o.Payment.PayAtOnce = atOnce
	if atProvider {
		withProvider(&o)
	}
	return o
}

// TestNoFreeGoods checks that customers can pay an order at once, which costs them nothing, only without a provider, or
// with the option. The log warns of both.
func TestNoFreeGoods(t *testing.T) {
	const warning = "customers can pay orders at once, for nothing"
	for name, test := range map[string]struct {
		provider, option bool
		free, warned     bool
	}{
		"without a provider":                  {free: true, warned: true},
		"with a provider":                     {provider: true},
		"with a provider and the option":      {provider: true, option: true, free: true, warned: true},
		"with the option, without a provider": {option: true, free: true, warned: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := waysToPay(t, test.provider, test.option)
			log := &testenv.LogBuffer{}
			a := openApp(t, &o, o.Config(program()), slog.NewTextHandler(log, nil))
			testenv.Must(t, a.store.SeedProducts(t.Context()))
			handler := a.Handler()

			token, placed := signUpAndPlace(t, handler)
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
			if described := strings.Contains(contract, " /api/orders/{id}/pay:\n"); described != test.free {
				t.Errorf("the contract describes the route: %v, want %v", described, test.free)
			}
			if n := strings.Count(log.String(), warning); (n == 1) != test.warned || n > 1 {
				t.Errorf("the log warns %d times, want a warning: %v; log:\n%s", n, test.warned, log)
			}
		})
	}
}

// TestTotalNotChargeableIsNotPlaced places orders that cost what the provider does not charge. Such an order is placed
// only if it can be paid without the provider.
func TestTotalNotChargeableIsNotPlaced(t *testing.T) {
	for name, test := range map[string]struct {
		provider, option bool
		price            int64
		want             int
	}{
		"too small":             {provider: true, price: 49, want: http.StatusConflict},
		"too large":             {provider: true, price: 100_000_000, want: http.StatusConflict},
		"the smallest":          {provider: true, price: 50, want: http.StatusCreated},
		"it can be paid anyway": {provider: true, option: true, price: 49, want: http.StatusCreated},
		"without a provider":    {price: 49, want: http.StatusCreated},
	} {
		t.Run(name, func(t *testing.T) {
			o := waysToPay(t, test.provider, test.option)
			a := openAppWith(t, &o)
			testenv.Must(t, a.store.SeedProducts(t.Context()))
			handler := a.Handler()
			token, placed := signUpAndPlace(t, handler)
			testenv.Must(t, a.DB.Exec(`UPDATE products SET price_cents = ? WHERE id = ?`,
				test.price, placed.Items[0].ProductID).Error)

			body := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, placed.Items[0].ProductID)
			answer := request(t, handler, http.MethodPost, "/api/orders", body, token)
			if answer.Code != test.want {
				t.Errorf("the placement is answered with %d %s, want %d", answer.Code, answer.Body, test.want)
			}
			if refused := strings.Contains(answer.Body.String(), "/problems/total-not-chargeable"); refused != (answer.Code == 409) {
				t.Errorf("the answer is %s, want total-not-chargeable only with 409", answer.Body)
			}
		})
	}
}

// TestDoctorAsksTheProvider makes one mistake in each case, and checks that `shop doctor` reports it, and nothing else. It
// must change nothing at the provider.
func TestDoctorAsksTheProvider(t *testing.T) {
	const key = "sk_test_doctor"
	const receiver = "https://shop.test/webhooks/stripe"
	sim, providerURL := startProvider(t, key, receiver)
	_, elsewhere := startProvider(t, key, "https://shop.test/elsewhere")
	o := validOptions()
	withProvider(&o)
	o.Payment.StripeKey, o.Payment.StripeURL, o.Payment.Deployment = key, providerURL, "production"
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), testenv.Redis(t)
	a := openAppWith(t, &o)
	_, err := a.Kinds.Sweep(t.Context())
	testenv.Must(t, err)
	testenv.Exec(t, a.Pool, `INSERT INTO payment_deployment (deployment, mode, account) VALUES ('production', 'test', 'acct_simulated')`)
	knobs := sim.Knobs()

	for name, test := range map[string]struct {
		args   []string // replace those of a process that is right
		knobs  func(k *stripesim.Knobs)
		price  string // of a product: its price and its currency
		fails  []string
		ends   string // the error with which the command does not start
		prints []string
	}{
		"all is well": {prints: []string{"ok    provider", "production, mode test", "ok    webhooks"}},
		"a price that is not charged": {price: "12345, 'KWD'", fails: []string{"prices"},
			prints: []string{`"thing" costs 12.345 KWD, and the payment provider charges only multiples of 0.010 KWD`}},
		"a price that only several units can have": {price: "1, 'EUR'", prints: []string{"ok    prices"}},
		"wrong key": {args: []string{"--stripe-key=sk_test_wrong"},
			fails: []string{"provider"}, prints: []string{"Invalid API Key", "note  webhooks"}},
		"wrong URL": {args: []string{"--stripe-url=http://127.0.0.1:1"},
			fails: []string{"provider", "webhooks"}, prints: []string{"connection refused"}},
		"key of another mode": {args: []string{"--stripe-key=sk_live_doctor"},
			knobs: func(k *stripesim.Knobs) { k.Key = "sk_live_doctor" },
			ends:  "mode live, an account that is not known, but its database belongs to deployment production, mode test"},
		"key of another account": {knobs: func(k *stripesim.Knobs) { k.Account = "acct_other" },
			fails: []string{"provider"}, prints: []string{"acct_other", "acct_simulated"}},
		"another deployment": {args: []string{"--deployment=staging"}, ends: "this process has deployment staging"},
		"no permission to read the account and the endpoints": {
			knobs:  func(k *stripesim.Knobs) { k.Denied = "GET /v1/account, GET /v1/webhook_endpoints" },
			prints: []string{"note  provider", "the account is not checked", "note  webhooks"}},
		"a missing event": {knobs: func(k *stripesim.Knobs) { k.Events = "checkout.session.completed" },
			fails: []string{"webhooks"}, prints: []string{"does not receive checkout.session.expired"}},
		"a disabled endpoint": {knobs: func(k *stripesim.Knobs) { k.Webhooks = "disabled" }, fails: []string{"webhooks"}, prints: []string{"is disabled"}},
		"another endpoint": {args: []string{"--stripe-url", elsewhere}, fails: []string{"webhooks"},
			prints: []string{"no endpoint whose URL ends with /webhooks/stripe"}},
	} {
		t.Run(name, func(t *testing.T) {
			turned := knobs
			if test.knobs != nil {
				test.knobs(&turned)
			}
			testenv.Must(t, sim.SetKnobs(turned))
			if test.price != "" {
				testenv.Exec(t, a.Pool, `INSERT INTO products (id, name, price_cents, currency, supply, available)
					VALUES ('01900000-0000-7000-8000-00000000000f', 'thing', `+test.price+`, 1, 1)`)
				defer testenv.Exec(t, a.Pool, `DELETE FROM products WHERE name = 'thing'`)
			}
			var out strings.Builder
			code := runCommand(t.Context(), append([]string{"doctor", "--database-url", o.DatabaseURL, "--redis-url", o.RedisURL,
				"--stripe-key", key, "--stripe-url", providerURL, "--deployment", "production"}, test.args...), &out)
			if test.ends != "" {
				if code != 1 || !strings.Contains(out.String(), test.ends) {
					t.Errorf("got exit code %d, want 1 and the error %q; printed:\n%s", code, test.ends, out.String())
				}
				return
			}
			if want := min(1, len(test.fails)); code != want || strings.Count(out.String(), "FAIL") != len(test.fails) {
				t.Errorf("got exit code %d, want %d and failures of %v only; printed:\n%s", code, want, test.fails, out.String())
			}
			for _, subject := range test.fails {
				test.prints = append(test.prints, "FAIL  "+subject)
			}
			for _, text := range test.prints {
				if !strings.Contains(out.String(), text) {
					t.Errorf("printed:\n%s\nwant %q in it", out.String(), text)
				}
			}
		})
	}
	ledger, err := sim.Ledger(t.Context())
	testenv.Must(t, err)
	if len(ledger) != 0 {
		t.Errorf("the provider's ledger is %+v, want no row", ledger)
	}
}

// startProvider starts a simulator of the payment provider for one test, with a key and an endpoint. It returns its URL,
// too.
func startProvider(t *testing.T, key, webhookURL string) (sim *stripesim.Simulator, url string) {
	t.Helper()
	sim, err := stripesim.Open(t.Context(), stripesim.Config{
		DatabaseURL: testenv.Postgres(t), Key: key, WebhookSecret: "whsec_1", WebhookURL: webhookURL,
	})
	testenv.Must(t, err)
	t.Cleanup(sim.Close)
	server := httptest.NewServer(sim.Handler())
	t.Cleanup(server.Close)
	return sim, server.URL
}

// signUpAndPlace signs a customer up, and places an order of one unit of the first sample product. It returns the customer's token.
func signUpAndPlace(t *testing.T, handler http.Handler) (token string, placed order.Order) {
	t.Helper()
	token = decodeBody[struct{ Token string }](t, request(t, handler, http.MethodPost, "/api/customers", "", "")).Token
	const body = `{"items":[{"product_id":"01900000-0000-7000-8000-000000000001","quantity":1}]}`
	return token, decodeBody[order.Order](t, request(t, handler, http.MethodPost, "/api/orders", body, token))
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

// TestConnectionsForSweeps starts a process with payments, whose sweeps need a connection for each of three kinds of task, and
// one more.
func TestConnectionsForSweeps(t *testing.T) {
	args := append([]string{
		"serve", "--http-addr=127.0.0.1:0", "--database-url=" + testenv.Postgres(t), "--redis-url=redis://127.0.0.1:1/0",
		"--stripe-url=http://127.0.0.1:1", "--stripe-key=sk_test_1", "--stripe-webhook-secret=whsec_1", "--public-url=https://shop.test",
		"--deployment=test", "--allow-test-payments", "--database-conns=3",
	}, secretsOfAPI...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // the command may serve instead
	defer cancel()
	var out strings.Builder
	if code := runCommand(ctx, args, &out); code != 2 || !strings.Contains(out.String(), "SHOP_DATABASE_CONNS (--database-conns) is 3, want at least 4") {
		t.Errorf("exit code %d, printed %.300q; want 2 and the least number of connections", code, out.String())
	}
}

// TestSweepOfOtherKinds sweeps while another process sweeps the first kind of task. The other kinds are swept all the same.
func TestSweepOfOtherKinds(t *testing.T) {
	o := validOptions()
	withProvider(&o)
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), testenv.Redis(t)
	a := openAppWith(t, &o)
	first, others := a.Kinds[0], a.Kinds[1:]
	release := testenv.HoldLock(t, a.Pool, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "reconcile "+first.Name)
	_, err := a.Kinds.Sweep(t.Context())
	release()
	if !errors.Is(err, reconcile.ErrSweeping) {
		t.Errorf("Sweep returns %v, want ErrSweeping", err)
	}
	for _, k := range others {
		if last, _, err := k.Reconciler.Last(t.Context()); err != nil || last == nil {
			t.Errorf("the report of %s is %v, %v; want one", k.Name, last, err)
		}
	}
}
