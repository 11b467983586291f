package stripesim

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

// balance returns the balance transactions of all pages, the newest first, with their sources.
func (f *fixture) balance(
	t testing.TB, params *stripe.BalanceTransactionListParams,
) (all []*stripe.BalanceTransaction) {
	t.Helper()
	params.AddExpand("data.source")
	for b, err := range f.stripe.V1BalanceTransactions.List(t.Context(), params).All(t.Context()) {
		testenv.Must(t, err)
		all = append(all, b)
	}
	return all
}

func categories(all []*stripe.BalanceTransaction) (names []string) {
	for _, b := range all {
		names = append(names, string(b.ReportingCategory))
	}
	return names
}

// TestBalanceTransactions checks that each movement of money is a new balance transaction with its source.
func TestBalanceTransactions(t *testing.T) {
	f := newFixture(t)
	intent := f.paid(t).PaymentIntent.ID
	_, err := f.refund(t, intent, 1000)
	testenv.Must(t, err)
	f.set(t, func(k *Knobs) { k.Refunds = "fail" })
	failing, err := f.refund(t, intent, 500)
	testenv.Must(t, err)
	testenv.Eventually(t, "a failed refund in the books", func() bool {
		return f.count(t, `SELECT count(*) FROM stripesim.balance_transactions`) == 4
	})
	page := &stripe.BalanceTransactionListParams{}
	page.Limit = stripe.Int64(1) // so that the list has four pages
	all := f.balance(t, page)
	want := []string{"refund_failure", "refund", "refund", "charge"}
	if got := categories(all); !slices.Equal(got, want) {
		t.Fatalf("the books have %q, want %q", got, want)
	}
	for i, want := range []struct{ amount, source int64 }{
		{500, 500},
		{-500, 500},
		{-1000, 1000},
		{sessionTotal, sessionTotal},
	} {
		b := all[i]
		if b.Amount != want.amount || b.Net != b.Amount || b.Currency != stripe.CurrencyEUR {
			t.Errorf("the balance transaction %d is %+v, want the amount %d", i, b, want.amount)
		}
		switch {
		case b.Source.Refund != nil && b.Source.Refund.Amount == want.source &&
			b.Source.Refund.PaymentIntent.ID == intent:
		case b.Source.Charge != nil && b.Source.Charge.Amount == want.source &&
			b.Source.Charge.PaymentIntent.ID == intent &&
			b.Source.Charge.Metadata["deployment"] == "test":
		default:
			t.Errorf("the source of the balance transaction %d is %+v, want the amount %d", i, b.Source, want.source)
		}
	}
	r := f.retrieveRefund(t, failing.ID)
	if r.BalanceTransaction.ID != all[1].ID || r.FailureBalanceTransaction.ID != all[0].ID {
		t.Errorf("the failed refund is %+v, want the balance transactions %s and %s", r, all[1].ID, all[0].ID)
	}
	testenv.Must(t, f.exec(t, `
		UPDATE stripesim.balance_transactions SET created_at = created_at - interval '1 hour' WHERE amount = -1000`))
	minuteAgo := time.Now().Add(-time.Minute).Unix()
	for name, want := range map[string]struct {
		created stripe.RangeQueryParams
		count   int
	}{
		"from": {stripe.RangeQueryParams{GreaterThanOrEqual: minuteAgo}, 3},
		"to":   {stripe.RangeQueryParams{LesserThan: minuteAgo}, 1},
	} {
		got := f.balance(t, &stripe.BalanceTransactionListParams{CreatedRange: &want.created})
		if len(got) != want.count {
			t.Errorf("%s: the books have %q, want %d", name, categories(got), want.count)
		}
	}
}

// TestSettlementCurrency checks that a payment in another currency is booked in that of the account.
func TestSettlementCurrency(t *testing.T) {
	f := newFixture(t)
	p := sessionParams()
	for _, item := range p.LineItems {
		item.PriceData.Currency = stripe.String("usd")
	}
	s, err := f.stripe.V1CheckoutSessions.Create(t.Context(), p)
	testenv.Must(t, err)
	f.submit(t, s.ID, "pay")
	b := f.balance(t, &stripe.BalanceTransactionListParams{})[0]
	if b.Amount != 3599 || b.Currency != stripe.CurrencyEUR || b.ExchangeRate != 0.9 ||
		b.Source.Charge.Amount != sessionTotal || b.Source.Charge.Currency != stripe.CurrencyUSD {
		t.Errorf("the balance transaction is %+v with the source %+v, want 35.99 EUR of 39.99 USD", b, b.Source.Charge)
	}
}

// TestSessionList checks the filters and the pages of the list of sessions.
func TestSessionList(t *testing.T) {
	f := newFixture(t)
	first, paid, last := f.create(t), f.paid(t), f.create(t)
	list := func(p *stripe.CheckoutSessionListParams) (ids []string) {
		t.Helper()
		p.Limit = stripe.Int64(1)
		for s, err := range f.stripe.V1CheckoutSessions.List(t.Context(), p).All(t.Context()) {
			testenv.Must(t, err)
			ids = append(ids, s.ID)
		}
		return ids
	}
	for _, c := range []struct {
		name   string
		params stripe.CheckoutSessionListParams
		want   []string
	}{
		{"all", stripe.CheckoutSessionListParams{}, []string{last.ID, paid.ID, first.ID}},
		{"open", stripe.CheckoutSessionListParams{Status: stripe.String("open")}, []string{last.ID, first.ID}},
		{"later", stripe.CheckoutSessionListParams{CreatedRange: &stripe.RangeQueryParams{
			GreaterThanOrEqual: time.Now().Add(time.Minute).Unix(),
		}}, nil},
	} {
		if got := list(&c.params); !slices.Equal(got, c.want) {
			t.Errorf("%s: the list has %q, want %q", c.name, got, c.want)
		}
	}
	p := &stripe.CheckoutSessionListParams{}
	p.StartingAfter = stripe.String("cs_test_none")
	p.Single = true
	err := listError(t.Context(), f.stripe.V1CheckoutSessions.List(t.Context(), p))
	expectError(t, err, http.StatusBadRequest,
		stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeResourceMissing, "starting_after")
}

// TestAccountsAndModes checks that a key sees only the objects of its account and its mode.
func TestAccountsAndModes(t *testing.T) {
	f := newFixture(t, newReceiver(t).configure)
	open, paid := f.create(t), f.paid(t)
	_, err := f.refund(t, paid.PaymentIntent.ID, 100)
	testenv.Must(t, err)
	const liveKey = "sk_live_1234567890abcdef"
	live := newClient(t, f.url, liveKey)
	for name, other := range map[string]struct {
		client *stripe.Client
		change func(*Knobs)
	}{
		"mode":    {live, func(k *Knobs) { k.Key = liveKey }},
		"account": {f.stripe, func(k *Knobs) { k.Account = "acct_other" }},
	} {
		before := f.sim.Knobs()
		f.set(t, other.change)
		ctx, c := t.Context(), other.client
		missing := map[string]error{}
		_, missing["retrieve a session"] = c.V1CheckoutSessions.Retrieve(ctx, open.ID, nil)
		_, missing["expire a session"] = c.V1CheckoutSessions.Expire(ctx, open.ID, nil)
		_, missing["create a refund"] = c.V1Refunds.Create(ctx,
			&stripe.RefundCreateParams{PaymentIntent: &paid.PaymentIntent.ID})
		for call, err := range missing {
			if e, ok := err.(*stripe.Error); !ok || e.Code != stripe.ErrorCodeResourceMissing {
				t.Errorf("another %s: %s: %v, want an object that is missing", name, call, err)
			}
		}
		for b := range c.V1BalanceTransactions.List(ctx, &stripe.BalanceTransactionListParams{}).All(ctx) {
			t.Errorf("another %s: the books have %+v", name, b)
		}
		for s := range c.V1CheckoutSessions.List(ctx, &stripe.CheckoutSessionListParams{}).All(ctx) {
			t.Errorf("another %s: the list has %+v", name, s)
		}
		for r := range c.V1Refunds.List(ctx, &stripe.RefundListParams{}).All(ctx) {
			t.Errorf("another %s: the list has %+v", name, r)
		}
		own, err := c.V1CheckoutSessions.Create(ctx, sessionParams())
		testenv.Must(t, err)
		if own.Livemode != (name == "mode") {
			t.Errorf("another %s: the session is %+v", name, own)
		}
		if _, err := c.V1CheckoutSessions.Expire(ctx, own.ID, nil); err != nil {
			t.Errorf("another %s: %v", name, err)
		}
		if e := f.events(t)[0]; e.Data.Object["id"] != own.ID || e.Livemode != own.Livemode {
			t.Errorf("another %s: the event is %+v", name, e)
		}
		account, err := c.V1Accounts.Retrieve(ctx, nil)
		testenv.Must(t, err)
		if account.ID != f.sim.Knobs().Account {
			t.Errorf("another %s: the account is %q", name, account.ID)
		}
		testenv.Must(t, f.sim.SetKnobs(before))
	}
	if s := f.retrieve(t, open.ID); s.Status != stripe.CheckoutSessionStatusOpen {
		t.Errorf("the session is %s, want open", s.Status)
	}
}

// TestDeniedOperations checks the answer to a key without the permission for an operation.
func TestDeniedOperations(t *testing.T) {
	f := newFixture(t)
	f.set(t, func(k *Knobs) { k.Denied = "GET /v1/account, GET /v1/checkout/sessions/{id}" })
	_, err := f.stripe.V1Accounts.Retrieve(t.Context(), nil)
	expectError(t, err, http.StatusForbidden, stripe.ErrorTypeInvalidRequest, "more_permissions_required", "")
	s := f.create(t)
	_, err = f.stripe.V1CheckoutSessions.Retrieve(t.Context(), s.ID, nil)
	expectError(t, err, http.StatusForbidden, stripe.ErrorTypeInvalidRequest, "more_permissions_required", "")
	testenv.Must(t, f.expire(t.Context(), s.ID))
}

// TestEndpoint checks that the endpoint receives only the events that it wants, and none while it is disabled.
func TestEndpoint(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	endpoints := func() (all []*stripe.WebhookEndpoint) {
		list := f.stripe.V1WebhookEndpoints.List(t.Context(), &stripe.WebhookEndpointListParams{})
		for e, err := range list.All(t.Context()) {
			testenv.Must(t, err)
			all = append(all, e)
		}
		return all
	}
	f.set(t, func(k *Knobs) { k.Events = "checkout.session.expired, refund.created" })
	if got := endpoints(); len(got) != 1 || got[0].URL != r.url || got[0].Status != "enabled" ||
		!slices.Equal(got[0].EnabledEvents, []string{"checkout.session.expired", "refund.created"}) {
		t.Errorf("the endpoints are %+v", got)
	}
	f.paid(t)
	f.set(t, func(k *Knobs) { k.Webhooks = "disabled" })
	if got := endpoints(); got[0].Status != "disabled" {
		t.Errorf("the endpoint is %s, want disabled", got[0].Status)
	}
	testenv.Must(t, f.expire(t.Context(), f.create(t).ID))
	f.set(t, func(k *Knobs) { k.Webhooks = "normal" })
	testenv.Must(t, f.expire(t.Context(), f.create(t).ID))
	r.await(t, 1)
	if n := f.count(t, `SELECT count(*) FROM stripesim.events WHERE state <> 'not_sent'`); n != 1 {
		t.Errorf("%d events are sent, want the last one", n)
	}
}
