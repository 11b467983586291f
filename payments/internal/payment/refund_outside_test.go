package payment_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/refund"
)

// recheck makes the refund of an attempt due for a check, as the books do when their movements differ from it.
func (s *shop) recheck(t testing.TB, a *attempt.Attempt) {
	t.Helper()
	s.exec(t, `UPDATE refunds SET next_check = clock_timestamp() WHERE attempt_id = $1 AND state <> 'settled_outside'`, a.ID)
}

// paidOrder returns an order of 10 euros that was paid at the provider.
func (s *shop) paidOrder(t testing.TB) (*order.Order, *attempt.Attempt) {
	t.Helper()
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
	return o, a
}

// refundState returns the state of a refund and its error.
func (s *shop) refundState(t testing.TB, id string) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT trim(state || ' ' || coalesce(error, '')) FROM refunds WHERE id = $1`, id)
}

func (s *shop) wantRefund(t testing.TB, id, want string) {
	t.Helper()
	if got := s.refundState(t, id); got != want {
		t.Fatalf("the refund is %q, want %q", got, want)
	}
}

// TestSettledOutsideIsFinal settles a failed refund outside of the provider. No check and no retry may send the money
// once more.
func TestSettledOutsideIsFinal(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.failRefund(t, o, a)
	id := s.refundOf(t, a.ID)
	notified := s.notified.Of(o.CustomerID, o.ID)
	c := s.client(t, uuid.New())
	settle := "/ops/api/refunds/" + id + "/settled-outside"
	for _, body := range []string{`[]`, `{}`, `{"actor":"Ann"}`, `{"actor":"Ann","note":" "}`, `{"actor":"Ann","note":7}`,
		`{"actor":"Ann","note":"a","more":1}`, `{"actor":"Ann","note":"a\u0000"}`, `{"actor":"Ann","note":"` + strings.Repeat("a", 201) + `"}`} {
		c.send(t, "POST", settle, body, 422, "invalid-request")
	}
	s.wantAttempt(t, o, a.ID, "succeeded late failed")
	c.send(t, "POST", settle, `{"actor":"Ann","note":"transfer of 23 May"}`, 204, "")
	s.wantAttempt(t, o, a.ID, "succeeded late settled_outside")
	if got := s.notified.Of(o.CustomerID, o.ID); got != notified+1 {
		t.Errorf("the customer got %d notifications, want 1", got-notified)
	}
	sent := s.refundCount(t, a)
	s.recheck(t, a)
	s.sendRefund(t, a.ID)
	c.send(t, "POST", settle, `{"actor":"Ann","note":"again"}`, 409, "not-failed")
	c.send(t, "POST", "/ops/api/refunds/"+id+"/retry", "", 409, "not-failed")
	c.send(t, "POST", "/ops/api/refunds/"+uuid.NewString()+"/settled-outside", `{"actor":"Ann","note":"a"}`, 404, "not-found")
	s.wantAttempt(t, o, a.ID, "succeeded late settled_outside")
	if n := s.refundCount(t, a); n != sent {
		t.Errorf("the provider has %d refunds, want %d: no more than before", n, sent)
	}
	c.wantMoney(t, `{"currency":"EUR","captured_cents":1000,"applied_cents":0,"disputed_cents":0,"returned_cents":0,"outside_cents":1000,"owed_cents":0}`)
	got := testenv.Query[string](t, s.db, `SELECT actor || ': ' || note FROM refunds WHERE id = $1 AND next_check IS NULL`, id)
	if got != "Ann: transfer of 23 May" {
		t.Errorf("the refund records %q, want who settled it and how", got)
	}
}

// wantMoney compares the sums of the shop's only currency.
func (c *client) wantMoney(t *testing.T, want string) {
	t.Helper()
	stats := decode[struct{ Money []json.RawMessage }](t, c.send(t, "GET", "/ops/api/payments", "", 200, ""))
	if len(stats.Money) != 1 || string(stats.Money[0]) != want {
		t.Errorf("the money is %s, want %s", stats.Money, want)
	}
}

// TestSettleOutsideMeetsCheck settles a refund outside while a worker learns that the provider has returned the money
// after all. One of the two wins, and the other one changes nothing.
func TestSettleOutsideMeetsCheck(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.failRefund(t, o, a)
	s.returnMoney(t, a, 1000)
	id := s.refundOf(t, a.ID)
	won := map[string]int{}
	for range 200 {
		s.exec(t, `UPDATE refunds SET state = 'failed', provider_id = NULL, note = NULL, actor = NULL, next_check = now() WHERE id = $1`, id)
		var err error
		var both sync.WaitGroup
		both.Go(func() { err = s.refunder.SettleOutside(t.Context(), uuid.MustParse(id), "Ann", "transfer") })
		both.Go(func() { parttest.Handle(t, s.Refunds().Handle, id) })
		both.Wait()
		state := testenv.Query[string](t, s.db, `SELECT state FROM refunds WHERE id = $1`, id)
		switch {
		case err == nil && state == "settled_outside", parttest.ClassOf(err) == refund.NotFailed && state == "confirmed":
			won[state]++
		default:
			t.Fatalf("settling outside returns %v, and the refund is %s", err, state)
		}
	}
	t.Logf("who was first: %v", won)
	if n := s.refundCount(t, a); n != 2 {
		t.Errorf("the provider has %d refunds, want 2: the failed one and the operator's", n)
	}
}

// TestByHandFailsLater refunds a late payment by hand at the provider. That refund counts, and fails later: an
// operator decides, and nothing is sent before.
func TestByHandFailsLater(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.returnMoney(t, a, 1000)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	s.failAtBank(t, a)
	s.sendRefund(t, a.ID)
	id := s.refundOf(t, a.ID)
	s.wantRefund(t, id, "failed a refund that was made at the payment provider failed: expired_or_canceled_card")
	s.recheck(t, a)
	s.sendRefund(t, a.ID)
	s.wantRefund(t, id, "failed a refund that was made at the payment provider failed: expired_or_canceled_card")
	if n := s.refundCount(t, a); n != 1 {
		t.Errorf("the provider has %d refunds, want only the one made by hand", n)
	}
	testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(id)))
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	s.check(t)
}

// TestByHandAfterFailure refunds a payment by hand after its refund failed, and that refund fails, too. Until the
// provider has confirmed it, the refund is failed, and nothing is sent.
func TestByHandAfterFailure(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.failRefund(t, o, a)
	s.setRefunds(t, "pending")
	s.returnMoney(t, a, 1000)
	for range 2 {
		s.recheck(t, a)
		s.sendRefund(t, a.ID)
		s.wantAttempt(t, o, a.ID, "succeeded late failed")
		s.failAtBank(t, a)
	}
	if n := s.refundCount(t, a); n != 2 {
		t.Errorf("the provider has %d refunds, want 2: the failed one and the one made by hand", n)
	}
}
