package payment_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
)

// lateInMemory returns an attempt that was paid too late at a provider in memory, with a refund that is owed.
func (s *shop) lateInMemory(t *testing.T) (o *order.Order, a *attempt.Attempt, intent, refund string) {
	t.Helper()
	o, a = s.placeOpen(t)
	s.mem.pay(a.CheckoutURL)
	s.shiftToDeadline(t, o.ID, grace)
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	intent = testenv.Query[string](t, s.db, `SELECT payment_intent FROM payment_attempts WHERE id = $1`, a.ID)
	return o, a, intent, s.refundOf(t, a.ID)
}

// TestRefusedRefunds checks what becomes of a refund that the provider does not make. One that it refuses for good
// fails, and is not sent under another key. Any other is sent again by itself.
func TestRefusedRefunds(t *testing.T) {
	s := newMemoryShop(t)
	s.restartAs(s.mem, "production", apiKey)
	for name, test := range map[string]struct {
		class provider.ErrorClass
		cause provider.Cause
		want  string
		try   int
		err   string
	}{
		"refused":         {provider.Refused, "", "failed", 1, "refused: "},
		"low balance":     {provider.Busy, provider.LowBalance, "owed", 2, "payment provider: "},
		"stored error":    {provider.Replayed, "", "owed", 2, "payment provider: "},
		"busy":            {provider.Busy, "", "owed", 1, ""},
		"no answer":       {provider.NoAnswer, "", "owed", 1, ""},
		"wrong key":       {provider.Denied, "", "owed", 1, ""},
		"unknown payment": {provider.Missing, "", "owed", 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, a, _, id := s.lateInMemory(t)
			s.mem.fail("refund", failed(test.class, test.cause))
			before := s.mem.count("refund")
			s.refundNow(t, a)
			s.wantAttempt(t, o, a.ID, "succeeded late "+test.want)
			try := testenv.Query[int](t, s.db, `SELECT try FROM refunds WHERE id = $1`, id)
			err := testenv.Query[string](t, s.db, `SELECT coalesce(error, '') FROM refunds WHERE id = $1`, id)
			if try != test.try || !strings.HasPrefix(err, test.err) || (err == "") != (test.err == "") {
				t.Errorf("the refund has try %d and error %q, want %d and %q", try, err, test.try, test.err)
			}
			if test.class == provider.Missing { // for an hour
				s.shift(t, o.ID, 59*time.Minute)
				s.refundNow(t, a)
				s.wantAttempt(t, o, a.ID, "succeeded late owed")
				s.shift(t, o.ID, time.Minute)
				s.mem.fail("list refunds", failed(test.class, ""))
				s.restartAs(accountOf{s.mem, "acct_other", nil}, "production", apiKey)
				s.refundNow(t, a)
				s.mem.fail("list refunds", nil)
				s.wantAttempt(t, o, a.ID, "succeeded late owed")
				s.restartAs(s.mem, "production", apiKey)
				s.refundNow(t, a)
				s.wantRefund(t, id, "failed the payment provider does not know the payment: payment provider: call: the memory provider fails")
				testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(id)))
			}
			s.mem.fail("refund", nil)
			s.exec(t, `UPDATE refunds SET next_check = now() WHERE id = $1`, id) // as an event does
			s.sendRefund(t, a.ID)
			if test.want == "failed" {
				if n := s.mem.count("refund") - before; n != 1 {
					t.Errorf("%d calls refund money, want 1: an operator decides about a failed refund", n)
				}
				testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(id)))
				s.sendRefund(t, a.ID)
			}
			s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
		})
	}
}

// TestRefusedByAnotherRefund refunds by hand while the shop sends its refund, which is refused because too little is
// left. The refund fails. The next check, which the books cause, confirms it if the refund by hand returned all;
// otherwise a retry sends the rest.
func TestRefusedByAnotherRefund(t *testing.T) {
	s := newMemoryShop(t)
	for name, test := range map[string]struct {
		byHand int64
		want   string
	}{
		"in part": {300, "failed"},
		"in full": {1000, "confirmed"},
	} {
		t.Run(name, func(t *testing.T) {
			o, a, intent, id := s.lateInMemory(t)
			s.mem.hook("refund", memoryHook{before: func() error {
				s.mem.hook("refund", memoryHook{})
				s.mem.byHand(t, intent, test.byHand)
				return failed(provider.Refused, "")
			}})
			s.sendRefund(t, a.ID)
			s.wantAttempt(t, o, a.ID, "succeeded late failed")
			s.recheck(t, a)
			s.sendRefund(t, a.ID)
			s.wantAttempt(t, o, a.ID, "succeeded late "+test.want)
			if test.want == "failed" {
				testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(id)))
				s.sendRefund(t, a.ID)
				s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
			}
			if returned := s.mem.returned(intent); returned != 1000 {
				t.Errorf("the provider returned %d cents, want 1000", returned)
			}
		})
	}
}

// TestConfirmedRefundFailsLater has a confirmed refund fail at the customer's bank after 34 days. The check
// after 35 days finds that, even without the books. A refund that stays confirmed is not checked again; one that is confirmed
// after an operator's retry is checked 35 days after that.
func TestConfirmedRefundFailsLater(t *testing.T) {
	s := newMemoryShop(t)
	for _, want := range []string{"failed", "confirmed"} {
		o, a, intent, id := s.lateInMemory(t)
		s.sendRefund(t, a.ID)
		s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
		s.shift(t, o.ID, 34*24*time.Hour)
		if want == "failed" {
			s.mem.end(intent, provider.Failed)
		}
		s.sendRefund(t, a.ID) // not due
		s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
		s.shift(t, o.ID, 24*time.Hour)
		left, again := handle(t, s.Refunds().Handle, id)[0].Retry()
		s.wantAttempt(t, o, a.ID, "succeeded late "+want)
		if again {
			t.Errorf("the %s refund is due again in %v, want never", want, left)
		}
		if want == "failed" {
			testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(id)))
			left, _ := handle(t, s.Refunds().Handle, id)[0].Retry()
			s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
			if left < 34*24*time.Hour {
				t.Errorf("the refund that was sent again is checked in %v, want in 35 days", left)
			}
		}
	}
}

// TestRefundWaits checks that the error of a refund that is sent says why it waits, unless that is the usual reason.
func TestRefundWaits(t *testing.T) {
	s := newMemoryShop(t)
	_, a, intent, id := s.lateInMemory(t)
	s.mem.state = provider.Sent
	for reason, want := range map[string]string{
		"processing":         "sent",
		"insufficient_funds": "sent the payment provider has not returned the money yet: insufficient_funds",
	} {
		s.refundNow(t, a)
		s.mem.refunds[intent][0].Reason = reason
		s.refundNow(t, a)
		s.wantRefund(t, id, want)
	}
}
