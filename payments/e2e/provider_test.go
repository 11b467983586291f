package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
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

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/paymenttest"
)

// shop is the shop with a payment provider.
var shop = func() *faulttest.Service {
	s := paymenttest.Service("../..")
	s.Party = startProvider(paymentTimes{})
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
	"pay", "pay", "pay", "pay at the deadline", "pay at the deadline", "pay at the deadline", "pay in the grace",
	"pay at the end of the hold", "pay after the hold", "open at the deadline", "open at the deadline", "open late",
	"abandon", "abandon", "decline", "decline and pay", "cancel the checkout", "pay and cancel", "two tabs",
	"confirm the checkout", "confirm and pay", "extend and pay", "extend and pay late",
}

// paymentTimes are the times of a deployment's payments. A time that is 0 gets the default.
type paymentTimes struct {
	timeout   time.Duration // default faulttest.RowTimeout
	grace     time.Duration // default 3 s
	extension time.Duration // default 2 s
}

// provider is the payment provider of a deployment: a process of the simulator. Faults of the proxy toAPI affect the
// service's calls. The test and the browsers of customers use the proxy toPages, which has no faults.
type provider struct {
	d         *faulttest.Deployment
	database  string   // URL
	env       []string // of the process
	toAPI     *faulttest.Proxy
	toPages   *faulttest.Proxy
	processes []*faulttest.Process // only the last one may run

	mu        sync.Mutex
	checkouts map[*faulttest.Visit]map[string]*checkout // by the id of the payment

	// The number of payments that succeeded and that were refunded, and of those refunded although they were made in
	// time. The function check sets them.
	succeeded, refunded, late int
}

// checkout is a customer's view of one payment.
type checkout struct {
	visit   *faulttest.Visit
	id      string        // of the payment
	url     string        // of the checkout page
	pressed bool          // the customer has pressed "Pay"
	began   time.Duration // since the load began, when the customer first pressed "Pay"
	paidAt  time.Time     // when the customer first saw that the payment succeeded; zero if the customer never did
}

// startProvider returns a function that starts the payment provider of a deployment.
func startProvider(t paymentTimes) func(d *faulttest.Deployment) (faulttest.Party, []string) {
	return func(d *faulttest.Deployment) (faulttest.Party, []string) {
		d.Timeout = cmp.Or(t.timeout, d.Timeout)
		d.Grace = cmp.Or(t.grace, 3*time.Second)
		d.Extension = cmp.Or(t.extension, 2*time.Second)
		d.Plans = slices.Concat(d.Plans, paymentPlans, paymentPlans) // most visits need the provider
		d.Kinds = append(d.Kinds, settleKind, refundKind)
		p := newProvider(d)
		return p, []string{
			faulttest.EnvPrefix + "STRIPE_URL=http://" + p.toAPI.Addr(), faulttest.EnvPrefix + "STRIPE_KEY=" + stripeKey,
			faulttest.EnvPrefix + "STRIPE_WEBHOOK_SECRET=" + webhookSecret, faulttest.EnvPrefix + "PUBLIC_URL=http://127.0.0.1:1",
			faulttest.EnvPrefix + "PAYMENT_GRACE=" + d.Grace.String(), faulttest.EnvPrefix + "CHECKOUT_TIME=0s",
			faulttest.EnvPrefix + "DEPLOYMENT=e2e", faulttest.EnvPrefix + "ALLOW_TEST_PAYMENTS=true",
			// the plans "confirm …" pay at once; a shop that is not a test does not let them
			faulttest.EnvPrefix + "PAY_AT_ONCE=true",
		}
	}
}

func newProvider(d *faulttest.Deployment) *provider {
	d.T.Helper()
	const nowhere = "127.0.0.1:1"
	p := &provider{
		d: d, database: testenv.Postgres(d.T), toAPI: faulttest.NewProxy(d.T, nowhere), toPages: faulttest.NewProxy(d.T, nowhere), checkouts: map[*faulttest.Visit]map[string]*checkout{},
	}
	p.env = []string{
		faulttest.EnvDatabaseURL + "=" + p.database, faulttest.EnvHTTPAddr + "=127.0.0.1:0",
		faulttest.EnvPrefix + "STRIPE_KEY=" + stripeKey, faulttest.EnvPrefix + "STRIPE_WEBHOOK_SECRET=" + webhookSecret,
		faulttest.EnvPrefix + "WEBHOOK_URL=" + forwardToAPIs(d) + "/webhooks/stripe",
		faulttest.EnvPrefix + "PUBLIC_URL=http://" + p.toPages.Addr(),
	}
	p.start()
	return p
}

// start starts the process. A process that replaces a killed one has its database, and knobs that are not turned.
func (p *provider) start() {
	p.d.T.Helper()
	process := p.d.Service.Start(p.d.T, p.d.Service.Command(p.d.T, p.env, "provider"))
	p.processes = append(p.processes, process)
	addr := strings.TrimPrefix(process.URL, "http://")
	p.toAPI.Redirect(addr)
	p.toPages.Redirect(addr)
}

// killed kills the process, and returns a function that starts another one.
func (p *provider) killed() (replace func()) {
	p.processes[len(p.processes)-1].Kill()
	return p.start
}

// forwardToAPIs starts a server that forwards each request to one of the APIs that run, as a load balancer does. It
// returns the server's URL.
func forwardToAPIs(d *faulttest.Deployment) string {
	balancer := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "127.0.0.1:1"
			if apis := d.Running("api"); len(apis) > 0 {
				r.Out.URL.Host = strings.TrimPrefix(apis[rand.N(len(apis))].URL, "http://")
			}
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), // an API that was killed does not answer
	})
	d.T.Cleanup(balancer.Close)
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
	// Denied are the operations that the key may not do; nil: no change.
	Denied *string `json:"denied,omitempty"`
	// LatencyMS is the time in milliseconds before a request is executed.
	LatencyMS *int `json:"latency_ms,omitempty"`
	// Rate and EndpointRate are the calls a second that the API answers, in all and of each operation; 0: no limit.
	Rate         *int `json:"rate,omitempty"`
	EndpointRate *int `json:"endpoint_rate,omitempty"`
}

// healthy are the knobs of a provider without faults.
var healthy = knobs{API: "up", Sessions: "accept", Refunds: "succeed", Webhooks: "normal", Key: stripeKey, Locks: "wait", Denied: new(""), LatencyMS: new(0), Rate: new(0), EndpointRate: new(0)}

// turn turns knobs.
func (p *provider) turn(k knobs) {
	p.d.T.Helper()
	body, err := json.Marshal(k)
	testenv.Must(p.d.T, err)
	p.control(http.MethodPut, "/sim/knobs", string(body))
}

// turned turns knobs, and returns a function that turns all knobs back.
func (p *provider) turned(k knobs) (heal func()) {
	p.turn(k)
	return func() { p.turn(healthy) }
}

// control sends a request to the provider's control API, and returns the body of the response.
func (p *provider) control(method, path, body string) []byte {
	p.d.T.Helper()
	return paymenttest.Control(p.d.T, "http://"+p.toPages.Addr(), method, path, body)
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
	p.d.T.Helper()
	var list struct{ Payments []row }
	testenv.Must(p.d.T, json.Unmarshal(p.control(http.MethodGet, "/sim/ledger", ""), &list))
	rows := map[string]row{}
	for _, r := range list.Payments {
		if _, twice := rows[r.Attempt]; twice {
			p.d.T.Errorf("two sessions at the provider for the payment %s", r.Attempt)
		}
		rows[r.Attempt] = r
	}
	return rows
}

// decodeHeld reads the state of an order from a payment that was opened for it.
func decodeHeld(body []byte) (faulttest.State, error) {
	var p paymenttest.Payment
	err := json.Unmarshal(body, &p)
	return faulttest.State{Status: faulttest.Pending, ID: p.OrderID, Hold: faulttest.Held}, err
}

// Visit runs a plan that needs the provider. Its customer has placed the order.
func (p *provider) Visit(v *faulttest.Visit) {
	var concurrent sync.WaitGroup
	defer concurrent.Wait()
	deadline := p.d.Timeout
	payAt := func(after time.Duration) {
		if c := p.open(v); c != nil && v.SleepUntil(after) {
			p.press(c, "pay")
		}
	}
	// the plan is drawn from the seed, its exact times are not
	soon := rand.N(deadline)
	around := 200*time.Millisecond - rand.N(400*time.Millisecond) // before or after
	switch v.Plan {
	case "pay":
		payAt(soon)
		v.Call(faulttest.Get)
	case "pay at the deadline":
		payAt(deadline + around)
	case "pay in the grace":
		payAt(deadline + rand.N(p.d.Grace))
	case "pay at the end of the hold":
		payAt(deadline + p.d.Grace + around)
	case "pay after the hold":
		payAt(deadline + p.d.Grace + 200*time.Millisecond + around)
	case "open at the deadline", "open late":
		if v.Plan == "open late" {
			around = rand.N(time.Second)
		}
		if v.SleepUntil(deadline + around) {
			payAt(0)
		}
	case "abandon":
		p.open(v)
	case "decline", "decline and pay":
		c := p.open(v)
		if c == nil {
			return
		}
		p.press(c, "decline")
		if v.Plan == "decline and pay" {
			payAt(soon) // in another tab
		}
	case "cancel the checkout":
		p.open(v)
		v.Call(faulttest.Cancel) // rejected
		p.cancel(v)
		v.Call(faulttest.Get)
	case "pay and cancel":
		if c := p.open(v); c != nil {
			concurrent.Go(func() { p.cancel(v) })
			p.press(c, "pay")
		}
	case "two tabs":
		concurrent.Go(func() { payAt(soon) })
		payAt(soon)
	case "confirm the checkout":
		p.open(v)
		v.Retry(faulttest.Confirm)
	case "confirm and pay":
		concurrent.Go(func() { v.Retry(faulttest.Confirm) })
		payAt(0)
	case "extend and pay":
		concurrent.Go(func() { v.Retry(faulttest.Extend) })
		payAt(deadline + around)
	case "extend and pay late":
		concurrent.Go(func() { payAt(deadline + faulttest.MaxExtensions*p.d.Extension + around) })
		for range faulttest.MaxExtensions + 1 { // the last one is rejected
			v.Retry(faulttest.Extend)
		}
	}
}

// open opens a payment of the visit's order, as often as a page tries. It returns nil if the service rejects it.
func (p *provider) open(v *faulttest.Visit) *checkout {
	var a faulttest.Answer
	known := v.Repeat(func() (known bool) {
		a, known = v.Send(faulttest.Hold, faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(v.RowID())}, decodeHeld)
		return known
	})
	var opened paymenttest.Payment
	if !known || json.Unmarshal(a.Body, &opened) != nil || opened.CheckoutURL == "" {
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

// cancel closes the checkout of the visit's order, and cancels the order, as a page does.
func (p *provider) cancel(v *faulttest.Visit) {
	closing := faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(v.RowID()) + "/close"}
	v.Repeat(func() bool {
		_, known := v.Send(faulttest.Close, closing, func([]byte) (faulttest.State, error) {
			return faulttest.State{ID: v.RowID()}, nil
		})
		return known
	})
	v.Retry(faulttest.Cancel)
}

// press opens a checkout page and presses one of its buttons, pay or decline.
func (p *provider) press(c *checkout, button string) {
	page, err := paymenttest.Browser.Get(c.url)
	if err == nil {
		page.Body.Close()
	}
	if button == "pay" {
		p.mu.Lock()
		if !c.pressed {
			c.pressed, c.began = true, time.Since(c.visit.Load.Began)
		}
		p.mu.Unlock()
	}
	resp, err := paymenttest.Browser.Post(c.url+"/"+button, "application/x-www-form-urlencoded", http.NoBody)
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

// Idle reports whether no payment and no refund is under way.
func (p *provider) Idle() bool {
	return p.d.Number(`
		SELECT (SELECT count(*) FROM payment_attempts WHERE state IN ('creating', 'open') OR next_check IS NOT NULL) +
		       (SELECT count(*) FROM refunds WHERE state IN ('owed', 'sent'))`) == 0
}

// money is an amount of money in each place, in cents.
type money struct {
	captured, applied, returned int64
}

// Check compares the payments of each visit with what its customer saw, and with the provider's ledger. It adds each
// success to the history of its visit.
func (p *provider) Check(l *faulttest.Load) (figures []string) {
	t := p.d.T
	t.Helper()
	ledger := p.ledger()
	unknown := maps.Clone(ledger)
	counts := map[string]int{}
	var total money
	for _, v := range l.Visits {
		if !slices.ContainsFunc(v.History, func(e faulttest.Entry) bool { return e.Operation == faulttest.Hold }) {
			continue
		}
		c := *v.Customer
		c.Base = p.d.Running("api")[0].URL
		for _, pay := range paymenttest.Payments(&c, v.ID) {
			row, made := ledger[pay.ID]
			delete(unknown, pay.ID)
			seen := p.checkouts[v][pay.ID]
			if seen == nil {
				seen = &checkout{visit: v, id: pay.ID}
			}
			for _, wrong := range verdict(pay, row, made, *seen) {
				l.Violated("%s (%s): %s: payment %+v; in the ledger %+v; paid at the checkout %v", v.Key, v.Plan, wrong, pay, row, !seen.paidAt.IsZero())
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
				if !seen.paidAt.IsZero() && seen.paidAt.Before(v.Since.Add(p.d.Timeout-500*time.Millisecond)) {
					p.late++
				}
			}
			v.Record(faulttest.Settle, faulttest.Response{Undone: !pay.Applied}, seen.began, time.Since(l.Began))
		}
	}
	for id, row := range unknown {
		l.Violated("the provider has a session for a payment %s that no customer has: %+v", id, row)
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

// verdict returns what is wrong with a payment after everything has settled: a success ends in goods or in a refund,
// never in both and never in neither. made tells whether the provider has a session of the payment.
func verdict(p paymenttest.Payment, r row, made bool, c checkout) (wrong []string) {
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
func (p *provider) checkTotal(l *faulttest.Load, total money) {
	p.d.T.Helper()
	type amounts struct {
		Currency string
		Captured int64 `json:"captured_cents"`
		Applied  int64 `json:"applied_cents"`
		Returned int64 `json:"returned_cents"`
		Owed     int64 `json:"owed_cents"`
	}
	shown := faulttest.Decode[struct{ Money []amounts }](p.d.T, p.d.Running("api")[0].Operator().Get("/ops/api/payments")).Money
	var want []amounts
	if total.captured > 0 {
		want = []amounts{{"EUR", total.captured, total.applied, total.returned, 0}}
	}
	if !slices.Equal(shown, want) {
		l.Violated("GET /ops/api/payments shows the money %+v, want %+v", shown, want)
	}
	if total.captured != total.applied+total.returned {
		l.Violated("%d cents captured, but %d applied and %d returned", total.captured, total.applied, total.returned)
	}
}

// TestPaymentVerdicts checks that each wrong end of a payment is found.
func TestPaymentVerdicts(t *testing.T) {
	const total = 1290
	type facts struct {
		p    paymenttest.Payment
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
		paymenttest.Payment{State: "succeeded", Applied: true, AmountCents: total, Currency: "EUR"},
		row{Status: "complete", PaymentStatus: "paid", AmountCents: total, Currency: "eur", CapturedCents: total}, true,
		checkout{url: "http://…", pressed: true, paidAt: time.Now()},
	}
	unpaid := facts{
		paymenttest.Payment{State: "closed", AmountCents: total, Currency: "EUR"},
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
