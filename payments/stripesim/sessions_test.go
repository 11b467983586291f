package stripesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

func TestCreatedSessionIsOpen(t *testing.T) {
	f := newFixture(t)
	params := sessionParams()
	s, err := f.stripe.V1CheckoutSessions.Create(t.Context(), params)
	testenv.Must(t, err)
	for _, got := range []*stripe.CheckoutSession{s, f.retrieve(t, s.ID)} {
		switch {
		case got.ID != s.ID || got.ID[:8] != "cs_test_",
			got.Object != "checkout.session",
			got.Status != stripe.CheckoutSessionStatusOpen,
			got.PaymentStatus != stripe.CheckoutSessionPaymentStatusUnpaid,
			got.PaymentIntent != nil,
			got.AmountTotal != sessionTotal, got.AmountSubtotal != sessionTotal,
			got.Currency != stripe.CurrencyEUR,
			got.ClientReferenceID != *params.ClientReferenceID,
			got.SuccessURL != *params.SuccessURL, got.CancelURL != *params.CancelURL,
			got.ExpiresAt != *params.ExpiresAt,
			got.Metadata["order_id"] != "1",
			got.Mode != stripe.CheckoutSessionModePayment,
			got.AdaptivePricing == nil || got.AdaptivePricing.Enabled,
			got.URL != f.url+"/checkout/"+s.ID,
			got.Livemode,
			got.Created < time.Now().Add(-time.Minute).Unix():
			t.Errorf("the session is %+v", got)
		}
	}
}

// TestSessionParameters changes one parameter of a valid request at a time.
func TestSessionParameters(t *testing.T) {
	f := newFixture(t)
	at := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).Unix()) }
	long := func(n int) string { return fmt.Sprintf("%0*d", n, 0) }
	const (
		price      = "line_items[0][price_data]"
		unitAmount = price + "[unit_amount]"
		quantity   = "line_items[0][quantity]"
	)
	for name, tc := range map[string]struct {
		param, value string // "" removes the parameter
		code         string
		wantParam    string // if it is another one
		ok           bool
	}{
		"no mode":                   {param: "mode", code: "parameter_missing"},
		"other mode":                {param: "mode", value: "subscription"},
		"no success_url":            {param: "success_url", code: "parameter_missing"},
		"wrong success_url":         {param: "success_url", value: "javascript:alert(1)", code: "url_invalid"},
		"success_url breaks policy": {param: "success_url", value: "https://a;b/", code: "url_invalid"},
		"no cancel_url":             {param: "cancel_url", ok: true},
		"wrong cancel_url":          {param: "cancel_url", value: "/orders", code: "url_invalid"},
		"no name":                   {param: price + "[product_data][name]", code: "parameter_missing"},
		"no currency":               {param: price + "[currency]", code: "parameter_missing"},
		"unknown currency":          {param: price + "[currency]", value: "xxx"},
		"upper-case currency":       {param: price + "[currency]", value: "EUR"},
		"no unit_amount":            {param: unitAmount, code: "parameter_missing"},
		"negative unit_amount":      {param: unitAmount, value: "-1", code: "parameter_invalid_integer"},
		"decimal unit_amount":       {param: unitAmount, value: "1.5", code: "parameter_invalid_integer"},
		"too small":                 {param: unitAmount, value: "49", code: "amount_too_small", wantParam: "-"},
		"smallest":                  {param: unitAmount, value: "50", ok: true},
		"no quantity":               {param: quantity, code: "parameter_missing"},
		"quantity 0":                {param: quantity, value: "0", code: "parameter_invalid_integer"},
		"total too large":           {param: quantity, value: "999999", code: "amount_too_large", wantParam: "-"},
		"two items":                 {param: "line_items[1][quantity]", value: "1", wantParam: "line_items"},
		"gap in the items":          {param: "line_items[2][quantity]", value: "1", wantParam: "line_items"},
		"no expires_at":             {param: "expires_at", ok: true},
		"expires too soon":          {param: "expires_at", value: at(29 * time.Minute)},
		"expires soon":              {param: "expires_at", value: at(31 * time.Minute), ok: true},
		"expires late":              {param: "expires_at", value: at(24*time.Hour - time.Minute), ok: true},
		"expires too late":          {param: "expires_at", value: at(24*time.Hour + time.Minute)},
		"expires_at is no number":   {param: "expires_at", value: "tomorrow", code: "parameter_invalid_integer"},
		"long client_reference_id":  {param: "client_reference_id", value: long(200), ok: true},
		"too long a reference":      {param: "client_reference_id", value: long(201)},
		"other payment method":      {param: "payment_method_types[0]", value: "sepa_debit"},
		"list without indexes":      {param: "payment_method_types[]", value: "card", ok: true},
		"adaptive pricing unclear":  {param: "adaptive_pricing[enabled]", value: "yes"},
		"metadata":                  {param: "metadata[a]", value: long(500), ok: true},
		"too long metadata":         {param: "metadata[a]", value: long(501)},
		"too long a metadata key":   {param: "metadata[" + long(41) + "]", value: "1"},
		"unknown":                   {param: "amount", value: "1", code: "parameter_unknown"},
		"unknown nested":            {param: price + "[product]", value: "prod_1", code: "parameter_unknown"},
		"no brackets":               {param: "metadata[a", value: "1", code: "parameter_unknown"},
		"NUL":                       {param: "client_reference_id", value: "a\x00b"},
		"not UTF-8":                 {param: "client_reference_id", value: "a\xff"},
	} {
		t.Run(name, func(t *testing.T) {
			form := url.Values{
				"mode": {"payment"}, "success_url": {"https://shop.example/"}, "cancel_url": {"https://shop.example/"},
				price + "[product_data][name]": {"Chair"}, price + "[currency]": {"eur"}, unitAmount: {"1000"},
				quantity: {"1"}, "expires_at": {at(time.Hour)}, "client_reference_id": {"1"},
			}
			form.Del(tc.param)
			if tc.value != "" {
				form.Set(tc.param, tc.value)
			}
			res, body := f.call(t, http.MethodPost, "/v1/checkout/sessions", form)
			if tc.ok {
				if res.StatusCode != http.StatusOK {
					t.Errorf("answered %d: %s", res.StatusCode, body)
				}
				return
			}
			param := tc.param
			switch tc.wantParam {
			case "":
			case "-":
				param = ""
			default:
				param = tc.wantParam
			}
			expectBody(t, res, body, http.StatusBadRequest, "invalid_request_error", tc.code, param)
		})
	}
}

// TestCurrencies opens sessions in currencies without decimals and with three.
func TestCurrencies(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		currency, amount string
		want             string // on the page, or in the error
		refused          bool
	}{
		{"jpy", "50", "Pay 50 JPY", false},
		{"jpy", "49", "at least 50 JPY", true},
		{"kwd", "1230", "Pay 1.230 KWD", false},
		{"kwd", "160", "at least 0.170 KWD", true},
		{"kwd", "1234", "The last digit", true},
	} {
		res, body := f.call(t, http.MethodPost, "/v1/checkout/sessions", url.Values{
			"mode": {"payment"}, "success_url": {"https://shop.example/"}, "line_items[0][quantity]": {"1"},
			"line_items[0][price_data][product_data][name]": {"Chair"},
			"line_items[0][price_data][currency]":           {tc.currency},
			"line_items[0][price_data][unit_amount]":        {tc.amount},
		})
		if refused := res.StatusCode == http.StatusBadRequest; refused != tc.refused {
			t.Errorf("%s %s: answered %d: %s", tc.amount, tc.currency, res.StatusCode, body)
			continue
		}
		if !tc.refused {
			var made stripe.CheckoutSession
			testenv.Must(t, json.Unmarshal([]byte(body), &made))
			_, body = f.send(t, http.MethodGet, "/checkout/"+made.ID, "", "")
		}
		if !strings.Contains(body, tc.want) {
			t.Errorf("%s %s: the answer lacks %q:\n%s", tc.amount, tc.currency, tc.want, body)
		}
	}
}

func TestSessionIsExpiredOnce(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	expired, err := f.stripe.V1CheckoutSessions.Expire(t.Context(), s.ID, nil)
	testenv.Must(t, err)
	for _, got := range []*stripe.CheckoutSession{expired, f.retrieve(t, s.ID)} {
		if got.Status != stripe.CheckoutSessionStatusExpired ||
			got.PaymentStatus != stripe.CheckoutSessionPaymentStatusUnpaid ||
			got.URL != "" || got.PaymentIntent != nil {
			t.Errorf("the session is %+v, want it expired and unpaid, without an address", got)
		}
	}
	expectError(t, f.expire(t.Context(), s.ID), http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, "", "")
	if got := f.ledger(t)[s.ID]; got.Status != "expired" || got.CapturedCents != 0 {
		t.Errorf("the ledger has %+v", got)
	}
}

func TestPaidSessionIsNotExpired(t *testing.T) {
	f := newFixture(t)
	s := f.paid(t)
	if s.Status != stripe.CheckoutSessionStatusComplete ||
		s.PaymentStatus != stripe.CheckoutSessionPaymentStatusPaid ||
		s.PaymentIntent == nil || s.PaymentIntent.ID[:3] != "pi_" || s.URL != "" {
		t.Errorf("the session is %+v, want it complete and paid, with a payment intent", s)
	}
	expectError(t, f.expire(t.Context(), s.ID), http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, "", "")
	got := f.ledger(t)[s.ID]
	want := Payment{ClientReferenceID: "attempt-1", SessionID: s.ID, Status: "complete", PaymentStatus: "paid",
		AmountCents: sessionTotal, Currency: "eur", PaymentIntent: &s.PaymentIntent.ID, CapturedCents: sessionTotal}
	if got.PaymentIntent == nil || *got.PaymentIntent != *want.PaymentIntent {
		t.Errorf("the ledger has the payment intent %v, want %s", got.PaymentIntent, *want.PaymentIntent)
	}
	if got.PaymentIntent = want.PaymentIntent; got != want {
		t.Errorf("the ledger has %+v, want %+v", got, want)
	}
}

func TestUnknownSession(t *testing.T) {
	f := newFixture(t)
	_, err := f.stripe.V1CheckoutSessions.Retrieve(t.Context(), "cs_test_none", nil)
	for _, err := range []error{err, f.expire(t.Context(), "cs_test_none")} {
		expectError(t, err, http.StatusNotFound,
			stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeResourceMissing, "session")
	}
}

// makeOverdue moves the time at which a session expires into the past.
func (f *fixture) makeOverdue(t testing.TB, id string) {
	t.Helper()
	_, err := f.sim.db.Exec(t.Context(), `
		UPDATE stripesim.sessions SET expires_at = now() - interval '1 second' WHERE id = $1`, id)
	testenv.Must(t, err)
}

func TestOverdueSessionExpiresByItself(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	s := f.create(t)
	f.makeOverdue(t, s.ID)
	e := r.await(t, 1)[0]
	if e.Type != "checkout.session.expired" || e.Data.Object["id"] != s.ID || e.Request.ID != "" {
		t.Errorf("the event is %+v", e)
	}
}

// TestOverdueSessionIsNotPaid pays before Run has expired the session.
func TestOverdueSessionIsNotPaid(t *testing.T) {
	f := newStoppedFixture(t)
	s := f.create(t)
	f.makeOverdue(t, s.ID)
	if res := f.submit(t, s.ID, "pay"); res.StatusCode != http.StatusConflict {
		t.Errorf("paying answered %d, want 409", res.StatusCode)
	}
	for range 2 {
		testenv.Must(t, f.sim.expireSessions(t.Context()))
	}
	if got := f.retrieve(t, s.ID); got.Status != stripe.CheckoutSessionStatusExpired {
		t.Errorf("the session is %s, want expired", got.Status)
	}
	_, page := f.send(t, http.MethodGet, "/checkout/"+s.ID, "", "")
	if !strings.Contains(page, "This checkout has expired") {
		t.Errorf("the page is %s", page)
	}
	if events := f.eventTypes(t, s.ID); !slices.Equal(events, []string{"checkout.session.expired"}) {
		t.Errorf("the events are %q, want one", events)
	}
}

// TestCloseMeetsPay lets one request expire a session while another one pays it.
func TestCloseMeetsPay(t *testing.T) {
	races := testenv.Rounds(100, 500)
	f := newStoppedFixture(t, func(c *Config) { c.DatabaseConns = 16 })
	// All sessions are made at once, because only their ends race.
	_, err := f.sim.db.Exec(t.Context(), `
		INSERT INTO stripesim.sessions (id, amount_total, currency, item, metadata, payment_metadata,
			adaptive_pricing, success_url, expires_at, account, livemode)
		SELECT 'cs_test_' || n, 100, 'eur', 'Chair', '{}', '{}',
			false, 'https://shop.example/', now() + interval '1 hour', $2, false
		FROM generate_series(1, $1) n`, races, defaultAccount)
	testenv.Must(t, err)

	handler := f.sim.Handler()
	ids := make(chan string)
	var paid, expired sync.Map
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for id := range ids {
				var race sync.WaitGroup
				race.Go(func() { expired.Store(id, inProcess(handler, "/v1/checkout/sessions/"+id+"/expire")) })
				race.Go(func() { paid.Store(id, inProcess(handler, "/checkout/"+id+"/pay")) })
				race.Wait()
			}
		})
	}
	for n := range races {
		ids <- fmt.Sprint("cs_test_", n+1)
	}
	close(ids)
	workers.Wait()

	ledger, wins := f.ledger(t), map[string]int{}
	for n := range races {
		id := fmt.Sprint("cs_test_", n+1)
		p, _ := paid.Load(id)
		e, _ := expired.Load(id)
		got := ledger[id]
		switch {
		case p == http.StatusSeeOther && e == http.StatusBadRequest && got.Status == "complete" &&
			got.CapturedCents == 100,
			p == http.StatusConflict && e == http.StatusOK && got.Status == "expired" && got.CapturedCents == 0:
			wins[got.Status]++
		default:
			t.Fatalf("pay answered %v, expire answered %v, and the ledger has %+v", p, e, got)
		}
	}
	t.Logf("wins: %v", wins)
	if n := f.count(t, `SELECT count(*) FROM stripesim.events WHERE type LIKE 'checkout.%'`); n != races {
		t.Errorf("there are %d events, want %d: one for each session", n, races)
	}
}

// TestCloseAndPayWait locks a session, so that the request that came first is the first to get it.
func TestCloseAndPayWait(t *testing.T) {
	f := newStoppedFixture(t)
	handler := f.sim.Handler()
	pay := func(id string) int { return inProcess(handler, "/checkout/"+id+"/pay") }
	expire := func(id string) int { return inProcess(handler, "/v1/checkout/sessions/"+id+"/expire") }
	for _, tt := range []struct {
		name              string
		first, second     func(id string) int
		firstIs, secondIs int
		status            stripe.CheckoutSessionStatus
	}{
		{"pay first", pay, expire, http.StatusSeeOther, http.StatusBadRequest, stripe.CheckoutSessionStatusComplete},
		{"expire first", expire, pay, http.StatusOK, http.StatusConflict, stripe.CheckoutSessionStatusExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := f.create(t)
			tx, err := f.sim.db.Begin(t.Context())
			testenv.Must(t, err)
			defer tx.Rollback(t.Context())
			_, err = tx.Exec(t.Context(), `SELECT FROM stripesim.sessions WHERE id = $1 FOR UPDATE`, s.ID)
			testenv.Must(t, err)
			waiting := func(n int) {
				t.Helper()
				testenv.Eventually(t, fmt.Sprintf("%d sessions that wait for a lock", n), func() bool {
					return f.count(t, `
						SELECT count(*) FROM pg_stat_activity
						WHERE datname = current_database() AND wait_event_type = 'Lock'`) == n
				})
			}
			first, second := make(chan int, 1), make(chan int, 1)
			go func() { first <- tt.first(s.ID) }()
			waiting(1)
			go func() { second <- tt.second(s.ID) }()
			waiting(2) // otherwise the second one may get the session while the first one wakes up
			testenv.Must(t, tx.Rollback(t.Context()))
			if a, b := <-first, <-second; a != tt.firstIs || b != tt.secondIs {
				t.Errorf("the first request answered %d and the second %d, want %d and %d",
					a, b, tt.firstIs, tt.secondIs)
			}
			if got := f.retrieve(t, s.ID); got.Status != tt.status {
				t.Errorf("the session is %s, want %s", got.Status, tt.status)
			}
		})
	}
}

func TestDeclinedCardLeavesSessionOpen(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	res, page := f.send(t, http.MethodPost, "/checkout/"+s.ID+"/decline", "", "")
	if res.StatusCode != http.StatusPaymentRequired || !strings.Contains(page, "Your card was declined") {
		t.Errorf("declining answered %d: %s", res.StatusCode, page)
	}
	if got := f.retrieve(t, s.ID); got.Status != stripe.CheckoutSessionStatusOpen || got.PaymentIntent != nil {
		t.Errorf("the session is %+v, want it open", got)
	}
	if res := f.submit(t, s.ID, "pay"); res.StatusCode != http.StatusSeeOther {
		t.Errorf("paying after a declined card answered %d, want 303", res.StatusCode)
	}
}

func TestBankConfirmsPayment(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.BankDelay = time.Hour })
	s := f.create(t)
	for range 2 { // the second time has no effect
		res := f.submit(t, s.ID, "bank")
		if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/checkout/"+s.ID+"?bank" {
			t.Errorf("the bank's form answered %d %v", res.StatusCode, res.Header)
		}
	}
	if got := f.retrieve(t, s.ID); got.Status != stripe.CheckoutSessionStatusOpen {
		t.Errorf("the session is %s while the bank asks, want open", got.Status)
	}
	f.endBankDelay(t)
	testenv.Eventually(t, "a paid session", func() bool {
		return f.retrieve(t, s.ID).PaymentStatus == stripe.CheckoutSessionPaymentStatusPaid
	})
	res, _ := f.send(t, http.MethodGet, "/checkout/"+s.ID+"?bank", "", "")
	want := "https://shop.example/orders/1?session=" + s.ID
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != want {
		t.Errorf("the page answered %d %v, want a redirect to %s", res.StatusCode, res.Header, want)
	}
}

// endBankDelay makes the bank that confirms in an hour confirm now.
func (f *fixture) endBankDelay(t testing.TB) {
	t.Helper()
	result, err := f.sim.db.Exec(t.Context(), `
		UPDATE stripesim.sessions SET bank_pays_at = now()
		WHERE bank_pays_at BETWEEN now() + interval '50 min' AND now() + interval '1 hour'`)
	testenv.Must(t, err)
	if n := result.RowsAffected(); n != 1 {
		t.Errorf("the bank confirms %d payments in an hour, want 1", n)
	}
}

func TestExpiredSessionIsNotPaidByBank(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.BankDelay = time.Hour })
	s := f.create(t)
	f.submit(t, s.ID, "bank")
	testenv.Must(t, f.expire(t.Context(), s.ID))
	f.endBankDelay(t)
	testenv.Must(t, f.sim.confirmBankPayments(t.Context()))
	if got := f.ledger(t)[s.ID]; got.Status != "expired" || got.CapturedCents != 0 {
		t.Errorf("the ledger has %+v, want an expired session without money", got)
	}
}
