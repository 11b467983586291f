package payment_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

// TestRefunds takes refunds through the failures of the provider.
func TestRefunds(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, test := range map[string]func(*testing.T, *shop, *order.Order, *attempt.Attempt){
		"pending, then confirmed":                  refundIsPending,
		"fails, and its retry succeeds":            refundFails,
		"fails after it was confirmed":             refundFailsAfterConfirmation,
		"fails while a worker reads it":            refundFailsDuringCheck,
		"made by an operator at the provider":      refundByOperator,
		"in part by an operator at the provider":   refundInPartByOperator,
		"by an operator after it failed":           refundByOperatorAfterFailure,
		"the answer was lost":                      refundAnswerLost,
		"the provider is broken and stores a 500":  refundBroken,
		"two workers send it at the same time":     refundSentTwice,
		"webhook about a refund that is confirmed": refundConfirmedAgain,
	} {
		t.Run(name, func(t *testing.T) {
			s.setAPI(t, "up")
			s.resetBreaker(t)
			s.setRefunds(t, "succeed")
			o, a := s.late(t)
			test(t, s, o, a)
			s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
			if e := s.entry(t, a.ID); e.Refunded != e.Captured {
				t.Errorf("the provider captured %d and refunded %d, want the same", e.Captured, e.Refunded)
			}
			late := `SELECT count(*) FROM refunds WHERE state <> 'confirmed' OR next_check <> ended_at + interval '35 days'`
			if n := testenv.Query[int](t, s.db, late); n != 0 {
				t.Errorf("%d refunds wait for another check than the one after 35 days, want none", n)
			}
		})
	}
	s.check(t)
}

// late returns an attempt that was paid too late, with a refund that is owed.
func (s *shop) late(t *testing.T) (*order.Order, *attempt.Attempt) {
	t.Helper()
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.shiftToDeadline(t, o.ID, grace)
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	return o, a
}

func refundIsPending(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.setRefunds(t, "pending")
	before := s.notified.Of(o.CustomerID, o.ID)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late sent")
	if s.notified.Of(o.CustomerID, o.ID) != before+1 {
		t.Errorf("the customer got %d notifications, want 1", s.notified.Of(o.CustomerID, o.ID)-before)
	}
	s.refundNow(t, a)
	s.wantAttempt(t, o, a.ID, "succeeded late sent")
	s.setRefunds(t, "succeed")
	s.awaitRefund(t, a, "succeeded")
	s.refundNow(t, a)
}

// awaitRefund waits until all refunds of an attempt have the status at the provider.
func (s *shop) awaitRefund(t *testing.T, a *attempt.Attempt, status string) {
	t.Helper()
	intent := s.entry(t, a.ID).Intent
	if s.mem != nil {
		return // it does not wait
	}
	testenv.Eventually(t, "the refund's status "+status, func() bool {
		return testenv.Query[bool](t, s.simDB, `SELECT coalesce(bool_and(status = $2), false) FROM stripesim.refunds WHERE payment_intent = $1`, intent, status)
	})
}

func (s *shop) failRefund(t *testing.T, o *order.Order, a *attempt.Attempt) {
	t.Helper()
	s.setRefunds(t, "fail")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late sent")
	s.awaitRefund(t, a, "failed")
	s.refundNow(t, a)
	s.wantAttempt(t, o, a.ID, "succeeded late failed")
	s.setRefunds(t, "succeed")
	if outcomes := handle(t, s.Refunds().Handle, s.refundOf(t, a.ID)); outcomes[0] != (handle(t, s.Refunds().Handle, "foreign")[0]) {
		t.Errorf("the task of a failed refund is %v, want it done", outcomes[0])
	}
	reason := testenv.Query[string](t, s.db, `SELECT error FROM refunds WHERE attempt_id = $1`, a.ID)
	if !strings.Contains(reason, "expired_or_canceled_card") {
		t.Errorf("the refund's error is %q, want the provider's reason", reason)
	}
}

func refundFails(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.failRefund(t, o, a)
	id := uuid.MustParse(s.refundOf(t, a.ID))
	s.exec(t, `DELETE FROM outbox`)
	testenv.Must(t, s.refunder.Retry(t.Context(), id))
	s.wantOwed(t, refund.Kind, id.String())
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	if err := s.refunder.Retry(t.Context(), id); parttest.ClassOf(err) != refund.NotFailed {
		t.Errorf("a second retry returns %v, want not-failed", err)
	}
	s.sendRefund(t, a.ID)
}

// refundFailsAfterConfirmation has the customer's bank return the money to the provider after the refund was
// confirmed. Only a webhook reports it.
func refundFailsAfterConfirmation(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	s.shift(t, o.ID, time.Hour)
	s.failAtBank(t, a)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late failed")
	if ended := s.attempt(t, o, a.ID).Refund.EndedAt; ended == nil || time.Since(*ended) > time.Minute {
		t.Errorf("the failed refund ended at %v, want now", ended)
	}
	testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(s.refundOf(t, a.ID))))
	s.sendRefund(t, a.ID)
}

// failAtBank makes the refund of an attempt fail at the provider, and has it checked.
func (s *shop) failAtBank(t *testing.T, a *attempt.Attempt) {
	t.Helper()
	intent := s.entry(t, a.ID).Intent
	if s.mem != nil {
		s.mem.end(intent, provider.Failed)
	} else {
		testenv.Exec(t, s.simDB, `UPDATE stripesim.refunds SET status = 'failed' WHERE payment_intent = $1`, intent)
	}
	s.recheck(t, a)
}

// refundFailsDuringCheck has the refund fail, and another check due, after the worker has read that the refund is
// confirmed, and before the worker stores that.
func refundFailsDuringCheck(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.hook(t, hook{call: "refund", after: func() { s.failAtBank(t, a) }})
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late failed")
	s.unhook()
	testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(s.refundOf(t, a.ID))))
	s.sendRefund(t, a.ID)
}

// returnMoney refunds money of an attempt at the provider, as an operator does.
func (s *shop) returnMoney(t *testing.T, a *attempt.Attempt, cents int64) {
	t.Helper()
	intent := s.entry(t, a.ID).Intent
	if s.mem != nil {
		s.mem.byHand(t, intent, cents)
		return
	}
	form := url.Values{"payment_intent": {intent}, "amount": {strconv.FormatInt(cents, 10)}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.simURL+"/v1/refunds", strings.NewReader(form.Encode()))
	testenv.Must(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Bearer "+apiKey)
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	testenv.Must(t, err)
	testenv.Must(t, res.Body.Close())
	if res.StatusCode != http.StatusOK {
		t.Fatalf("the operator's refund is answered with %d, want 200", res.StatusCode)
	}
}

// refundCount returns the number of an attempt's refunds at the provider.
func (s *shop) refundCount(t *testing.T, a *attempt.Attempt) int {
	t.Helper()
	if s.mem != nil {
		return len(s.mem.refunds[s.entry(t, a.ID).Intent])
	}
	return testenv.Query[int](t, s.simDB, `SELECT count(*) FROM stripesim.refunds WHERE payment_intent = $1`, s.entry(t, a.ID).Intent)
}

func refundByOperator(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.returnMoney(t, a, 1000)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	if n := s.refundCount(t, a); n != 1 {
		t.Errorf("%d refunds, want only the operator's", n)
	}
}

func refundInPartByOperator(t *testing.T, s *shop, _ *order.Order, a *attempt.Attempt) {
	s.returnMoney(t, a, 300)
	s.sendRefund(t, a.ID)
	if n := s.refundCount(t, a); n != 2 {
		t.Errorf("%d refunds, want the operator's and one of the rest", n)
	}
}

func refundByOperatorAfterFailure(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.failRefund(t, o, a)
	s.recheck(t, a) // nothing is sent because of a check
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late failed")
	s.returnMoney(t, a, 1000)
	s.recheck(t, a)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	if n := s.refundCount(t, a); n != 2 {
		t.Errorf("%d refunds, want the failed one and the operator's", n)
	}
}

func refundAnswerLost(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.hook(t, hook{call: "refund", lose: true})
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.unhook()
	s.refundNow(t, a)
	if n := s.refundCount(t, a); n != 1 {
		t.Errorf("%d refunds, want 1", n)
	}
}

// refundBroken has the provider store a response 500 for the idempotency key of a refund: the refund needs another
// key. It keeps its key after an error with which the provider has stored nothing.
func refundBroken(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	try := func() int { return testenv.Query[int](t, s.db, `SELECT try FROM refunds WHERE attempt_id = $1`, a.ID) }
	s.hook(t, hook{call: "refund", before: func() { s.setAPI(t, "errors") }})
	s.sendRefund(t, a.ID)
	if try() != 1 {
		t.Errorf("the first 500 changed the key")
	}
	s.unhook()
	s.setAPI(t, "up")
	s.refundNow(t, a) // the 500 is replayed
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	if try() != 2 {
		t.Errorf("the try is %d after a replayed 500, want 2", try())
	}
	s.refundNow(t, a)
}

// refundSentTwice has a worker that is so slow that another worker takes the refund, too.
func refundSentTwice(t *testing.T, s *shop, _ *order.Order, a *attempt.Attempt) {
	first := true
	s.hook(t, hook{call: "refund", before: func() {
		if first {
			first = false
			s.refundNow(t, a)
		}
	}})
	s.sendRefund(t, a.ID)
	if n := s.refundCount(t, a); n != 1 {
		t.Errorf("%d refunds, want 1", n)
	}
	s.refundNow(t, a)
}

func refundConfirmedAgain(t *testing.T, s *shop, o *order.Order, a *attempt.Attempt) {
	s.sendRefund(t, a.ID)
	ended := s.attempt(t, o, a.ID).Refund.EndedAt
	s.recheck(t, a)
	s.sendRefund(t, a.ID)
	if again := s.attempt(t, o, a.ID).Refund.EndedAt; !again.Equal(*ended) {
		t.Errorf("the refund ended at %v, want the time of its confirmation, %v", again, ended)
	}
}

// TestRetryOfUnknownRefund checks the error for a refund that does not exist.
func TestRetryOfUnknownRefund(t *testing.T) {
	s := newShop(t)
	if err := s.refunder.Retry(t.Context(), uuid.New()); parttest.ClassOf(err).Code != "not-found" {
		t.Errorf("Retry returns %v, want not-found", err)
	}
}

// TestDeleteOfPaidOrderIsRefused checks that neither an order nor an attempt can be deleted while it has money.
func TestDeleteOfPaidOrderIsRefused(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	for _, statement := range []string{`DELETE FROM orders WHERE id = $1`, `DELETE FROM payment_attempts WHERE order_id = $1`} {
		if _, err := s.db.ExecContext(t.Context(), statement, o.ID); err == nil {
			t.Errorf("%s deletes what has a payment", statement)
		}
	}
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
}
