package stripesim

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

// eventTypes returns the types of the events about an object, the oldest first.
func (f *fixture) eventTypes(t testing.TB, object string) []string {
	t.Helper()
	return f.strings(t, `
		SELECT type FROM stripesim.events WHERE body->'data'->'object'->>'id' = '`+object+`' ORDER BY seq`)
}

// TestDisputes checks that a dispute moves its money in the books, and that its charge is not refundable meanwhile.
func TestDisputes(t *testing.T) {
	for state, want := range map[string]struct {
		books    []string
		disputed int64
		events   []string
	}{
		"open": {[]string{"dispute", "charge"}, sessionTotal,
			[]string{"charge.dispute.created", "charge.dispute.funds_withdrawn"}},
		"won": {[]string{"dispute_reversal", "dispute", "charge"}, 0,
			[]string{"charge.dispute.created", "charge.dispute.funds_withdrawn",
				"charge.dispute.funds_reinstated", "charge.dispute.closed"}},
		"lost": {[]string{"dispute", "charge"}, sessionTotal,
			[]string{"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed"}},
	} {
		t.Run(state, func(t *testing.T) {
			f := newFixture(t)
			paid := f.paid(t)
			intent := paid.PaymentIntent.ID
			path := "/sim/payments/" + intent + "/dispute"
			d := f.control(t, path, `{"state":"open"}`)
			if _, err := f.refund(t, intent, 100); err == nil {
				t.Error("a disputed charge was refunded")
			} else {
				expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeInvalidRequest,
					stripe.ErrorCodeChargeDisputed, "")
			}
			if state != "open" {
				f.control(t, path, `{"state":"`+state+`"}`)
			}
			all := f.balance(t, &stripe.BalanceTransactionListParams{})
			if !slices.Equal(categories(all), want.books) || all[0].Source.ID != d["id"] && state != "lost" {
				t.Errorf("the books have %q of %+v, want %q", categories(all), all[0].Source, want.books)
			}
			for _, b := range all[:len(all)-1] {
				if b.Source.Dispute == nil || b.Source.Dispute.Amount != sessionTotal ||
					b.Source.Dispute.PaymentIntent.ID != intent {
					t.Errorf("the source of the dispute is %+v", b.Source)
				}
			}
			if p := f.ledger(t)[paid.ID]; p.DisputedCents != want.disputed || p.CapturedCents != sessionTotal {
				t.Errorf("the ledger has %+v, want %d disputed", p, want.disputed)
			}
			if got := f.eventTypes(t, d["id"].(string)); !slices.Equal(got, want.events) {
				t.Errorf("the events are %q, want %q", got, want.events)
			}
			if _, err := f.refund(t, intent, 100); (err == nil) != (state == "won") {
				t.Errorf("refunding after the dispute is %s: %v", state, err)
			}
			for _, body := range []string{`{"state":"open"}`, `{"state":"won"}`, `{"state":"lost"}`} {
				res, _ := f.send(t, http.MethodPost, path, "application/json", body)
				if state != "open" && res.StatusCode != http.StatusNotFound {
					t.Errorf("a second dispute %s answered %d, want 404", body, res.StatusCode)
				}
			}
		})
	}
}

// TestRefundsByHand checks refunds that nobody made over the API.
func TestRefundsByHand(t *testing.T) {
	f := newFixture(t)
	paid := f.paid(t)
	path := "/sim/payments/" + paid.PaymentIntent.ID + "/refunds"
	part := f.control(t, path, `{"amount_cents":1000}`)
	rest := f.control(t, path, `{}`)
	if part["amount"] != 1000.0 || rest["amount"] != float64(sessionTotal-1000) ||
		len(part["metadata"].(map[string]any)) != 0 {
		t.Errorf("the refunds are %v and %v", part, rest)
	}
	res, text := f.send(t, http.MethodPost, path, "application/json", `{}`)
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("a refund of nothing answered %d %s, want 400", res.StatusCode, text)
	}
	res, _ = f.send(t, http.MethodPost, "/sim/payments/pi_none/refunds", "application/json", `{}`)
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("a refund of an unknown payment answered %d, want 404", res.StatusCode)
	}
	if p := f.ledger(t)[paid.ID]; p.RefundedCents != sessionTotal {
		t.Errorf("the ledger has %+v", p)
	}
	f.control(t, "/sim/refunds/"+part["id"].(string)+"/fail", "")
	if p := f.ledger(t)[paid.ID]; p.RefundedCents != sessionTotal-1000 {
		t.Errorf("after a failure, the ledger has %+v", p)
	}
	want := []string{"refund_failure", "refund", "refund", "charge"}
	if got := categories(f.balance(t, &stripe.BalanceTransactionListParams{})); !slices.Equal(got, want) {
		t.Errorf("the books have %q, want %q", got, want)
	}
	res, _ = f.send(t, http.MethodPost, "/sim/refunds/"+part["id"].(string)+"/fail", "", "")
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("a second failure answered %d, want 404", res.StatusCode)
	}
	events := f.eventTypes(t, part["id"].(string))
	if want := []string{"refund.created", "refund.failed", "charge.refund.updated"}; !slices.Equal(events, want) {
		t.Errorf("the events are %q, want %q", events, want)
	}
	events = f.eventTypes(t, chargeOf(paid.PaymentIntent.ID))
	if want := []string{"charge.succeeded", "charge.refunded", "charge.refunded"}; !slices.Equal(events, want) {
		t.Errorf("the events of the charge are %q, want %q", events, want)
	}
}

// TestEndsOfRefunds checks the status of refunds for each value of the knob, now and after the knob changes.
func TestEndsOfRefunds(t *testing.T) {
	f := newFixture(t)
	paid := f.paid(t)
	first, last := map[string]stripe.RefundStatus{}, map[string]stripe.RefundStatus{}
	for knob, want := range map[string][2]stripe.RefundStatus{
		"cancel":         {stripe.RefundStatusPending, stripe.RefundStatusCanceled},
		"require_action": {stripe.RefundStatusRequiresAction, stripe.RefundStatusSucceeded},
		"fail_later":     {stripe.RefundStatusSucceeded, stripe.RefundStatusFailed},
	} {
		f.set(t, func(k *Knobs) { k.Refunds = knob })
		r, err := f.refund(t, paid.PaymentIntent.ID, 100)
		testenv.Must(t, err)
		first[knob] = r.Status
		if knob == "require_action" {
			testenv.Must(t, f.sim.endPendingRefunds(t.Context()))
			f.set(t, func(k *Knobs) { k.Refunds = "succeed" })
		}
		testenv.Eventually(t, "the end of the refund", func() bool {
			last[knob] = f.retrieveRefund(t, r.ID).Status
			return last[knob] == want[1]
		})
		if first[knob] != want[0] {
			t.Errorf("%s: the refund was %s, want %s", knob, first[knob], want[0])
		}
	}
	for knob, code := range map[string]stripe.ErrorCode{
		"refuse_disputed": stripe.ErrorCodeChargeDisputed, "refuse_balance": stripe.ErrorCodeBalanceInsufficient,
	} {
		f.set(t, func(k *Knobs) { k.Refunds = knob })
		_, err := f.refund(t, paid.PaymentIntent.ID, 100)
		expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, code, "")
	}
	if p := f.ledger(t)[paid.ID]; p.RefundedCents != 100 {
		t.Errorf("the ledger has %+v, want only the refund that required an action", p)
	}
	sums := map[string]int{}
	for _, b := range f.balance(t, &stripe.BalanceTransactionListParams{}) {
		sums[string(b.ReportingCategory)] += int(b.Amount)
	}
	if want := map[string]int{"charge": sessionTotal, "refund": -300, "refund_failure": 200}; !maps.Equal(sums, want) {
		t.Errorf("the books have %v, want %v", sums, want)
	}
}

// TestCompleteAndUnpaid checks a session whose payment method pays later.
func TestCompleteAndUnpaid(t *testing.T) {
	f := newFixture(t)
	f.set(t, func(k *Knobs) { k.Sessions = "complete_unpaid" })
	s := f.paid(t)
	testenv.Must(t, f.sim.captureUnpaid(t.Context()))
	s = f.retrieve(t, s.ID)
	if s.Status != stripe.CheckoutSessionStatusComplete ||
		s.PaymentStatus != stripe.CheckoutSessionPaymentStatusUnpaid || s.PaymentIntent == nil {
		t.Errorf("the session is %s, %s, %v; want it complete and unpaid, with a payment intent",
			s.Status, s.PaymentStatus, s.PaymentIntent)
	}
	if p := f.ledger(t)[s.ID]; p.CapturedCents != 0 {
		t.Errorf("the ledger has %+v, want nothing captured", p)
	}
	f.set(t, func(k *Knobs) { k.Sessions = "accept" })
	testenv.Eventually(t, "a paid session", func() bool {
		return f.retrieve(t, s.ID).PaymentStatus == stripe.CheckoutSessionPaymentStatusPaid
	})
	if p := f.ledger(t)[s.ID]; p.CapturedCents != sessionTotal {
		t.Errorf("the ledger has %+v", p)
	}
	want := []string{"checkout.session.completed", "checkout.session.async_payment_succeeded"}
	if got := f.eventTypes(t, s.ID); !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
}
