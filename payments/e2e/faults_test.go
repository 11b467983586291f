package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/paymenttest"
)

// The parts of a deployment that only payments have.
const (
	providerServer faulttest.Target = faulttest.Processes + 1 + iota
	providerNetwork
)

var providerFaults = []faulttest.ChaosFault{
	turnedFault("provider down", knobs{API: "down"}),
	turnedFault("provider hung", knobs{API: "hung"}),
	turnedFault("provider loses answers", knobs{API: "loses_answers"}),
	turnedFault("provider answers 500", knobs{API: "errors"}),
	turnedFault("provider executes, then answers 500", knobs{API: "executes_then_500"}),
	turnedFault("provider answers {}", knobs{API: "empty"}),
	turnedFault("provider slow", knobs{LatencyMS: new(500)}),
	turnedFault("objects locked at the provider", knobs{Locks: "timeout"}),
	turnedFault("provider within its limits", knobs{Rate: new(25), EndpointRate: new(25)}),
	turnedFault("too many calls for the provider", knobs{EndpointRate: new(1)}),
	turnedFault("sessions refused", knobs{Sessions: "refuse"}),
	turnedFault("sessions complete, and unpaid", knobs{Sessions: "complete_unpaid"}),
	turnedFault("refunds pending", knobs{Refunds: "pending"}),
	turnedFault("balance too low for refunds", knobs{Refunds: "refuse_balance"}),
	turnedFault("webhooks lost", knobs{Webhooks: "lost"}),
	turnedFault("webhooks doubled", knobs{Webhooks: "doubled"}),
	turnedFault("webhooks late", knobs{Webhooks: "late"}),
	turnedFault("webhooks reordered", knobs{Webhooks: "reordered"}),
	turnedFault("API key rotated", knobs{Key: "sk_test_rotated"}),
	{Name: "provider killed", Target: providerServer, Begin: func(d *faulttest.Deployment, _ int) func() { return providerOf(d).killed() }},
	{Name: "network to the provider slow", Target: providerNetwork, Begin: func(d *faulttest.Deployment, _ int) func() {
		providerOf(d).toAPI.Slow(100 * time.Millisecond)
		return providerOf(d).toAPI.Heal
	}},
	{Name: "network to the provider cut", Target: providerNetwork, Begin: func(d *faulttest.Deployment, _ int) func() {
		providerOf(d).toAPI.Cut()
		return providerOf(d).toAPI.Heal
	}},
	{Name: "network to the provider half-open", Target: providerNetwork, Begin: func(d *faulttest.Deployment, _ int) func() {
		providerOf(d).toAPI.HalfOpen()
		return providerOf(d).toAPI.Heal
	}},
}

// turnedFault is a fault that lasts while knobs are turned.
func turnedFault(name string, k knobs) faulttest.ChaosFault {
	return faulttest.ChaosFault{Name: name, Target: providerServer, Begin: func(d *faulttest.Deployment, _ int) func() { return providerOf(d).turned(k) }}
}

func providerOf(d *faulttest.Deployment) *provider { return d.Party.(*provider) }

// inTurn injects faults of the provider one after the other. Each lasts for a while, and a time without faults follows.
func inTurn(last, calm time.Duration, names ...string) func(d *faulttest.Deployment) {
	return func(d *faulttest.Deployment) {
		for pick, name := range names {
			i := slices.IndexFunc(providerFaults, func(f faulttest.ChaosFault) bool { return f.Name == name })
			end := providerFaults[i].Begin(d, pick)
			d.Sleep(last)
			end()
			d.Sleep(calm)
		}
	}
}

// allInTime checks that no customer who has paid in time got the money back instead of the goods.
func allInTime(d *faulttest.Deployment) (exceeded []string) {
	if late := providerOf(d).late; late > 0 {
		exceeded = append(exceeded, fmt.Sprintf("%d payments were made in time, but refunded as late", late))
	}
	return append(exceeded, somePaid(d)...)
}

// somePaid checks that customers have paid at the provider.
func somePaid(d *faulttest.Deployment) (exceeded []string) {
	if providerOf(d).succeeded == 0 {
		return []string{"no payment succeeded, so the load proves nothing"}
	}
	return nil
}

// someRefunded checks that payments were refunded.
func someRefunded(d *faulttest.Deployment) (exceeded []string) {
	if providerOf(d).refunded == 0 {
		return []string{"no payment was refunded, so the fault proves nothing"}
	}
	return nil
}

// oweRefunds lets the provider be away past the end of some holds, so that payments must be refunded. If no customer
// has paid in this time, the provider is away again. Until the caller turns the knobs back, the provider does not
// confirm the refunds.
func oweRefunds(d *faulttest.Deployment) {
	d.T.Helper()
	p := providerOf(d)
	faulttest.Eventually(d.T, "refunds that the provider has not confirmed", func() bool {
		p.turn(knobs{API: "down"})
		d.Sleep(5 * time.Second)
		p.turn(knobs{API: "up", Refunds: "pending"})
		for began := time.Now(); time.Since(began) < 10*time.Second; d.Sleep(100 * time.Millisecond) {
			if d.Number(`SELECT count(*) FROM refunds WHERE state = 'sent'`) > 0 {
				return true
			}
		}
		return false
	})
}

// TestPaymentFaults breaks the payment provider, the network to it, its webhooks, and the shop's processes while
// customers pay, and switches PostgreSQL over to a standby. TestChaos also breaks PostgreSQL and Redis while they do.
// Each payment that a customer saw succeed must end in goods or in a refund, and the provider's ledger must agree. The
// provider delays no timeout of an order that nobody is paying.
func TestPaymentFaults(t *testing.T) {
	const late = 3 * time.Second
	faulttest.Faults(t, shop, []faulttest.Fault{
		{
			Name: "webhooks", Needs: faulttest.Needs{Party: startProvider(paymentTimes{})},
			Bound:  faulttest.Bound{Late: late, Answer: 2 * time.Second}, // held items end as soon as their checkouts are closed
			Inject: inTurn(2*time.Second, 0, "webhooks lost", "webhooks doubled", "webhooks late", "webhooks reordered"),
			Party:  allInTime,
		},
		{
			Name: "provider away, back in time", Needs: faulttest.Needs{Party: startProvider(paymentTimes{grace: 10 * time.Second})},
			Bound: faulttest.Bound{Late: late, Held: 13 * time.Second, Answer: 2 * time.Second, Party: 5 * time.Second},
			Inject: inTurn(1500*time.Millisecond, 2500*time.Millisecond, "provider down", "provider hung", "API key rotated",
				"network to the provider half-open"),
			Party: allInTime,
		},
		{
			Name: "provider away, back too late", Needs: faulttest.Needs{Party: startProvider(paymentTimes{grace: 2 * time.Second})},
			Bound:  faulttest.Bound{Late: late, Held: 5 * time.Second, Answer: 2 * time.Second, Party: 5 * time.Second},
			Inject: inTurn(6*time.Second, time.Second, "provider down", "provider hung"),
			Party:  someRefunded,
		},
		{
			// The extension is longer than the grace.
			Name: "provider misbehaves", Needs: faulttest.Needs{Party: startProvider(paymentTimes{extension: 4 * time.Second})},
			Bound: faulttest.Bound{Late: late, Held: 6 * time.Second, Answer: 2 * time.Second, Party: 5 * time.Second},
			Inject: inTurn(2*time.Second, 500*time.Millisecond, "provider loses answers", "provider answers 500",
				"sessions refused", "provider killed", "network to the provider slow", "network to the provider cut"),
			Party: somePaid,
		},
		{
			Name: "provider answers wrongly", Needs: faulttest.Needs{Party: startProvider(paymentTimes{grace: 10 * time.Second})},
			Bound: faulttest.Bound{Late: late, Held: 13 * time.Second, Answer: 2 * time.Second, Party: 5 * time.Second},
			Inject: inTurn(2*time.Second, time.Second, "provider executes, then answers 500", "provider answers {}", "provider slow",
				"provider within its limits", "too many calls for the provider", "objects locked at the provider", "refunds pending"),
			Party: allInTime,
		},
		{
			Name: "processes killed", Needs: faulttest.Needs{Party: startProvider(paymentTimes{grace: time.Second})},
			Bound: faulttest.Bound{Late: 8 * time.Second, Held: 9 * time.Second, Answer: 5 * time.Second, Party: 5 * time.Second, Rejected: true},
			Inject: func(d *faulttest.Deployment) {
				oweRefunds(d)
				for pick := range 9 {
					replace := faulttest.KilledProcess.Begin(d, pick)
					d.Sleep(200 * time.Millisecond)
					replace()
					d.Sleep(600 * time.Millisecond)
				}
				providerOf(d).turn(healthy)
			},
			Party: someRefunded,
		},
		{
			Name: "switch-over", Needs: faulttest.Needs{Standby: true, Party: startProvider(paymentTimes{grace: time.Second})},
			Bound: faulttest.Bound{Late: 10 * time.Second, Held: 11 * time.Second, Answer: 10 * time.Second, Party: 10 * time.Second, Rejected: true, Again: 2 * time.Second},
			Inject: func(d *faulttest.Deployment) {
				oweRefunds(d)
				testenv.Must(d.T, d.Postgres.SetReadOnly(d.T.Context()))
				d.Sleep(time.Second)
				d.Promote()
				d.AwaitService()
				providerOf(d).turn(healthy)
			},
			Party: someRefunded,
		},
	}...)
}

// checkoutOf opens a payment of an order that must be possible, and returns it.
func checkoutOf(c *faulttest.Client, order string) paymenttest.Payment {
	c.T.Helper()
	return faulttest.Decode[paymenttest.Payment](c.T, c.Expect(http.StatusCreated, faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(order)}))
}

// pays pays at a checkout that must be open.
func (p *provider) pays(pay paymenttest.Payment) {
	p.d.T.Helper()
	resp, err := paymenttest.Browser.Post(pay.CheckoutURL+"/pay", "application/x-www-form-urlencoded", http.NoBody)
	testenv.Must(p.d.T, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther {
		p.d.T.Fatalf("paying at %s: status %d, want 303", pay.CheckoutURL, resp.StatusCode)
	}
}

// waitForPaid waits until an order is paid.
func waitForPaid(c *faulttest.Client, order string) {
	c.T.Helper()
	faulttest.Eventually(c.T, "order "+order+" is paid", func() bool { return c.Look(order).Status == faulttest.Confirmed })
}

// waitForRefund waits until the last payment of an order has a refund in a state, and returns the payment.
func waitForRefund(c *faulttest.Client, order, state string) (pay paymenttest.Payment) {
	c.T.Helper()
	faulttest.Eventually(c.T, "a refund in the state "+state, func() bool {
		pay = paymenttest.Payments(c, order)[0]
		return pay.Refund != nil && pay.Refund.State == state
	})
	return pay
}

// checkBooks waits until no payment is under way, and checks that the ledger has one row for each of n payments, and
// that the doctor finds no fault.
func (p *provider) checkBooks(n int) {
	p.d.T.Helper()
	faulttest.Eventually(p.d.T, "no payment under way", p.Idle)
	if rows := p.ledger(); len(rows) != n {
		p.d.T.Errorf("the ledger has %d rows, want %d: %+v", len(rows), n, rows)
	}
	p.d.CheckHealth(p.d.T)
}

// opsPayments is what operators see of payments.
type opsPayments struct {
	Refunds struct{ Failed, Confirmed int }
	Failed  []struct {
		ID      string
		OrderID string `json:"order_id"`
		Error   string
	} `json:"failed_refunds"`
}

func opsPaymentsOf(c *faulttest.Client) opsPayments {
	c.T.Helper()
	return faulttest.Decode[opsPayments](c.T, c.Get("/ops/api/payments"))
}

// one is a deployment with one process of each role.
func one(t *testing.T, times paymentTimes) (*faulttest.Deployment, *provider) {
	t.Helper()
	testenv.Slow(t, "starts a shop and its provider")
	t.Parallel()
	d := shop.Deploy(t, faulttest.Needs{Party: startProvider(times), Processes: []string{"api", "worker", "relay", "reconciler"}})
	return d, providerOf(d)
}

// TestRefundFails refunds a payment whose refund fails at the provider. The refund must stay visible to operators until
// one of them repeats it.
func TestRefundFails(t *testing.T) {
	d, p := one(t, paymentTimes{grace: time.Second})
	api := d.Running("api")[0]
	c, ops := api.SignUp(), api.Operator()
	placed := c.Create()
	pay := checkoutOf(c, placed.ID)
	p.turn(knobs{API: "down", Refunds: "fail"}) // the order is cancelled, and the checkout stays open
	c.WaitForTimeout(placed.ID)
	p.pays(pay)
	p.turn(knobs{API: "up"})
	waitForRefund(c, placed.ID, "failed")
	failed := opsPaymentsOf(ops).Failed
	if len(failed) != 1 || failed[0].OrderID != placed.ID || failed[0].Error == "" {
		t.Fatalf("failed refunds: %+v, want one with an error, of the order %s", failed, placed.ID)
	}
	if row := p.ledger()[pay.ID]; row.CapturedCents != pay.AmountCents || row.RefundedCents != 0 {
		t.Errorf("the ledger has %+v, want the whole amount captured and nothing refunded", row)
	}
	retry := "/ops/api/refunds/" + failed[0].ID + "/retry"
	c.Post(http.StatusUnauthorized, retry)
	p.turn(healthy)
	ops.Post(http.StatusNoContent, retry)
	waitForRefund(c, placed.ID, "confirmed")
	ops.Post(http.StatusConflict, retry)
	if row := p.ledger()[pay.ID]; row.RefundedCents != pay.AmountCents {
		t.Errorf("the ledger has %+v, want the whole amount refunded", row)
	}
	if shown := opsPaymentsOf(ops); len(shown.Failed) > 0 || shown.Refunds.Failed > 0 || shown.Refunds.Confirmed != 1 {
		t.Errorf("payments %+v, want one refund, which is confirmed", shown)
	}
	p.checkBooks(1)
}

// owed lets a customer pay an order after its hold, while the provider does not answer the service. The money must be
// returned.
func (p *provider) owed(c *faulttest.Client) paymenttest.Payment {
	p.d.T.Helper()
	placed := c.Create()
	pay := checkoutOf(c, placed.ID)
	p.turn(knobs{API: "down"})
	c.WaitForTimeout(placed.ID)
	p.pays(pay)
	return pay
}

// byHand sends a request about a payment to the provider's control API, as an operator acts at the provider.
func (p *provider) byHand(pay paymenttest.Payment, action, body string) {
	p.d.T.Helper()
	p.control(http.MethodPost, "/sim/payments/"+p.ledger()[pay.ID].PaymentIntent+"/"+action, body)
}

// TestRefundOfDisputedPayment owes a refund of a payment that its customer disputes. The refund must fail with its
// cause, and not be tried again by itself, so that the money is not returned twice. When the dispute is won, an
// operator repeats the refund.
func TestRefundOfDisputedPayment(t *testing.T) {
	d, p := one(t, paymentTimes{grace: time.Second})
	api := d.Running("api")[0]
	c, ops := api.SignUp(), api.Operator()
	pay := p.owed(c)
	p.byHand(pay, "dispute", `{"state":"open"}`)
	p.turn(healthy)
	waitForRefund(c, pay.OrderID, "failed")
	if row := p.ledger()[pay.ID]; row.CapturedCents != row.DisputedCents || row.RefundedCents != 0 {
		t.Errorf("the ledger has %+v, want the whole amount disputed and nothing refunded", row)
	}
	failed := opsPaymentsOf(ops).Failed
	if len(failed) != 1 || !strings.Contains(failed[0].Error, "disputed") {
		t.Fatalf("failed refunds: %+v, want one because of a dispute", failed)
	}
	p.byHand(pay, "dispute", `{"state":"won"}`)
	ops.Post(http.StatusNoContent, "/ops/api/refunds/"+failed[0].ID+"/retry")
	waitForRefund(c, pay.OrderID, "confirmed")
	if row := p.ledger()[pay.ID]; row.RefundedCents != pay.AmountCents || row.DisputedCents != 0 {
		t.Errorf("the ledger has %+v, want the whole amount refunded", row)
	}
	p.checkBooks(1)
}

// TestRefundByHandBeforeSettling returns money at the provider before the service knows of the payment, in part and in
// full. The service must return only the rest.
func TestRefundByHandBeforeSettling(t *testing.T) {
	d, p := one(t, paymentTimes{grace: time.Second})
	c := d.Running("api")[0].SignUp()
	for _, body := range []string{`{"amount_cents":10}`, `{}`} {
		pay := p.owed(c)
		p.byHand(pay, "refunds", body)
		p.turn(healthy)
		waitForRefund(c, pay.OrderID, "confirmed")
		if row := p.ledger()[pay.ID]; row.RefundedCents != pay.AmountCents {
			t.Errorf("a refund by hand of %s: the ledger has %+v, want the whole amount refunded", body, row)
		}
	}
	p.checkBooks(2)
}

// TestCompleteAndUnpaid completes a session whose payment method pays later. The order must not be paid before the
// money is captured, although the session is complete, and the order's hold must not end meanwhile. The customer cannot
// close the checkout: the provider is deciding.
func TestCompleteAndUnpaid(t *testing.T) {
	d, p := one(t, paymentTimes{timeout: faulttest.Patience, grace: faulttest.Patience})
	c := d.Running("api")[0].SignUp()
	placed := c.Create()
	pay := checkoutOf(c, placed.ID)
	p.turn(knobs{Sessions: "complete_unpaid"})
	p.pays(pay)
	closing := faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(placed.ID) + "/close"}
	if a := c.Expect(http.StatusConflict, closing); a.Rejected != faulttest.RejectedByParty {
		t.Errorf("closing the checkout is answered with %s, want payment-in-progress", a.Body)
	}
	if row := p.ledger()[pay.ID]; row.Status != "complete" || row.PaymentStatus != "unpaid" || row.CapturedCents != 0 {
		t.Errorf("the ledger has %+v, want a complete session without money", row)
	}
	if now := c.Look(placed.ID); now.Status == faulttest.Confirmed {
		t.Errorf("the order is %+v, but no money is captured", now)
	}
	p.turn(healthy)
	faulttest.Eventually(t, "the payment", func() bool { return c.Send(closing).Rejected == faulttest.RejectedConfirmed })
	waitForPaid(c, placed.ID)
	p.checkBooks(1)
}

// TestWrongAmount pays another amount than the total of the order. The payment must be refunded, and the order
// released.
func TestWrongAmount(t *testing.T) {
	d, p := one(t, paymentTimes{})
	c := d.Running("api")[0].SignUp()
	placed := c.Create()
	pay := checkoutOf(c, placed.ID)
	session := pay.CheckoutURL[strings.LastIndex(pay.CheckoutURL, "/")+1:]
	p.control(http.MethodPost, "/sim/sessions/"+session+"/amount", `{"amount_cents":50}`)
	p.pays(pay)
	if refunded := waitForRefund(c, placed.ID, "confirmed").Refund; refunded.Reason != "mismatch" || refunded.AmountCents != 50 {
		t.Errorf("refund %+v, want 50 cents, because of a mismatch", refunded)
	}
	c.WaitForTimeout(placed.ID)
	if row := p.ledger()[pay.ID]; row.CapturedCents != 50 || row.RefundedCents != 50 {
		t.Errorf("the ledger has %+v, want 50 cents captured and refunded", row)
	}
	p.checkBooks(1)
}

// TestKilledWhilePaying kills processes at each step of a payment. After each kill, other processes must continue the
// same payment: no order gets a second session, and each paid order gets its goods.
func TestKilledWhilePaying(t *testing.T) {
	d, p := one(t, paymentTimes{timeout: 30 * time.Second, grace: time.Minute})
	c := d.Running("api")[0].SignUp()
	attempts := func(condition string, order string) float64 {
		t.Helper()
		return d.Number(`SELECT count(*) FROM payment_attempts WHERE order_id = $1 AND `+condition, order)
	}
	restart := func(role string) {
		t.Helper()
		killed := d.Running(role)
		d.Kill(killed...)
		d.Replace(killed...)
		c.Base = d.Running("api")[0].URL
	}
	open := func(order string) (answered chan error) { // by an API that is killed before it answers
		answered = make(chan error, 1)
		go func() {
			_, err := c.Try(faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(order)})
			answered <- err
		}()
		return answered
	}
	// continues repeats the request of a killed API, pays, and checks that the order has one payment, which pays it.
	continues := func(order string) {
		t.Helper()
		pay := faulttest.Decode[paymenttest.Payment](t, c.Expect(http.StatusOK, faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(order)}))
		p.pays(pay)
		waitForPaid(c, order)
		if all := paymenttest.Payments(c, order); len(all) != 1 || !all[0].Applied {
			t.Errorf("payments %+v, want one that is applied", all)
		}
	}

	t.Log("after the attempt is committed, before the session is created")
	first := c.Create().ID
	p.turn(knobs{API: "hung"})
	answered := open(first)
	faulttest.Eventually(t, "an attempt", func() bool { return attempts(`state = 'creating'`, first) == 1 })
	restart("api")
	<-answered
	p.turn(knobs{API: "up"})
	continues(first)

	t.Log("after the session is created, before its id is committed")
	second := c.Create().ID
	p.turn(knobs{API: "hung"})
	answered = open(second)
	faulttest.Eventually(t, "an attempt", func() bool { return attempts(`state = 'creating'`, second) == 1 })
	_, release := d.Lock(`SELECT FROM payment_attempts WHERE order_id = $1 FOR UPDATE`, second)
	p.turn(knobs{API: "up"})
	faulttest.Eventually(t, "a session at the provider", func() bool { return len(p.ledger()) == 2 })
	api := d.Running("api")
	d.Kill(api...)
	// Terminate the statement of the killed API too: PostgreSQL would complete it after release.
	d.Exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%payment_attempts%'`)
	<-answered
	release()
	if attempts(`state = 'creating'`, second) != 1 {
		t.Error("the session's id is committed, so the test proves nothing")
	}
	d.Replace(api...)
	c.Base = d.Running("api")[0].URL
	continues(second)

	t.Log("after the customer has paid, before the webhook")
	third := c.Create().ID
	pay := checkoutOf(c, third)
	p.turn(knobs{Webhooks: "late"})
	p.pays(pay)
	d.Kill(d.Running("")...)
	for _, role := range []string{"api", "worker", "relay", "reconciler"} {
		d.Start(role)
	}
	c.Base = d.Running("api")[0].URL
	waitForPaid(c, third)
	p.turn(healthy)

	t.Log("after the webhook is received, without workers")
	fourth := c.Create().ID
	pay = checkoutOf(c, fourth)
	others := slices.Concat(d.Running("worker"), d.Running("relay"), d.Running("reconciler"))
	d.Kill(others...)
	p.pays(pay)
	faulttest.Eventually(t, "a payment that the API applies", func() bool { return attempts(`applied`, fourth) == 1 })
	restart("api")
	d.Replace(others...)
	waitForPaid(c, fourth)

	p.checkBooks(4)
}
