package payment_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/payment"
)

// contract says what the service answers.
var contract = sync.OnceValues(func() (*parttest.Contract, error) {
	return parttest.LoadContract("../../..", "../..")
})

// client sends requests of a customer to a shop, and checks each answer against the contract.
type client struct {
	*shop
	contract *parttest.Contract
	token    string // "": the client is not signed in
}

func (s *shop) client(t *testing.T, customer uuid.UUID) *client {
	t.Helper()
	contract, err := contract()
	testenv.Must(t, err)
	token, err := s.tokens.Issue(customer)
	testenv.Must(t, err)
	return &client{s, contract, token}
}

// send sends a request, and checks the status of its answer and, if the status is that of an error, the class of the
// problem.
func (c *client) send(t *testing.T, method, path, body string, status int, class string) []byte {
	t.Helper()
	var headers []string
	if c.token != "" {
		headers = append(headers, "Authorization: Bearer "+c.token)
	}
	answer := c.contract.Send(t, c.handler, method, path, body, headers...)
	if answer.Code != status || !strings.Contains(answer.Body.String(), class) {
		t.Fatalf("%s %s is answered with %d %s, want %d %s", method, path, answer.Code, answer.Body, status, class)
	}
	if after := answer.Header().Get("Retry-After"); status == http.StatusServiceUnavailable && after != "1" {
		t.Errorf("%s %s: 503 has Retry-After %q, want 1", method, path, after)
	}
	return answer.Body.Bytes()
}

func decode[T any](t *testing.T, body []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return v
}

type attemptPage struct {
	Items      []attempt.Attempt
	NextCursor *string `json:"next_cursor"`
}

// TestCustomersAPI checks the answers to a customer who pays, and that other customers see nothing of it.
func TestCustomersAPI(t *testing.T) {
	s := newMemoryShop(t)
	o := s.place(t)
	c, other := s.client(t, o.CustomerID), s.client(t, keyset.NewID())
	path := "/api/orders/" + o.ID.String() + "/payments"

	if body := c.send(t, "GET", path, "", 200, ""); string(body) != `{"items":[]}` {
		t.Errorf("an order without payments has the payments %s", body)
	}
	s.setAPI(t, "down")
	c.send(t, "POST", path, "", 503, "provider-unavailable")
	creating := decode[attemptPage](t, c.send(t, "GET", path, "", 200, `"state":"creating"`)).Items[0]
	s.setAPI(t, "up")
	first := decode[attempt.Attempt](t, c.send(t, "POST", path, "", 200, `"state":"open"`)) // continues the attempt
	again := decode[attempt.Attempt](t, c.send(t, "POST", path, "{}", 200, `"checkout_url":"`))
	if first.ID != creating.ID || again.ID != first.ID || again.CheckoutURL != first.CheckoutURL {
		t.Errorf("the repeated request returns %+v, the first one %+v", again, first)
	}
	other.send(t, "POST", path, "", 404, "not-found")
	other.send(t, "GET", path, "", 404, "not-found")
	if body := other.send(t, "GET", "/api/payments", "", 200, ""); string(body) != `{"items":[],"next_cursor":null}` {
		t.Errorf("another customer sees %s", body)
	}
	anonymous := *c
	anonymous.token = ""
	anonymous.send(t, "POST", path, "", 401, "unauthorized")
	anonymous.send(t, "GET", path, "", 401, "unauthorized")
	anonymous.send(t, "GET", "/api/payments", "", 401, "unauthorized")

	s.pay(t, first.CheckoutURL)
	s.settleNow(t, o.ID)
	c.send(t, "POST", path, "", 409, "order-paid")
	c.send(t, "GET", path, "", 200, `"state":"succeeded","applied":true`)
	s.check(t)
}

// TestRejectedPayments checks the problem for each reason why no checkout is opened.
func TestRejectedPayments(t *testing.T) {
	s := newMemoryShop(t)
	customer := keyset.NewID()
	c := s.client(t, customer)
	for name, test := range map[string]struct {
		prepare func(o *order.Order)
		status  int
		class   string
	}{
		"paid at once": {func(o *order.Order) {
			_, err := s.orders.Pay(t.Context(), customer, o.ID)
			testenv.Must(t, err)
		}, 409, "order-paid"},
		"cancelled":               {func(o *order.Order) { s.cancel(t, o) }, 409, "order-cancelled"},
		"the deadline has passed": {func(o *order.Order) { s.shiftToDeadline(t, o.ID, time.Second) }, 409, "deadline-passed"},
		"timed out": {func(o *order.Order) {
			s.shiftToDeadline(t, o.ID, time.Second)
			s.cancelDue(t, o.ID)
		}, 409, "deadline-passed"},
		"too small a total": {func(o *order.Order) {
			s.exec(t, `UPDATE orders SET total_cents = 49 WHERE id = $1`, o.ID)
		}, 409, "total-not-chargeable"},
		"fifty attempts": {func(o *order.Order) {
			for range 50 {
				s.expireSession(t, s.open(t, o).ID)
				s.settleNow(t, o.ID)
			}
		}, 409, "too-many-attempts"},
		"the provider refuses": {func(*order.Order) {
			s.refuseSessions(t, true)
		}, 502, "checkout-refused"},
		"a wrong key": {func(*order.Order) { s.rotateKey(t, "another") }, 503, "provider-unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			o := s.placeFor(t, customer)
			test.prepare(o)
			c.send(t, "POST", "/api/orders/"+o.ID.String()+"/payments", "", test.status, test.class)
			s.refuseSessions(t, false)
			s.rotateKey(t, apiKey)
		})
	}
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		class              rest.Class
	}{
		"an unknown order":    {"POST", "/api/orders/" + uuid.NewString() + "/payments", "", 404, rest.NotFound},
		"no UUID":             {"POST", "/api/orders/7/payments", "", 400, rest.Malformed},
		"a body":              {"POST", "/api/orders/" + uuid.NewString() + "/payments", `{"amount":1}`, 422, rest.Invalid},
		"a parameter":         {"GET", "/api/orders/" + uuid.NewString() + "/payments?x=1", "", 400, rest.Malformed},
		"a wrong cursor":      {"GET", "/api/payments?cursor=x", "", 400, rest.Malformed},
		"a wrong limit":       {"GET", "/api/payments?limit=0", "", 400, rest.Malformed},
		"an unknown refund":   {"POST", "/ops/api/refunds/" + uuid.NewString() + "/retry", "", 404, rest.NotFound},
		"no UUID of a refund": {"POST", "/ops/api/refunds/x/retry", "", 400, rest.Malformed},
	} {
		t.Run(name, func(t *testing.T) { c.send(t, test.method, test.path, test.body, test.status, test.class.Code) })
	}
}

// TestListPayments pages through the payments of a customer, the latest first.
func TestListPayments(t *testing.T) {
	s := newMemoryShop(t)
	customer := keyset.NewID()
	c := s.client(t, customer)
	var want []uuid.UUID
	for range 3 {
		o := s.placeFor(t, customer)
		first := s.open(t, o)
		s.expireSession(t, first.ID)
		s.settleNow(t, o.ID)
		want = append([]uuid.UUID{s.open(t, o).ID, first.ID}, want...)
		s.placeOpen(t) // of another customer
	}
	// Of two attempts of the same time, the one with the larger id is first.
	s.exec(t, `UPDATE payment_attempts SET opened_at = (SELECT opened_at FROM payment_attempts WHERE id = $2) WHERE id = $1`, want[2], want[3])
	for _, limit := range []string{"1", "2", "6", "100"} {
		var got []uuid.UUID
		for cursor, pages := "", 0; pages < 10; pages++ {
			page := decode[attemptPage](t, c.send(t, "GET", "/api/payments?limit="+limit+cursor, "", 200, ""))
			for _, a := range page.Items {
				got = append(got, a.ID)
			}
			if page.NextCursor == nil {
				break
			}
			cursor = "&cursor=" + *page.NextCursor
		}
		if len(got) != len(want) {
			t.Fatalf("limit %s: %d payments, want %d", limit, len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("limit %s: payment %d is %s, want %s", limit, i, got[i], want[i])
			}
		}
	}
}

// TestOperatorsAPI checks the state of payments that operators see, and that they can repeat a refund that failed.
func TestOperatorsAPI(t *testing.T) {
	s := newMemoryShop(t)
	c := s.client(t, uuid.New())
	type stats struct {
		Attempts, Refunds map[string]int64
		Overdue           float64 `json:"oldest_check_overdue_seconds"`
		Money             []struct {
			Currency string
			Captured int64 `json:"captured_cents"`
			Applied  int64 `json:"applied_cents"`
			Returned int64 `json:"returned_cents"`
			Owed     int64 `json:"owed_cents"`
		}
		FailedRefunds []struct {
			ID      uuid.UUID
			OrderID uuid.UUID `json:"order_id"`
			Amount  int64     `json:"amount_cents"`
			Error   string
		} `json:"failed_refunds"`
		UnconfirmedRefunds []struct {
			ID        uuid.UUID
			OrderID   uuid.UUID `json:"order_id"`
			State     string
			Amount    int64 `json:"amount_cents"`
			Currency  string
			Error     *string
			CreatedAt time.Time `json:"created_at"`
		} `json:"unconfirmed_refunds"`
	}
	read := func() stats { return decode[stats](t, c.send(t, "GET", "/ops/api/payments", "", 200, "")) }
	if empty := read(); len(empty.Money)+len(empty.FailedRefunds)+len(empty.UnconfirmedRefunds) != 0 || empty.Overdue != 0 {
		t.Errorf("an empty shop has the stats %+v", empty)
	}

	open, a := s.placeOpen(t)
	_ = open
	closing, _ := s.placeOpen(t)
	s.exec(t, `UPDATE payment_attempts SET closes_at = clock_timestamp() WHERE order_id = $1`, closing.ID)
	paid, b := s.placeOpen(t)
	s.pay(t, b.CheckoutURL)
	s.deliverAll(t, b.ID)
	s.settle(t, paid.ID)
	expired, e := s.placeOpen(t)
	s.expireSession(t, e.ID)
	s.settleNow(t, expired.ID)
	_, confirmed := s.late(t)
	s.sendRefund(t, confirmed.ID)
	lateOrder, failed := s.late(t)
	s.failRefund(t, lateOrder, failed)
	owedOrder, owed := s.late(t)
	s.exec(t, `UPDATE refunds r SET next_check = r.next_check - interval '1 minute' FROM payment_attempts a WHERE a.id = r.attempt_id AND a.order_id = $1`, owedOrder.ID)
	s.setAPI(t, "down")
	creating := s.place(t)
	if _, _, err := s.Open(t.Context(), creating.CustomerID, creating.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatal(err)
	}
	s.setAPI(t, "up")

	got := read()
	for state, want := range map[string]int64{"creating": 1, "open": 1, "closing": 1, "closed": 1, "succeeded": 4} {
		if got.Attempts[state] != want {
			t.Errorf("%d attempts are %s, want %d", got.Attempts[state], state, want)
		}
	}
	for state, want := range map[string]int64{"owed": 1, "sent": 0, "confirmed": 1, "failed": 1} {
		if got.Refunds[state] != want {
			t.Errorf("%d refunds are %s, want %d", got.Refunds[state], state, want)
		}
	}
	if m := got.Money; len(m) != 1 || m[0].Currency != "EUR" || m[0].Captured != 4000 || m[0].Applied != 1000 || m[0].Returned != 1000 || m[0].Owed != 2000 {
		t.Errorf("the money is %+v, want 4000 captured, 1000 applied, 1000 returned, 2000 owed", m)
	}
	if got.Overdue < 59 || got.Overdue > 120 {
		t.Errorf("overdue %v, want about 60", got.Overdue)
	}
	if u := got.UnconfirmedRefunds; len(u) != 1 || u[0].ID.String() != s.refundOf(t, owed.ID) || u[0].OrderID != owedOrder.ID || u[0].State != "owed" ||
		u[0].Amount != 1000 || u[0].Currency != "EUR" || u[0].Error != nil || time.Since(u[0].CreatedAt) > time.Hour {
		t.Errorf("the unconfirmed refunds are %+v, want the one of order %s", u, owedOrder.ID)
	}
	refund := s.refundOf(t, failed.ID)
	if f := got.FailedRefunds; len(f) != 1 || f[0].ID.String() != refund || f[0].OrderID != lateOrder.ID || f[0].Amount != 1000 || f[0].Error == "" {
		t.Fatalf("the failed refunds are %+v, want %s", f, refund)
	}
	c.send(t, "POST", "/ops/api/refunds/"+refund+"/retry", "", 204, "")
	c.send(t, "POST", "/ops/api/refunds/"+refund+"/retry", "", 409, "not-failed")
	s.sendRefund(t, failed.ID)
	if got := read(); got.Refunds["confirmed"] != 2 || len(got.FailedRefunds) != 0 {
		t.Errorf("after the retry the refunds are %+v", got.Refunds)
	}
	s.wantAttempt(t, open, a.ID, "open")
	s.checkMetrics(t, map[string]float64{
		"payment_attempts/creating": 1, "payment_attempts/open": 1, "payment_attempts/closing": 1,
		"payment_refunds_unconfirmed/": 1, "payment_refunds_failed/": 0,
	})
}

// checkMetrics compares values of the collector, by name and state.
func (s *shop) checkMetrics(t *testing.T, want map[string]float64) {
	t.Helper()
	s.metrics.MustRegister(payment.NewCollector(s.gorm, s.reconciliation(s.provider, "test", prometheus.NewRegistry())))
	families, err := s.metrics.Gather()
	testenv.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			state := ""
			if labels := m.GetLabel(); len(labels) > 0 {
				state = labels[0].GetValue()
			}
			if m.GetGauge() != nil {
				got[f.GetName()+"/"+state] = m.GetGauge().GetValue()
			}
		}
	}
	for name, value := range want {
		if v, found := got[name]; !found || v != value {
			t.Errorf("the metric %s is %v, %v; want %v", name, v, found, value)
		}
	}
}
