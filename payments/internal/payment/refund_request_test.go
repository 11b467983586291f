package payment_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/payment"
)

// requestRefund asks for a refund as an operator, and checks the status of the answer and the class of its problem.
func (c *client) requestRefund(t *testing.T, o *order.Order, key string, cents int64, status int, class string) (refund payment.RequestedRefund) {
	t.Helper()
	body := fmt.Sprintf(`{"amount_cents":%d,"actor":"Ann","note":"a leg was broken"}`, cents)
	answer := c.contract.Send(t, c.handler, "POST", "/ops/api/orders/"+o.ID.String()+"/refunds", body, "Idempotency-Key: "+key)
	if answer.Code != status || class != "" && decode[rest.Problem](t, answer.Body.Bytes()).Type != "/problems/"+class {
		t.Fatalf("the request for %d cents is answered with %d %s, want %d %s", cents, answer.Code, answer.Body, status, class)
	}
	if class == "" {
		refund = decode[payment.RequestedRefund](t, answer.Body.Bytes())
	}
	return refund
}

// state returns what a refund must not change: the order, its events, and the stock.
func (s *shop) stateOf(t *testing.T, o *order.Order) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT o::text || (SELECT string_agg(t::text, ' ') FROM order_trail t WHERE order_id = o.id) ||
		(SELECT string_agg(p::text, ' ') FROM products p) FROM orders o WHERE id = $1`, o.ID)
}

// TestOperatorRefunds refunds paid orders in parts and in full. Together the refunds return at most the payment. They
// change neither the order nor the stock.
func TestOperatorRefunds(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	o, a := s.paidOrder(t)
	before := s.stateOf(t, o)
	s.refunds.Take()

	first := c.requestRefund(t, o, "one", 300, http.StatusCreated, "")
	if msgs := s.refunds.Take(); len(msgs) != 1 || msgs[0].ID != first.ID.String() || msgs[0].Left() > 0 {
		t.Errorf("published tasks: %v, want that of the refund, due now", msgs)
	}
	s.wantOwed(t, payment.RefundKind, first.ID.String())
	if again := c.requestRefund(t, o, "one", 300, http.StatusOK, ""); again.ID != first.ID || again.Actor != "Ann" || again.Note != "a leg was broken" {
		t.Errorf("the repeated request returns %+v, want %s", again, first.ID)
	}
	if msgs := s.refunds.Take(); len(msgs) != 0 {
		t.Errorf("a repeated request publishes %v, want nothing", msgs)
	}
	c.requestRefund(t, o, "one", 200, http.StatusUnprocessableEntity, "idempotency-key-reused")
	c.requestRefund(t, o, "two", 701, http.StatusConflict, "more-than-paid")
	second := c.requestRefund(t, o, "two", 700, http.StatusCreated, "")
	c.requestRefund(t, o, "three", 1, http.StatusConflict, "more-than-paid")
	for range 2 {
		for _, refund := range []payment.RequestedRefund{first, second} {
			handle(t, s.Refunds().Handle, refund.ID.String())
		}
		s.checkNow(t, o.ID)
	}
	s.wantAttempt(t, o, a.ID, "succeeded applied requested confirmed")
	if got := s.attempt(t, o, a.ID); got.RefundedCents != 1000 || got.Refund.AmountCents != 700 {
		t.Errorf("the customer got %d cents back, the latest refund is of %d; want 1000 and 700", got.RefundedCents, got.Refund.AmountCents)
	}
	if again := c.requestRefund(t, o, "one", 300, http.StatusOK, ""); again.State != payment.Confirmed || again.EndedAt == nil {
		t.Errorf("the repeated request returns %+v, want the confirmed refund", again)
	}
	if e := s.entry(t, a.ID); e.Refunded != 1000 || s.refundCount(t, a) != 2 {
		t.Errorf("the provider refunded %d cents in %d refunds, want 1000 in 2", e.Refunded, s.refundCount(t, a))
	}
	c.wantMoney(t, `{"currency":"EUR","captured_cents":1000,"applied_cents":1000,"disputed_cents":0,"returned_cents":1000,"outside_cents":0,"owed_cents":0}`)
	if after := s.stateOf(t, o); after != before {
		t.Errorf("the refunds changed the order or the stock:\n%s\n%s", before, after)
	}
	if violations, err := s.store.Invariants(t.Context(), time.Minute, false); err != nil || len(violations) > 0 {
		t.Errorf("violated invariants: %v, %v", violations, err)
	}
}

// TestWithoutTasks opens an attempt, pays it, and refunds it, in a service without Redis. It writes no outbox rows.
func TestWithoutTasks(t *testing.T) {
	s := newMemoryShop(t)
	s.store.WithoutTasks()
	s.orderDB.WithoutTasks()
	c := s.client(t, uuid.New())
	o, _ := s.paidOrder(t)
	c.requestRefund(t, o, "one", 300, http.StatusCreated, "")
	late, a := s.placeOpen(t)
	s.shiftToDeadline(t, late.ID, grace)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, late.ID)
	closed, _ := s.placeOpen(t)
	s.shiftToDeadline(t, closed.ID, grace)
	s.settleNow(t, closed.ID)
	s.cancelDue(t, late.ID)
	s.cancelDue(t, closed.ID)
	if rows := testenv.Query[string](t, s.db, `SELECT coalesce(string_agg(kind, ' '), '') FROM outbox`); rows != "" {
		t.Errorf("the outbox has messages of the kinds %s, want none", rows)
	}
	s.check(t)
}

// TestFailedRefundCounts checks that the amount of a failed refund is not refunded again by another request: a retry sends
// it.
func TestFailedRefundCounts(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	o, a := s.paidOrder(t)
	s.setRefunds(t, "fail")
	id := c.requestRefund(t, o, "one", 600, http.StatusCreated, "").ID
	handle(t, s.Refunds().Handle, id.String())
	s.awaitRefund(t, a, "failed")
	s.checkNow(t, o.ID)
	handle(t, s.Refunds().Handle, id.String())
	s.wantAttempt(t, o, a.ID, "succeeded applied requested failed")
	c.requestRefund(t, o, "two", 401, http.StatusConflict, "more-than-paid")
	s.setRefunds(t, "succeed")
	testenv.Must(t, s.RetryRefund(t.Context(), id))
	handle(t, s.Refunds().Handle, id.String())
	s.wantAttempt(t, o, a.ID, "succeeded applied requested confirmed")
}

// TestStoredErrorOfRequestedRefund has the provider repeat an error that it has stored with the key of a refund. It may still execute
// the first call, so nothing is sent with another key until an operator retries the refund.
func TestStoredErrorOfRequestedRefund(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	o, a := s.paidOrder(t)
	id := c.requestRefund(t, o, "one", 600, http.StatusCreated, "").ID
	send := func() {
		s.exec(t, `UPDATE refunds SET next_check = now() WHERE id = $1`, id)
		handle(t, s.Refunds().Handle, id.String())
	}
	s.setAPI(t, "errors")
	send()
	s.setAPI(t, "up")
	s.wantAttempt(t, o, a.ID, "succeeded applied requested owed")
	send()
	send()
	s.wantAttempt(t, o, a.ID, "succeeded applied requested failed")
	if n := s.mem.count("refund"); n != 2 {
		t.Errorf("%d calls refund money, want 2 with the same key", n)
	}
	testenv.Must(t, s.RetryRefund(t.Context(), id))
	handle(t, s.Refunds().Handle, id.String())
	s.wantAttempt(t, o, a.ID, "succeeded applied requested confirmed")
	s.check(t)
}

// TestRefundsByHandCount checks that a refund that was made at the provider lowers what an operator can refund, once the
// books show it, and no longer if it fails.
func TestRefundsByHandCount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settled bool // before the refund by hand
		cents   int64
	}{
		"in part":                  {true, 300},
		"in full":                  {true, 1000},
		"in part, before settling": {false, 300},
		"in full, before settling": {false, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBooksShop(t)
			o, a := s.placeOpen(t)
			s.mem.pay(a.CheckoutURL)
			if test.settled {
				s.settleNow(t, o.ID)
			}
			intent := s.intent(t, a)
			s.book(payment.Refunded, intent, "re_hand", test.cents)
			here := int64(0)
			if test.settled {
				here = 1000 - test.cents
			}
			wantReport(t, s.read(t), 1000-test.cents, here, true)
			s.settleNow(t, o.ID)
			s.wantOrder(t, o, "paid")
			wantLeft := func(key string, left int64) {
				t.Helper()
				_, _, err := s.RequestRefund(t.Context(), o.ID, payment.RefundRequest{Key: key, AmountCents: left + 1, Actor: "Ann", Note: "broken"})
				want := " " + payment.Amount(left, "EUR") + " are left"
				if parttest.ClassOf(err) != payment.MoreThanPaid || !strings.Contains(err.Error(), want) {
					t.Errorf("the request for %d cents returns %v, want that%s", left+1, err, want)
				}
			}
			wantLeft("one", 1000-test.cents)
			if left := 1000 - test.cents; left > 0 {
				refund, _, err := s.RequestRefund(t.Context(), o.ID, payment.RefundRequest{Key: "one", AmountCents: left, Actor: "Ann", Note: "broken"})
				testenv.Must(t, err)
				handle(t, s.Refunds().Handle, refund.ID.String())
			}
			wantReport(t, s.read(t), 0, 0, true)
			wantLeft("two", 0) // the refund of the shop counts once, though the books have it, too
			s.book(payment.RefundFailed, intent, "re_hand", test.cents)
			wantReport(t, s.read(t), test.cents, test.cents, true)
			wantLeft("two", test.cents)
			s.check(t)
		})
	}
}

// TestRejectedRefundRequests checks the requests that refund nothing.
func TestRejectedRefundRequests(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	late, _ := s.late(t)
	open, _ := s.placeOpen(t)
	paid, a := s.paidOrder(t)
	c.requestRefund(t, late, "one", 1000, http.StatusConflict, "not-applied")
	c.requestRefund(t, open, "one", 1000, http.StatusConflict, "not-applied")
	c.requestRefund(t, &order.Order{ID: uuid.New()}, "one", 1000, http.StatusNotFound, "not-found")
	s.exec(t, `UPDATE payment_attempts SET disputed_cents = 500 WHERE id = $1`, a.ID)
	c.requestRefund(t, paid, "one", 500, http.StatusConflict, "payment-disputed")
	s.exec(t, `UPDATE payment_attempts SET disputed_cents = 0 WHERE id = $1`, a.ID)
	path := "/ops/api/orders/" + paid.ID.String() + "/refunds"
	for _, body := range []string{`{}`, `{"amount_cents":1,"actor":"Ann"}`, `{"amount_cents":0,"actor":"Ann","note":"a"}`,
		`{"amount_cents":1.5,"actor":"Ann","note":"a"}`, `{"amount_cents":"1","actor":"Ann","note":"a"}`,
		`{"amount_cents":1,"actor":"Ann","note":"a","to":"Bob"}`, `{"amount_cents":99999999999999999999,"actor":"Ann","note":"a"}`} {
		if answer := c.contract.Send(t, c.handler, "POST", path, body, "Idempotency-Key: one"); answer.Code != http.StatusUnprocessableEntity {
			t.Errorf("the body %s is answered with %d, want 422", body, answer.Code)
		}
	}
	c.send(t, "POST", path, `{"amount_cents":1,"actor":"Ann","note":"a"}`, 400, "malformed-request") // without a key
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM refunds WHERE reason = 'requested'`); n != 0 {
		t.Errorf("%d refunds are stored, want none", n)
	}
}

// TestRefundOfAnIntegerByValue asks for one refund whose amount is written in all ways that the contract counts as an
// integer.
func TestRefundOfAnIntegerByValue(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	o, _ := s.paidOrder(t)
	first := c.requestRefund(t, o, "one", 300, http.StatusCreated, "")
	for _, amount := range []string{"300.0", "3e2", "3000e-1"} {
		body := fmt.Sprintf(`{"amount_cents":%s,"actor":"Ann","note":"a leg was broken"}`, amount)
		answer := c.contract.Send(t, c.handler, "POST", "/ops/api/orders/"+o.ID.String()+"/refunds", body, "Idempotency-Key: one")
		if answer.Code != http.StatusOK || decode[payment.RequestedRefund](t, answer.Body.Bytes()).ID != first.ID {
			t.Errorf("the amount %s is answered with %d %s, want the refund %s", amount, answer.Code, answer.Body, first.ID)
		}
	}
}

// TestRefundsNameAmounts checks that the problems of refunds have amounts with the decimals of their currency, and that
// an amount in another currency than the payment's is not refunded.
func TestRefundsNameAmounts(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	for currency, amounts := range map[string][]string{
		"JPY": {"1000 JPY", "1001 JPY"},
		"KWD": {"1.000 KWD", "1.001 KWD"},
	} {
		s.exec(t, `UPDATE products SET currency = $1`, currency)
		o, _ := s.paidOrder(t)
		refund := func(cents int64, of, class string) rest.Problem {
			t.Helper()
			body := fmt.Sprintf(`{"amount_cents":%d,"currency":%q,"actor":"Ann","note":"a leg was broken"}`, cents, of)
			path := "/ops/api/orders/" + o.ID.String() + "/refunds"
			answer := c.contract.Send(t, c.handler, "POST", path, body, "Idempotency-Key: one")
			problem := decode[rest.Problem](t, answer.Body.Bytes())
			if class != "" && problem.Type != "/problems/"+class || class == "" && answer.Code != http.StatusCreated {
				t.Errorf("a refund of %d %s is answered with %d %s, want %q", cents, of, answer.Code, answer.Body, class)
			}
			return problem
		}
		got := refund(1000, "EUR", "invalid-request")
		if len(got.Errors) != 1 || got.Errors[0].Pointer != "/currency" || !strings.Contains(got.Detail, "is in "+currency) {
			t.Errorf("a refund in another currency is answered with %+v, want an error of the currency", got)
		}
		details := refund(1001, currency, "more-than-paid").Detail
		refund(1000, currency, "")
		details += refund(1001, currency, "idempotency-key-reused").Detail
		for _, amount := range amounts {
			if strings.Count(details, amount) != 2 {
				t.Errorf("the problems say %q, want %s in both", details, amount)
			}
		}
	}
}

// TestConcurrentRefundRequests sends many requests at the same time, with two keys for 600 of 1000 cents. One of the keys
// wins, and its repeated requests return the same refund.
func TestConcurrentRefundRequests(t *testing.T) {
	s := newMemoryShop(t)
	for range 10 {
		o, _ := s.paidOrder(t)
		var all sync.WaitGroup
		var mu sync.Mutex
		ids, rejected := map[uuid.UUID]int{}, 0
		for i := range 8 {
			all.Go(func() {
				refund, isNew, err := s.RequestRefund(t.Context(), o.ID, payment.RefundRequest{
					Key: fmt.Sprint("key ", i%2), AmountCents: 600, Actor: "Ann", Note: "broken"})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					ids[refund.ID]++
					if isNew {
						ids[uuid.Nil]++
					}
				case parttest.ClassOf(err) == payment.MoreThanPaid:
					rejected++
				default:
					t.Errorf("the request returns %v", err)
				}
			})
		}
		all.Wait()
		if len(ids) != 2 || ids[uuid.Nil] != 1 || rejected != 4 {
			t.Fatalf("the requests return %v, and %d are rejected; want one refund, new once, and 4 rejected", ids, rejected)
		}
	}
	if violations, err := s.store.Invariants(t.Context(), time.Minute, false); err != nil || len(violations) > 0 {
		t.Errorf("violated invariants: %v, %v", violations, err)
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
