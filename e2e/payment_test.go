package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// This file, fault_payment_test.go and books_payment_test.go hold everything that the tests of faults know about payments.
// The payment provider is the service's second party. A team that leaves payments out deletes the three files.

// paying is the shop with a payment provider.
var paying = func() *service {
	s := newOrders("..")
	s.rejections["/problems/checkout-refused"] = rejectedByParty
	s.party = startProvider(paymentTimes{})
	return s
}()

// The kinds of the tasks of payments.
const (
	settleKind = "payment.settle"
	refundKind = "refund.send"
)

const (
	stripeKey     = "sk_test_e2e"
	webhookSecret = "whsec_e2e"
)

// paymentPlans are the plans of visits that need the provider.
var paymentPlans = []string{
	"pay", "pay", "pay", "pay at the deadline", "pay at the deadline", "pay in the grace", "pay after the hold", "abandon",
	"abandon", "decline", "decline and pay", "cancel the checkout", "pay and cancel", "two tabs", "confirm the checkout",
	"confirm and pay", "extend and pay", "extend and pay late",
}

// paymentTimes are the times of a deployment's payments. A time that is 0 gets the default.
type paymentTimes struct {
	timeout   time.Duration // default itemTimeout
	grace     time.Duration // default 3 s
	extension time.Duration // default 2 s
}

// provider is the payment provider of a deployment: a process of the simulator. Faults of the proxy toAPI affect the
// service's calls. The test and the browsers of customers use the proxy toPages, which has no faults.
type provider struct {
	d         *deployment
	database  string   // URL
	env       []string // of the process
	toAPI     *proxy
	toPages   *proxy
	processes []*process // only the last one may run

	recorded bool // recordRemoved was called

	mu        sync.Mutex
	checkouts map[*visit]map[string]*checkout // by the id of the payment

	// The number of payments that succeeded and that were refunded, and of those refunded although they were made in
	// time. The function check sets them.
	succeeded, refunded, late int
}

// checkout is a customer's view of one payment.
type checkout struct {
	visit   *visit
	id      string        // of the payment
	url     string        // of the checkout page
	pressed bool          // the customer has pressed "Pay"
	began   time.Duration // since the load began, when the customer first pressed "Pay"
	paidAt  time.Time     // when the customer first saw that the payment succeeded; zero if the customer never did
}

// startProvider returns a function that starts the payment provider of a deployment.
func startProvider(t paymentTimes) func(d *deployment) (party, []string) {
	return func(d *deployment) (party, []string) {
		d.timeout = cmp.Or(t.timeout, d.timeout)
		d.grace = cmp.Or(t.grace, 3*time.Second)
		d.extension = cmp.Or(t.extension, 2*time.Second)
		d.plans = slices.Concat(d.plans, paymentPlans)
		d.kinds = append(d.kinds, settleKind, refundKind)
		p := newProvider(d)
		if d.keeps > 0 {
			p.recordRemoved()
		}
		return p, []string{
			envPrefix + "STRIPE_URL=http://" + p.toAPI.addr(), envPrefix + "STRIPE_KEY=" + stripeKey,
			envPrefix + "STRIPE_WEBHOOK_SECRET=" + webhookSecret, envPrefix + "PUBLIC_URL=http://127.0.0.1:1",
			envPrefix + "PAYMENT_GRACE=" + d.grace.String(), envPrefix + "CHECKOUT_TIME=0s", envPrefix + "ORDER_EXTENSION=" + d.extension.String(),
			envPrefix + "DEPLOYMENT=e2e", envPrefix + "ALLOW_TEST_PAYMENTS=true",
			envPrefix + "PAY_AT_ONCE=true", // the plans "confirm …" pay at once; a shop that is not a test does not let them
		}
	}
}

func newProvider(d *deployment) *provider {
	d.t.Helper()
	const nowhere = "127.0.0.1:1"
	p := &provider{
		d: d, database: testenv.Postgres(d.t), toAPI: newProxy(d.t, nowhere), toPages: newProxy(d.t, nowhere), checkouts: map[*visit]map[string]*checkout{},
	}
	p.env = []string{
		envDatabaseURL + "=" + p.database, envHTTPAddr + "=127.0.0.1:0",
		envPrefix + "STRIPE_KEY=" + stripeKey, envPrefix + "STRIPE_WEBHOOK_SECRET=" + webhookSecret,
		envPrefix + "WEBHOOK_URL=" + d.forwardToAPIs() + "/webhooks/stripe",
		envPrefix + "PUBLIC_URL=http://" + p.toPages.addr(),
	}
	p.start()
	return p
}

// start starts the process. A process that replaces a killed one has its database, and knobs that are not turned.
func (p *provider) start() {
	p.d.t.Helper()
	process := start(p.d.t, command(p.d.t, p.env, "provider"))
	p.processes = append(p.processes, process)
	addr := strings.TrimPrefix(process.url, "http://")
	p.toAPI.Redirect(addr)
	p.toPages.Redirect(addr)
}

// killed kills the process, and returns a function that starts another one.
func (p *provider) killed() (replace func()) {
	p.processes[len(p.processes)-1].kill()
	return p.start
}

// forwardToAPIs starts a server that forwards each request to one of the APIs that run, as a load balancer does. It
// returns the server's URL.
func (d *deployment) forwardToAPIs() string {
	balancer := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "127.0.0.1:1"
			if apis := d.running("api"); len(apis) > 0 {
				r.Out.URL.Host = strings.TrimPrefix(apis[rand.N(len(apis))].url, "http://")
			}
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), // an API that was killed does not answer
	})
	d.t.Cleanup(balancer.Close)
	return balancer.URL
}

// knobs are the provider's knobs. Those that are "" keep their value.
type knobs struct {
	API      string `json:"api,omitempty"`
	Sessions string `json:"sessions,omitempty"`
	Refunds  string `json:"refunds,omitempty"`
	Webhooks string `json:"webhooks,omitempty"`
	Key      string `json:"key,omitempty"`
	Locks    string `json:"locks,omitempty"`
	// LatencyMS is the time in milliseconds before a request is executed.
	LatencyMS *int `json:"latency_ms,omitempty"`
	// Rate and EndpointRate are the calls a second that the API answers, in all and of each operation; 0: no limit.
	Rate         *int `json:"rate,omitempty"`
	EndpointRate *int `json:"endpoint_rate,omitempty"`
}

// healthy are the knobs of a provider without faults.
var healthy = knobs{API: "up", Sessions: "accept", Refunds: "succeed", Webhooks: "normal", Key: stripeKey, Locks: "wait", LatencyMS: new(0), Rate: new(0), EndpointRate: new(0)}

// turn turns knobs.
func (p *provider) turn(k knobs) {
	p.d.t.Helper()
	body, err := json.Marshal(k)
	testenv.Must(p.d.t, err)
	p.control(http.MethodPut, "/sim/knobs", body)
}

// turned turns knobs, and returns a function that turns all knobs back.
func (p *provider) turned(k knobs) (heal func()) {
	p.turn(k)
	return func() { p.turn(healthy) }
}

// control sends a request to the provider's control API, and returns the body of the response.
func (p *provider) control(method, path string, body []byte) []byte {
	p.d.t.Helper()
	req, err := http.NewRequestWithContext(p.d.t.Context(), method, "http://"+p.toPages.addr()+path, bytes.NewReader(body))
	testenv.Must(p.d.t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(p.d.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testenv.Must(p.d.t, err)
	if resp.StatusCode/100 != 2 {
		p.d.t.Fatalf("%s %s: %d: %s", method, path, resp.StatusCode, text)
	}
	return text
}

// row is a row of the provider's ledger: a checkout session.
type row struct {
	Attempt       string `json:"client_reference_id"`
	Status        string // open, complete or expired
	PaymentStatus string `json:"payment_status"` // paid or unpaid
	AmountCents   int64  `json:"amount_cents"`
	Currency      string
	CapturedCents int64  `json:"captured_cents"`
	RefundedCents int64  `json:"refunded_cents"`
	DisputedCents int64  `json:"disputed_cents"`
	PaymentIntent string `json:"payment_intent"`
}

// ledger returns the rows of the provider's ledger, by the id of the payment.
func (p *provider) ledger() map[string]row {
	p.d.t.Helper()
	var list struct{ Payments []row }
	testenv.Must(p.d.t, json.Unmarshal(p.control(http.MethodGet, "/sim/ledger", nil), &list))
	rows := map[string]row{}
	for _, r := range list.Payments {
		if _, twice := rows[r.Attempt]; twice {
			p.d.t.Errorf("two sessions at the provider for the payment %s", r.Attempt)
		}
		rows[r.Attempt] = r
	}
	return rows
}

// payment is a payment as the REST API shows it.
type payment struct {
	ID          string
	OrderID     string `json:"order_id"`
	State       string
	Applied     bool
	AmountCents int64  `json:"amount_cents"`
	Currency    string // in upper case
	CheckoutURL string `json:"checkout_url"`
	Refund      *struct {
		State, Reason string
		AmountCents   int64 `json:"amount_cents"`
	}
}

func paymentsPath(order string) string { return "/api/orders/" + order + "/payments" }

// payments returns the payments of an order.
func (c *client) payments(order string) []payment {
	c.t.Helper()
	return decode[struct{ Items []payment }](c.t, c.get(paymentsPath(order))).Items
}

// decodeHeld reads the state of an order from a payment that was opened for it.
func decodeHeld(body []byte) (state, error) {
	var p payment
	err := json.Unmarshal(body, &p)
	return state{status: pending, id: p.OrderID, hold: held}, err
}

// visit runs a plan that needs the provider. Its customer has placed the order.
func (p *provider) visit(v *visit) {
	var concurrent sync.WaitGroup
	defer concurrent.Wait()
	deadline := p.d.timeout
	payAt := func(after time.Duration) {
		if c := p.open(v); c != nil && v.sleepUntil(after) {
			p.press(c, "pay")
		}
	}
	soon := rand.N(deadline)                                      // the plan is drawn from the seed, its exact times are not
	around := 200*time.Millisecond - rand.N(400*time.Millisecond) // before or after
	switch v.plan {
	case "pay":
		payAt(soon)
		v.call(get)
	case "pay at the deadline":
		payAt(deadline + around)
	case "pay in the grace":
		payAt(deadline + rand.N(p.d.grace))
	case "pay after the hold":
		payAt(deadline + p.d.grace + 200*time.Millisecond + around)
	case "abandon":
		p.open(v)
	case "decline", "decline and pay":
		c := p.open(v)
		if c == nil {
			return
		}
		p.press(c, "decline")
		if v.plan == "decline and pay" {
			payAt(soon) // in another tab
		}
	case "cancel the checkout":
		p.open(v)
		v.retry(cancel)
		v.call(get)
	case "pay and cancel":
		if c := p.open(v); c != nil {
			concurrent.Go(func() { v.retry(cancel) })
			p.press(c, "pay")
		}
	case "two tabs":
		concurrent.Go(func() { payAt(soon) })
		payAt(soon)
	case "confirm the checkout":
		p.open(v)
		v.retry(confirm)
	case "confirm and pay":
		concurrent.Go(func() { v.retry(confirm) })
		payAt(0)
	case "extend and pay":
		concurrent.Go(func() { v.retry(extend) })
		payAt(deadline + around)
	case "extend and pay late":
		concurrent.Go(func() { payAt(deadline + p.d.extension + around) })
		v.retry(extend)
		v.retry(extend)
	}
}

// open opens a payment of the visit's order, as often as a page tries. It returns nil if the service rejects it.
func (p *provider) open(v *visit) *checkout {
	var a answer
	known := v.repeat(func() (known bool) {
		a, known = v.send(hold, request{method: http.MethodPost, path: paymentsPath(v.itemID())}, decodeHeld)
		return known
	})
	var opened payment
	if !known || json.Unmarshal(a.body, &opened) != nil || opened.CheckoutURL == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.checkouts[v] == nil {
		p.checkouts[v] = map[string]*checkout{}
	}
	c := p.checkouts[v][opened.ID]
	if c == nil { // not opened in another tab
		c = &checkout{visit: v, id: opened.ID, url: opened.CheckoutURL}
		p.checkouts[v][opened.ID] = c
	}
	return c
}

// pageClient follows no redirects: the browser has left the provider's page when the redirect comes.
var pageClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// press opens a checkout page and presses one of its buttons, pay or decline.
func (p *provider) press(c *checkout, button string) {
	page, err := pageClient.Get(c.url)
	if err == nil {
		page.Body.Close()
	}
	if button == "pay" {
		p.mu.Lock()
		if !c.pressed {
			c.pressed, c.began = true, time.Since(c.visit.load.began)
		}
		p.mu.Unlock()
	}
	resp, err := pageClient.Post(c.url+"/"+button, "application/x-www-form-urlencoded", http.NoBody)
	if err != nil {
		return // the provider was killed; its ledger tells whether the customer has paid
	}
	resp.Body.Close()
	if button == "pay" && resp.StatusCode == http.StatusSeeOther {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.paidAt.IsZero() {
			c.paidAt = time.Now()
		}
	}
}

// isIdle reports whether no payment and no refund is under way.
func (p *provider) isIdle() bool {
	return p.d.number(`
		SELECT (SELECT count(*) FROM payment_attempts WHERE state IN ('creating', 'open') OR next_check IS NOT NULL) +
		       (SELECT count(*) FROM refunds WHERE state IN ('owed', 'sent'))`) == 0
}

// money is an amount of money in each place, in cents.
type money struct {
	captured, applied, returned int64
}

// check compares the payments of each visit with what its customer saw, and with the provider's ledger. It adds each
// success to the history of its visit.
func (p *provider) check(l *load) (figures []string) {
	t := p.d.t
	t.Helper()
	ledger := p.ledger()
	unknown := maps.Clone(ledger)
	counts := map[string]int{}
	var total money
	for _, v := range l.visits {
		if !slices.ContainsFunc(v.history, func(e entry) bool { return e.operation == hold }) {
			continue
		}
		c := *v.customer
		c.base = p.d.running("api")[0].url
		for _, pay := range p.paymentsOf(&c, v.id) {
			row, made := ledger[pay.ID]
			delete(unknown, pay.ID)
			seen := p.checkouts[v][pay.ID]
			if seen == nil {
				seen = &checkout{visit: v, id: pay.ID}
			}
			for _, wrong := range verdict(pay, row, made, *seen) {
				l.violated("%s (%s): %s: payment %+v; in the ledger %+v; paid at the checkout %v", v.key, v.plan, wrong, pay, row, !seen.paidAt.IsZero())
			}
			counts["opened"]++
			total.captured += row.CapturedCents
			total.returned += row.RefundedCents
			if pay.Applied {
				total.applied += pay.AmountCents
			}
			if pay.State != "succeeded" {
				continue
			}
			counts["succeeded"]++
			if pay.Refund != nil {
				counts[pay.Refund.Reason]++
				if !seen.paidAt.IsZero() && seen.paidAt.Before(v.since.Add(p.d.timeout-500*time.Millisecond)) {
					p.late++
				}
			}
			v.record(settle, outcome{undone: !pay.Applied}, seen.began, time.Since(l.began))
		}
	}
	for id, row := range unknown {
		l.violated("the provider has a session for a payment %s that no customer has: %+v", id, row)
	}
	p.succeeded, p.refunded = counts["succeeded"], counts["late"]+counts["duplicate"]+counts["mismatch"]
	p.checkTotal(l, total)
	p.checkReport(l, total)
	return []string{
		fmt.Sprintf("%d payments opened, %d succeeded; refunded: %d late (%d of them paid in time), %d duplicate, %d of a wrong amount",
			counts["opened"], counts["succeeded"], counts["late"], p.late, counts["duplicate"], counts["mismatch"]),
		fmt.Sprintf("money in cents: %d captured, %d applied, %d returned", total.captured, total.applied, total.returned),
	}
}

// recordRemoved makes the database record the payments of orders that are removed, as the REST API shows them.
func (p *provider) recordRemoved() {
	p.d.t.Helper()
	p.d.exec(`CREATE TABLE removed_payments (order_id uuid, payment json);
		CREATE INDEX ON removed_payments (order_id);
		CREATE FUNCTION record_payment() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO removed_payments SELECT OLD.order_id, json_build_object(
				'id', OLD.id, 'order_id', OLD.order_id, 'state', OLD.state, 'applied', OLD.applied, 'amount_cents', OLD.amount_cents,
				'currency', upper(OLD.currency), 'refund', (
					SELECT json_build_object('state', state, 'reason', reason, 'amount_cents', amount_cents)
					FROM refunds WHERE attempt_id = OLD.id ORDER BY created_at DESC, id DESC LIMIT 1));
			IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER record_payment BEFORE DELETE OR UPDATE OF order_id ON payment_attempts FOR EACH ROW EXECUTE FUNCTION record_payment()`)
	p.recorded = true
}

// paymentsOf returns the payments of an order, also if the order was removed.
func (p *provider) paymentsOf(c *client, order string) (payments []payment) {
	p.d.t.Helper()
	kept := func() bool {
		return !p.recorded || p.d.number(`SELECT count(*) FROM removed_items WHERE id = $1`, order) == 0
	}
	if kept() {
		if payments = c.payments(order); kept() { // it was not removed meanwhile
			return payments
		}
	}
	payments = nil
	text := testenv.Query[string](p.d.t, p.d.db, `SELECT coalesce(json_agg(payment), '[]')::text FROM removed_payments WHERE order_id = $1`, order)
	testenv.Must(p.d.t, json.Unmarshal([]byte(text), &payments))
	return payments
}

// verdict returns what is wrong with a payment after everything has settled: a success ends in goods or in a refund,
// never in both and never in neither. made tells whether the provider has a session of the payment.
func verdict(p payment, r row, made bool, c checkout) (wrong []string) {
	check := func(right bool, text string) {
		if !right {
			wrong = append(wrong, text)
		}
	}
	succeeded, kept := p.State == "succeeded", int64(0)
	if p.Applied {
		kept = p.AmountCents
	}
	check(succeeded || p.State == "closed", "it has not ended")
	check(succeeded || c.paidAt.IsZero(), "its customer has paid, and the service does not know")
	check(!succeeded || c.pressed, "it succeeded, but its customer did not pay")
	check(succeeded == (p.Applied || p.Refund != nil), "a success, and only a success, is applied or refunded")
	check(!p.Applied || p.Refund == nil, "it is both applied and refunded")
	check(p.Refund == nil || p.Refund.State == "confirmed" && p.Refund.AmountCents == r.CapturedCents, "its refund is not confirmed, or not whole")
	check(made || !succeeded && c.url == "", "the provider does not know it")
	check(succeeded == (r.PaymentStatus == "paid"), "the service and the provider disagree whether it succeeded")
	check(succeeded == (r.CapturedCents > 0), "a success, and only a success, captures money")
	check(c.url == "" || r.Status != "open", "its session is still open")
	check(!made || r.AmountCents == p.AmountCents && strings.EqualFold(r.Currency, p.Currency), "the amounts or currencies differ")
	check(r.CapturedCents-r.RefundedCents-r.DisputedCents == kept, "captured minus refunded minus disputed is not the total if it is applied, and else 0")
	return wrong
}

// checkTotal compares the money that moved with the figures that the service shows to operators.
func (p *provider) checkTotal(l *load, total money) {
	p.d.t.Helper()
	type amounts struct {
		Currency string
		Captured int64 `json:"captured_cents"`
		Applied  int64 `json:"applied_cents"`
		Returned int64 `json:"returned_cents"`
		Owed     int64 `json:"owed_cents"`
	}
	shown := decode[struct{ Money []amounts }](p.d.t, p.d.running("api")[0].operator().get("/ops/api/payments")).Money
	var want []amounts
	if total.captured > 0 {
		want = []amounts{{"EUR", total.captured, total.applied, total.returned, 0}}
	}
	if !slices.Equal(shown, want) {
		l.violated("GET /ops/api/payments shows the money %+v, want %+v", shown, want)
	}
	if total.captured != total.applied+total.returned {
		l.violated("%d cents captured, but %d applied and %d returned", total.captured, total.applied, total.returned)
	}
}

// TestPaymentVerdicts checks that each wrong end of a payment is found.
func TestPaymentVerdicts(t *testing.T) {
	const total = 1290
	type facts struct {
		p    payment
		r    row
		made bool
		c    checkout
	}
	refund := func(f *facts, state string) {
		f.p.Refund = &struct {
			State, Reason string
			AmountCents   int64 `json:"amount_cents"`
		}{state, "late", total}
	}
	paid := facts{
		payment{State: "succeeded", Applied: true, AmountCents: total, Currency: "EUR"},
		row{Status: "complete", PaymentStatus: "paid", AmountCents: total, Currency: "eur", CapturedCents: total}, true,
		checkout{url: "http://…", pressed: true, paidAt: time.Now()},
	}
	unpaid := facts{
		payment{State: "closed", AmountCents: total, Currency: "EUR"},
		row{Status: "expired", PaymentStatus: "unpaid", AmountCents: total, Currency: "eur"}, true, checkout{url: "http://…"},
	}
	for name, test := range map[string]struct {
		from   facts
		change func(f *facts)
		right  bool
	}{
		"applied":               {paid, func(*facts) {}, true},
		"answer of pay lost":    {paid, func(f *facts) { f.c.paidAt = time.Time{} }, true},
		"closed":                {unpaid, func(*facts) {}, true},
		"never made":            {unpaid, func(f *facts) { f.made, f.r, f.c = false, row{}, checkout{} }, true},
		"answer of create lost": {unpaid, func(f *facts) { f.c, f.r.Status = checkout{}, "open" }, true},
		"refunded": {paid, func(f *facts) {
			refund(f, "confirmed")
			f.p.Applied, f.r.RefundedCents = false, total
		}, true},
		"neither applied nor refunded": {paid, func(f *facts) { f.p.Applied = false }, false},
		"both applied and refunded": {paid, func(f *facts) {
			refund(f, "confirmed")
			f.r.RefundedCents = total
		}, false},
		"refunded, but not at the provider": {paid, func(f *facts) {
			refund(f, "confirmed")
			f.p.Applied = false
		}, false},
		"refund not confirmed": {paid, func(f *facts) {
			refund(f, "sent")
			f.p.Applied, f.r.RefundedCents = false, total
		}, false},
		"applied, but refunded at the provider": {paid, func(f *facts) { f.r.RefundedCents = total }, false},
		"applied, but disputed":                 {paid, func(f *facts) { f.r.DisputedCents = total }, false},
		"paid, but closed":                      {paid, func(f *facts) { f.p.State, f.p.Applied = "closed", false }, false},
		"success without a customer":            {paid, func(f *facts) { f.c.pressed = false }, false},
		"success without money":                 {unpaid, func(f *facts) { f.p.State, f.p.Applied = "succeeded", true }, false},
		"another amount":                        {paid, func(f *facts) { f.r.AmountCents, f.r.CapturedCents = 1, 1 }, false},
		"still open":                            {unpaid, func(f *facts) { f.p.State = "open" }, false},
		"still open at the provider":            {unpaid, func(f *facts) { f.r.Status = "open" }, false},
	} {
		f := test.from
		test.change(&f)
		if wrong := verdict(f.p, f.r, f.made, f.c); (wrong == nil) != test.right {
			t.Errorf("%s: wrong is %q, want right %v", name, wrong, test.right)
		}
	}
}
