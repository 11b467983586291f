package stripesim

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

func (f *fixture) refunds(t testing.TB, params *stripe.RefundListParams) (all []*stripe.Refund) {
	t.Helper()
	for r, err := range f.stripe.V1Refunds.List(t.Context(), params).All(t.Context()) {
		testenv.Must(t, err)
		all = append(all, r)
	}
	return all
}

// retrieveRefund returns the refund with an id. The API of the simulator has only lists of refunds.
func (f *fixture) retrieveRefund(t testing.TB, id string) *stripe.Refund {
	t.Helper()
	for _, r := range f.refunds(t, &stripe.RefundListParams{}) {
		if r.ID == id {
			return r
		}
	}
	t.Fatalf("no refund has the id %s", id)
	return nil
}

func TestRefunds(t *testing.T) {
	f := newFixture(t)
	intent := f.paid(t).PaymentIntent.ID
	first, err := f.refund(t, intent, 1000)
	testenv.Must(t, err)
	for _, r := range []*stripe.Refund{first, f.retrieveRefund(t, first.ID)} {
		if r.ID != first.ID || r.ID[:3] != "re_" || r.Object != "refund" || r.Amount != 1000 ||
			r.Currency != stripe.CurrencyEUR || r.Status != stripe.RefundStatusSucceeded ||
			r.PaymentIntent.ID != intent || r.Metadata["attempt"] != "1" || r.Charge == nil {
			t.Errorf("the refund is %+v", r)
		}
	}
	_, err = f.refund(t, intent, sessionTotal-1000+1)
	expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, "", "amount")
	rest, err := f.stripe.V1Refunds.Create(t.Context(), &stripe.RefundCreateParams{PaymentIntent: &intent})
	testenv.Must(t, err)
	if rest.Amount != sessionTotal-1000 {
		t.Errorf("a refund without an amount has the amount %d, want the rest, %d", rest.Amount, sessionTotal-1000)
	}
	_, err = f.refund(t, intent, 1)
	expectError(t, err, http.StatusBadRequest,
		stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeChargeAlreadyRefunded, "")
	for _, p := range f.ledger(t) {
		if p.CapturedCents != sessionTotal || p.RefundedCents != sessionTotal || p.PaymentStatus != "paid" {
			t.Errorf("the ledger has %+v", p)
		}
	}
}

func TestRefundParameters(t *testing.T) {
	f := newFixture(t)
	intent := f.paid(t).PaymentIntent.ID
	create := func(p *stripe.RefundCreateParams) error {
		_, err := f.stripe.V1Refunds.Create(t.Context(), p)
		return err
	}
	expectError(t, create(&stripe.RefundCreateParams{}),
		http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeParameterMissing, "payment_intent")
	expectError(t, create(&stripe.RefundCreateParams{PaymentIntent: stripe.String("pi_none")}),
		http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeResourceMissing, "payment_intent")
	expectError(t, create(&stripe.RefundCreateParams{PaymentIntent: &intent, Amount: stripe.Int64(0)}),
		http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeParameterInvalidInteger, "amount")
	expectError(t, create(&stripe.RefundCreateParams{PaymentIntent: &intent, Charge: stripe.String("ch_1")}),
		http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeParameterUnknown, "charge")
	if n := len(f.refunds(t, &stripe.RefundListParams{})); n != 0 {
		t.Errorf("there are %d refunds, want 0", n)
	}
}

func TestConcurrentRefundsStayBelowCaptured(t *testing.T) {
	f := newFixture(t)
	intent := f.paid(t).PaymentIntent.ID
	var senders sync.WaitGroup
	for range 10 {
		senders.Go(func() {
			if _, err := f.refund(t, intent, sessionTotal/3); err != nil {
				expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeInvalidRequest,
					stripe.ErrorCodeChargeAlreadyRefunded, "")
			}
		})
	}
	senders.Wait()
	if n := len(f.refunds(t, &stripe.RefundListParams{})); n != 3 {
		t.Errorf("%d refunds of a third were accepted, want 3", n)
	}
}

func TestListOfRefunds(t *testing.T) {
	f := newFixture(t)
	first, second := f.paid(t).PaymentIntent.ID, f.paid(t).PaymentIntent.ID
	var want []string // the newest first
	for n := range 5 {
		r, err := f.refund(t, first, int64(100+n))
		testenv.Must(t, err)
		want = append([]string{r.ID}, want...)
		_, err = f.refund(t, second, 10)
		testenv.Must(t, err)
	}
	params := &stripe.RefundListParams{PaymentIntent: &first}
	params.Limit = stripe.Int64(2) // three pages
	var got []string
	for _, r := range f.refunds(t, params) {
		got = append(got, r.ID)
	}
	if len(got) != 5 || got[0] != want[0] || got[4] != want[4] {
		t.Errorf("the refunds are %v, want %v", got, want)
	}
	if n := len(f.refunds(t, &stripe.RefundListParams{})); n != 10 {
		t.Errorf("there are %d refunds of all payments, want 10", n)
	}
	for _, tc := range []struct{ query, code, param string }{
		{"limit=0", "parameter_invalid_integer", "limit"},
		{"limit=101", "parameter_invalid_integer", "limit"},
		{"starting_after=re_none", "resource_missing", "starting_after"},
		{"charge=ch_1", "parameter_unknown", "charge"},
	} {
		res, body := f.call(t, http.MethodGet, "/v1/refunds?"+tc.query, nil)
		expectBody(t, res, body, http.StatusBadRequest, "invalid_request_error", tc.code, tc.param)
	}
	res, body := f.call(t, http.MethodGet, "/v1/refunds?limit=10", nil)
	if res.StatusCode != http.StatusOK || !strings.Contains(body, `"has_more":false`) {
		t.Errorf("a list that ends with its page answered %d %s", res.StatusCode, body)
	}
}

func TestRefundStaysPendingUntilKnobChanges(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	f.set(t, func(k *Knobs) { k.Refunds = "pending" })
	intent := f.paid(t).PaymentIntent.ID
	pending, err := f.refund(t, intent, sessionTotal)
	testenv.Must(t, err)
	testenv.Must(t, f.sim.endPendingRefunds(t.Context()))
	if got := f.retrieveRefund(t, pending.ID); got.Status != stripe.RefundStatusPending {
		t.Errorf("the refund is %v, want it pending", got)
	}
	_, err = f.refund(t, intent, 1)
	expectError(t, err, http.StatusBadRequest,
		stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeChargeAlreadyRefunded, "")
	for _, p := range f.ledger(t) {
		if p.RefundedCents != 0 {
			t.Errorf("the ledger counts a pending refund: %+v", p)
		}
	}
	f.set(t, func(k *Knobs) { k.Refunds = "succeed" })
	f.awaitRefundEvents(t, r, pending.ID, map[string]string{
		"refund.created": "pending", "refund.updated": "succeeded",
	})
	for _, p := range f.ledger(t) {
		if p.RefundedCents != sessionTotal {
			t.Errorf("the ledger has %+v", p)
		}
	}
}

func TestFailedRefundLeavesItsAmount(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	f.set(t, func(k *Knobs) { k.Refunds = "fail" })
	intent := f.paid(t).PaymentIntent.ID
	failing, err := f.refund(t, intent, sessionTotal)
	testenv.Must(t, err)
	if failing.Status != stripe.RefundStatusPending {
		t.Errorf("the new refund is %s, want pending", failing.Status)
	}
	f.awaitRefundEvents(t, r, failing.ID, map[string]string{"refund.created": "pending", "refund.failed": "failed"})
	failed := f.retrieveRefund(t, failing.ID)
	if failed.Status != stripe.RefundStatusFailed || failed.FailureReason == "" {
		t.Errorf("the refund is %+v, want it failed, with a reason", failed)
	}
	f.set(t, func(k *Knobs) { k.Refunds = "succeed" })
	if _, err := f.refund(t, intent, sessionTotal); err != nil {
		t.Errorf("refunding again after a failed refund: %v", err)
	}
	for _, p := range f.ledger(t) {
		if p.RefundedCents != sessionTotal {
			t.Errorf("the ledger has %+v", p)
		}
	}
}

// awaitRefundEvents waits for the events of a refund. want has the status of the refund in each of them.
func (f *fixture) awaitRefundEvents(t testing.TB, r *receiver, id string, want map[string]string) {
	t.Helper()
	r.await(t, 1+len(want)) // the first one is of the session
	for _, e := range r.received() {
		if e.Data.Object["id"] != id {
			continue
		}
		if status := want[string(e.Type)]; e.Data.Object["status"] != status {
			t.Errorf("the event %s has the status %v, want %q", e.Type, e.Data.Object["status"], status)
		}
		delete(want, string(e.Type))
	}
	if len(want) > 0 {
		t.Errorf("these events did not arrive: %v", want)
	}
}
