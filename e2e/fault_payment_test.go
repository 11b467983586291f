package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// The parts of a deployment that only payments have.
const (
	providerServer part = processes + 1 + iota
	providerNetwork
)

var providerFaults = []chaosFault{
	turnedFault("provider down", knobs{API: "down"}),
	turnedFault("provider hung", knobs{API: "hung"}),
	turnedFault("provider loses answers", knobs{API: "loses_answers"}),
	turnedFault("provider answers 500", knobs{API: "errors"}),
	turnedFault("provider executes, then answers 500", knobs{API: "executes_then_500"}),
	turnedFault("provider answers {}", knobs{API: "empty"}),
	turnedFault("provider slow", knobs{LatencyMS: new(500)}),
	turnedFault("objects locked at the provider", knobs{Locks: "timeout"}),
	turnedFault("provider within its limits", knobs{Rate: new(25), EndpointRate: new(25)}),
	turnedFault("sessions refused", knobs{Sessions: "refuse"}),
	turnedFault("sessions complete, and unpaid", knobs{Sessions: "complete_unpaid"}),
	turnedFault("refunds pending", knobs{Refunds: "pending"}),
	turnedFault("balance too low for refunds", knobs{Refunds: "refuse_balance"}),
	turnedFault("webhooks lost", knobs{Webhooks: "lost"}),
	turnedFault("webhooks doubled", knobs{Webhooks: "doubled"}),
	turnedFault("webhooks late", knobs{Webhooks: "late"}),
	turnedFault("webhooks reordered", knobs{Webhooks: "reordered"}),
	turnedFault("API key rotated", knobs{Key: "sk_test_rotated"}),
	{"provider killed", providerServer, func(d *deployment, _ int) func() { return providerOf(d).killed() }},
	{"network to the provider slow", providerNetwork, func(d *deployment, _ int) func() {
		providerOf(d).toAPI.Slow(100 * time.Millisecond)
		return providerOf(d).toAPI.Heal
	}},
	{"network to the provider cut", providerNetwork, func(d *deployment, _ int) func() {
		providerOf(d).toAPI.Cut()
		return providerOf(d).toAPI.Heal
	}},
	{"network to the provider half-open", providerNetwork, func(d *deployment, _ int) func() {
		providerOf(d).toAPI.HalfOpen()
		return providerOf(d).toAPI.Heal
	}},
}

// turnedFault is a fault that lasts while knobs are turned.
func turnedFault(name string, k knobs) chaosFault {
	return chaosFault{name, providerServer, func(d *deployment, _ int) func() { return providerOf(d).turned(k) }}
}

func providerOf(d *deployment) *provider { return d.party.(*provider) }

// inTurn injects faults of the provider one after the other. Each lasts for a while, and a time without faults follows.
func inTurn(last, calm time.Duration, names ...string) func(d *deployment) {
	return func(d *deployment) {
		for pick, name := range names {
			i := slices.IndexFunc(providerFaults, func(f chaosFault) bool { return f.name == name })
			end := providerFaults[i].begin(d, pick)
			d.sleep(last)
			end()
			d.sleep(calm)
		}
	}
}

// allInTime checks that no customer who has paid in time got the money back instead of the goods.
func allInTime(d *deployment) (exceeded []string) {
	if late := providerOf(d).late; late > 0 {
		exceeded = append(exceeded, fmt.Sprintf("%d payments were made in time, but refunded as late", late))
	}
	return append(exceeded, somePaid(d)...)
}

// somePaid checks that customers have paid at the provider.
func somePaid(d *deployment) (exceeded []string) {
	if providerOf(d).succeeded == 0 {
		return []string{"no payment succeeded, so the load proves nothing"}
	}
	return nil
}

// someRefunded checks that payments were refunded.
func someRefunded(d *deployment) (exceeded []string) {
	if providerOf(d).refunded == 0 {
		return []string{"no payment was refunded, so the fault proves nothing"}
	}
	return nil
}

// oweRefunds lets the provider be away past the end of some holds, so that payments must be refunded. If no customer has paid in this
// time, the provider is away again. Until the caller turns the knobs back, the provider does not confirm the refunds.
func oweRefunds(d *deployment) {
	d.t.Helper()
	p := providerOf(d)
	eventually(d.t, "refunds that the provider has not confirmed", func() bool {
		p.turn(knobs{API: "down"})
		d.sleep(5 * time.Second)
		p.turn(knobs{API: "up", Refunds: "pending"})
		for began := time.Now(); time.Since(began) < 10*time.Second; d.sleep(100 * time.Millisecond) {
			if d.number(`SELECT count(*) FROM refunds WHERE state = 'sent'`) > 0 {
				return true
			}
		}
		return false
	})
}

// TestPaymentFaults breaks the payment provider, the network to it, its webhooks, and the shop's processes while customers
// pay, and switches PostgreSQL over to a standby. TestChaos also breaks PostgreSQL and Redis
// while they do. Each payment that a customer saw succeed must end in goods or in a refund, and the provider's ledger must
// agree. The provider delays no timeout of an item that nobody is paying.
func TestPaymentFaults(t *testing.T) {
	const late = 3 * time.Second
	runFaults(t, paying, []fault{
		{
			name: "webhooks", needs: needs{party: startProvider(paymentTimes{})},
			bound:  bound{late: late, answer: 2 * time.Second}, // held items end as soon as their checkouts are closed
			inject: inTurn(2*time.Second, 0, "webhooks lost", "webhooks doubled", "webhooks late", "webhooks reordered"),
			party:  allInTime,
		},
		{
			name: "provider away, back in time", needs: needs{party: startProvider(paymentTimes{grace: 10 * time.Second})},
			bound: bound{late: late, held: 13 * time.Second, answer: 2 * time.Second, party: 5 * time.Second},
			inject: inTurn(1500*time.Millisecond, 2500*time.Millisecond, "provider down", "provider hung", "API key rotated",
				"network to the provider half-open"),
			party: allInTime,
		},
		{
			name: "provider away, back too late", needs: needs{party: startProvider(paymentTimes{grace: 2 * time.Second})},
			bound:  bound{late: late, held: 5 * time.Second, answer: 2 * time.Second, party: 5 * time.Second},
			inject: inTurn(6*time.Second, time.Second, "provider down", "provider hung"),
			party:  someRefunded,
		},
		{
			// The extension is longer than the grace.
			name: "provider misbehaves", needs: needs{party: startProvider(paymentTimes{extension: 4 * time.Second})},
			bound: bound{late: late, held: 6 * time.Second, answer: 2 * time.Second, party: 5 * time.Second},
			inject: inTurn(2*time.Second, 500*time.Millisecond, "provider loses answers", "provider answers 500",
				"sessions refused", "provider killed", "network to the provider slow", "network to the provider cut"),
			party: somePaid,
		},
		{
			name: "provider answers wrongly", needs: needs{party: startProvider(paymentTimes{grace: 10 * time.Second})},
			bound: bound{late: late, held: 13 * time.Second, answer: 2 * time.Second, party: 5 * time.Second},
			inject: inTurn(2*time.Second, time.Second, "provider executes, then answers 500", "provider answers {}",
				"provider slow", "provider within its limits", "objects locked at the provider", "refunds pending"),
			party: allInTime,
		},
		{
			name: "processes killed", needs: needs{party: startProvider(paymentTimes{grace: time.Second})},
			bound: bound{late: 8 * time.Second, held: 9 * time.Second, answer: 3 * time.Second, party: 5 * time.Second, rejected: true},
			inject: func(d *deployment) {
				oweRefunds(d)
				for pick := range 9 {
					replace := killedProcess.begin(d, pick)
					d.sleep(200 * time.Millisecond)
					replace()
					d.sleep(600 * time.Millisecond)
				}
				providerOf(d).turn(healthy)
			},
			party: someRefunded,
		},
		{
			name: "switch-over", needs: needs{standby: true, party: startProvider(paymentTimes{grace: time.Second})},
			bound: bound{late: 10 * time.Second, held: 11 * time.Second, answer: 10 * time.Second, party: 10 * time.Second, rejected: true, again: 2 * time.Second},
			inject: func(d *deployment) {
				oweRefunds(d)
				testenv.Must(d.t, d.postgres.SetReadOnly(d.t.Context()))
				d.sleep(time.Second)
				d.promote()
				d.awaitService()
				providerOf(d).turn(healthy)
			},
			party: someRefunded,
		},
		{
			name: "without Redis", needs: needs{alone: true, processes: []string{"api", "api", "reconciler", "reconciler"}},
			bound:  bound{late: 3 * time.Second, held: 5 * time.Second, answer: 2 * time.Second},
			inject: func(d *deployment) { d.sleep(3 * time.Second) },
			party:  somePaid,
		},
	}...)
}

// checkout opens a payment of an order that must be possible, and returns it.
func (c *client) checkout(order string) payment {
	c.t.Helper()
	return decode[payment](c.t, c.expect(http.StatusCreated, request{method: http.MethodPost, path: paymentsPath(order)}))
}

// pays pays at a checkout that must be open.
func (p *provider) pays(pay payment) {
	p.d.t.Helper()
	resp, err := pageClient.Post(pay.CheckoutURL+"/pay", "application/x-www-form-urlencoded", http.NoBody)
	testenv.Must(p.d.t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther {
		p.d.t.Fatalf("paying at %s: status %d, want 303", pay.CheckoutURL, resp.StatusCode)
	}
}

// waitForPaid waits until an order is paid.
func (c *client) waitForPaid(order string) {
	c.t.Helper()
	eventually(c.t, "order "+order+" is paid", func() bool { return c.look(order).status == confirmed })
}

// waitForRefund waits until the last payment of an order has a refund in a state, and returns the payment.
func (c *client) waitForRefund(order, state string) (pay payment) {
	c.t.Helper()
	eventually(c.t, "a refund in the state "+state, func() bool {
		pay = c.payments(order)[0]
		return pay.Refund != nil && pay.Refund.State == state
	})
	return pay
}

// checkBooks waits until no payment is under way, and checks that the ledger has one row for each of n payments, and
// that the doctor finds no fault.
func (p *provider) checkBooks(n int) {
	p.d.t.Helper()
	eventually(p.d.t, "no payment under way", p.isIdle)
	if rows := p.ledger(); len(rows) != n {
		p.d.t.Errorf("the ledger has %d rows, want %d: %+v", len(rows), n, rows)
	}
	p.d.checkHealth(p.d.t)
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

func (c *client) opsPayments() opsPayments {
	c.t.Helper()
	return decode[opsPayments](c.t, c.get("/ops/api/payments"))
}

// one is a deployment with one process of each role.
func one(t *testing.T, times paymentTimes) (*deployment, *provider) {
	t.Helper()
	t.Parallel()
	d := paying.deploy(t, needs{party: startProvider(times), processes: []string{"api", "worker", "relay", "reconciler"}})
	return d, providerOf(d)
}

// TestRefundFails refunds a payment whose refund fails at the provider. The refund must stay visible to operators until
// one of them repeats it.
func TestRefundFails(t *testing.T) {
	d, p := one(t, paymentTimes{grace: time.Second})
	api := d.running("api")[0]
	c, ops := api.signUp(), api.operator()
	placed := c.create()
	pay := c.checkout(placed.id)
	p.turn(knobs{API: "down", Refunds: "fail"}) // the order is cancelled, and the checkout stays open
	c.waitForTimeout(placed.id)
	p.pays(pay)
	p.turn(knobs{API: "up"})
	c.waitForRefund(placed.id, "failed")
	failed := ops.opsPayments().Failed
	if len(failed) != 1 || failed[0].OrderID != placed.id || failed[0].Error == "" {
		t.Fatalf("failed refunds: %+v, want one with an error, of the order %s", failed, placed.id)
	}
	if row := p.ledger()[pay.ID]; row.CapturedCents != pay.AmountCents || row.RefundedCents != 0 {
		t.Errorf("the ledger has %+v, want the whole amount captured and nothing refunded", row)
	}
	retry := "/ops/api/refunds/" + failed[0].ID + "/retry"
	c.post(http.StatusUnauthorized, retry)
	p.turn(healthy)
	ops.post(http.StatusNoContent, retry)
	c.waitForRefund(placed.id, "confirmed")
	ops.post(http.StatusConflict, retry)
	if row := p.ledger()[pay.ID]; row.RefundedCents != pay.AmountCents {
		t.Errorf("the ledger has %+v, want the whole amount refunded", row)
	}
	if shown := ops.opsPayments(); len(shown.Failed) > 0 || shown.Refunds.Failed > 0 || shown.Refunds.Confirmed != 1 {
		t.Errorf("payments %+v, want one refund, which is confirmed", shown)
	}
	p.checkBooks(1)
}

// owed lets a customer pay an order after its hold, while the provider does not answer the service. The money must be
// returned.
func (p *provider) owed(c *client) payment {
	p.d.t.Helper()
	placed := c.create()
	pay := c.checkout(placed.id)
	p.turn(knobs{API: "down"})
	c.waitForTimeout(placed.id)
	p.pays(pay)
	return pay
}

// byHand sends a request about a payment to the provider's control API, as an operator acts at the provider.
func (p *provider) byHand(pay payment, action, body string) {
	p.d.t.Helper()
	p.control(http.MethodPost, "/sim/payments/"+p.ledger()[pay.ID].PaymentIntent+"/"+action, []byte(body))
}

// TestRefundOfDisputedPayment owes a refund of a payment that its customer disputes. The refund must fail with its cause,
// and not be tried again by itself, so that the money is not returned twice. When the dispute is won, an operator
// repeats the refund.
func TestRefundOfDisputedPayment(t *testing.T) {
	d, p := one(t, paymentTimes{grace: time.Second})
	api := d.running("api")[0]
	c, ops := api.signUp(), api.operator()
	pay := p.owed(c)
	p.byHand(pay, "dispute", `{"state":"open"}`)
	p.turn(healthy)
	c.waitForRefund(pay.OrderID, "failed")
	if row := p.ledger()[pay.ID]; row.CapturedCents != row.DisputedCents || row.RefundedCents != 0 {
		t.Errorf("the ledger has %+v, want the whole amount disputed and nothing refunded", row)
	}
	failed := ops.opsPayments().Failed
	if len(failed) != 1 || !strings.Contains(failed[0].Error, "disputed") {
		t.Fatalf("failed refunds: %+v, want one because of a dispute", failed)
	}
	p.byHand(pay, "dispute", `{"state":"won"}`)
	ops.post(http.StatusNoContent, "/ops/api/refunds/"+failed[0].ID+"/retry")
	c.waitForRefund(pay.OrderID, "confirmed")
	if row := p.ledger()[pay.ID]; row.RefundedCents != pay.AmountCents || row.DisputedCents != 0 {
		t.Errorf("the ledger has %+v, want the whole amount refunded", row)
	}
	p.checkBooks(1)
}

// TestRefundByHandBeforeSettling returns money at the provider before the service knows of the payment, in part and in
// full. The service must return only the rest.
func TestRefundByHandBeforeSettling(t *testing.T) {
	d, p := one(t, paymentTimes{grace: time.Second})
	c := d.running("api")[0].signUp()
	for _, body := range []string{`{"amount_cents":10}`, `{}`} {
		pay := p.owed(c)
		p.byHand(pay, "refunds", body)
		p.turn(healthy)
		c.waitForRefund(pay.OrderID, "confirmed")
		if row := p.ledger()[pay.ID]; row.RefundedCents != pay.AmountCents {
			t.Errorf("a refund by hand of %s: the ledger has %+v, want the whole amount refunded", body, row)
		}
	}
	p.checkBooks(2)
}

// TestCompleteAndUnpaid completes a session whose payment method pays later. The order must not be paid before the money
// is captured, although the session is complete, and the order's hold must not end meanwhile. The closing begins because the
// customer asks to cancel: a deadline could pass before the customer pays, on a busy machine.
func TestCompleteAndUnpaid(t *testing.T) {
	d, p := one(t, paymentTimes{timeout: patience, grace: patience})
	c := d.running("api")[0].signUp()
	placed := c.create()
	pay := c.checkout(placed.id)
	p.turn(knobs{Sessions: "complete_unpaid"})
	p.pays(pay)
	c.expect(http.StatusAccepted, domain.cancel(placed.id))
	eventually(t, "a check of the closing checkout", func() bool {
		return d.number(`SELECT count(*) FROM payment_attempts WHERE closing AND state = 'open'`) == 1
	})
	if row := p.ledger()[pay.ID]; row.Status != "complete" || row.PaymentStatus != "unpaid" || row.CapturedCents != 0 {
		t.Errorf("the ledger has %+v, want a complete session without money", row)
	}
	if now := c.look(placed.id); now.status == confirmed {
		t.Errorf("the order is %+v, but no money is captured", now)
	}
	p.turn(healthy)
	c.waitForPaid(placed.id)
	p.checkBooks(1)
}

// TestWrongAmount pays another amount than the total of the order. The payment must be refunded, and the order released.
func TestWrongAmount(t *testing.T) {
	d, p := one(t, paymentTimes{})
	c := d.running("api")[0].signUp()
	placed := c.create()
	pay := c.checkout(placed.id)
	session := pay.CheckoutURL[strings.LastIndex(pay.CheckoutURL, "/")+1:]
	p.control(http.MethodPost, "/sim/sessions/"+session+"/amount", []byte(`{"amount_cents":50}`))
	p.pays(pay)
	if refunded := c.waitForRefund(placed.id, "confirmed").Refund; refunded.Reason != "mismatch" || refunded.AmountCents != 50 {
		t.Errorf("refund %+v, want 50 cents, because of a mismatch", refunded)
	}
	c.waitForTimeout(placed.id)
	if row := p.ledger()[pay.ID]; row.CapturedCents != 50 || row.RefundedCents != 50 {
		t.Errorf("the ledger has %+v, want 50 cents captured and refunded", row)
	}
	p.checkBooks(1)
}

// TestKilledWhilePaying kills processes at each step of a payment. After each kill, other processes must continue the
// same payment: no order gets a second session, and each paid order gets its goods.
func TestKilledWhilePaying(t *testing.T) {
	d, p := one(t, paymentTimes{timeout: 30 * time.Second, grace: time.Minute})
	c := d.running("api")[0].signUp()
	attempts := func(condition string, order string) float64 {
		t.Helper()
		return d.number(`SELECT count(*) FROM payment_attempts WHERE order_id = $1 AND `+condition, order)
	}
	restart := func(role string) {
		t.Helper()
		killed := d.running(role)
		d.kill(killed...)
		d.replace(killed...)
		c.base = d.running("api")[0].url
	}
	open := func(order string) (answered chan error) { // by an API that is killed before it answers
		answered = make(chan error, 1)
		go func() {
			_, err := c.try(request{method: http.MethodPost, path: paymentsPath(order)})
			answered <- err
		}()
		return answered
	}
	// continues repeats the request of a killed API, pays, and checks that the order has one payment, which pays it.
	continues := func(order string) {
		t.Helper()
		pay := decode[payment](t, c.expect(http.StatusOK, request{method: http.MethodPost, path: paymentsPath(order)}))
		p.pays(pay)
		c.waitForPaid(order)
		if all := c.payments(order); len(all) != 1 || !all[0].Applied {
			t.Errorf("payments %+v, want one that is applied", all)
		}
	}

	t.Log("after the attempt is committed, before the session is created")
	first := c.create().id
	p.turn(knobs{API: "hung"})
	answered := open(first)
	eventually(t, "an attempt", func() bool { return attempts(`state = 'creating'`, first) == 1 })
	restart("api")
	<-answered
	p.turn(knobs{API: "up"})
	continues(first)

	t.Log("after the session is created, before its id is committed")
	second := c.create().id
	p.turn(knobs{API: "hung"})
	answered = open(second)
	eventually(t, "an attempt", func() bool { return attempts(`state = 'creating'`, second) == 1 })
	_, release := d.lock(`SELECT FROM orders WHERE id = $1 FOR UPDATE`, second)
	p.turn(knobs{API: "up"})
	eventually(t, "a session at the provider", func() bool { return len(p.ledger()) == 2 })
	api := d.running("api")
	d.kill(api...)
	// Terminate the statement of the killed API too: PostgreSQL would complete it after release.
	d.exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%payment_attempts%'`)
	<-answered
	release()
	if attempts(`state = 'creating'`, second) != 1 {
		t.Error("the session's id is committed, so the test proves nothing")
	}
	d.replace(api...)
	c.base = d.running("api")[0].url
	continues(second)

	t.Log("after the customer has paid, before the webhook")
	third := c.create().id
	pay := c.checkout(third)
	p.turn(knobs{Webhooks: "late"})
	p.pays(pay)
	d.kill(d.running("")...)
	for _, role := range []string{"api", "worker", "relay", "reconciler"} {
		d.start(role)
	}
	c.base = d.running("api")[0].url
	c.waitForPaid(third)
	p.turn(healthy)

	t.Log("after the webhook is stored, before it is worked on")
	fourth := c.create().id
	pay = c.checkout(fourth)
	others := slices.Concat(d.running("worker"), d.running("relay"), d.running("reconciler"))
	d.kill(others...)
	before := d.number(`SELECT count(*) FROM provider_events`)
	p.pays(pay)
	eventually(t, "a stored webhook", func() bool { return d.number(`SELECT count(*) FROM provider_events`) > before })
	restart("api")
	d.replace(others...)
	c.waitForPaid(fourth)

	p.checkBooks(4)
}
