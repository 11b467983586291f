package service

import (
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/loadtest"
	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/paymenttest"
)

var (
	paymentCheckouts = flag.Int("payment.checkouts", 100,
		"the number of checkouts of BenchmarkPaymentDeadline")
	paymentLead = flag.Duration("payment.lead", 5*time.Second,
		"how long before the deadline the customers of BenchmarkPaymentDeadline pay")
	paymentWebhooks = flag.String("payment.webhooks", "normal",
		"the value of the knob webhooks in BenchmarkPaymentDeadline")
	paymentFor = flag.Duration("payment.for", 20*time.Second,
		"how long customers arrive in BenchmarkPaymentLoad")
	paymentTimeout = flag.Duration("payment.timeout", 15*time.Second,
		"the time to pay an order of BenchmarkPaymentLoad")
	paymentRate = flag.Int("payment.rate", 100,
		"the calls a second that the provider accepts in all: 100 as in live mode, 25 as in test mode")
	paymentOutage = flag.Duration("payment.outage", 10*time.Second,
		"how long the outage of BenchmarkPaymentOutage takes")
	paymentFault = flag.String("payment.fault", "down",
		"the value of the knob api in the outage of BenchmarkPaymentOutage")
)

// The provider of the benchmarks of payments.
const (
	paymentEndpointRate = 25  // calls a second of one operation, as at Stripe
	paymentLatency      = 800 // of a call, in milliseconds: a provider that is slow, but works
)

// costAtProvider returns what orders cost that are paid at the provider, so many a second, from the requests that open
// their checkouts to the booking. The limits of the account allow them.
func costAtProvider(b *testing.B, rate int) cost {
	const lasting = 20 * time.Second
	addr := faulttest.FreeAddress(b)
	provider, env := paymenttest.StartSimulator(b, paid, addr)
	limits := [2]int{max(*paymentRate, 4*rate), max(paymentEndpointRate, 2*rate)} // calls a second, in all and of one operation
	env = append(env, fmt.Sprintf("%sSTRIPE_RATE=%d", faulttest.EnvPrefix, limits[0]),
		fmt.Sprintf("%sSTRIPE_ENDPOINT_RATE=%d", faulttest.EnvPrefix, limits[1]))
	s := loadtest.NewSite(b, paid, 1000, env...)
	site := &paymenttest.Site{Site: s.Site, Shop: s.Process, Provider: provider}
	shop := &paymentBench{Site: site, b: b, product: s.Products[0]}
	shop.Control(b, http.MethodPut, "/sim/knobs", fmt.Sprintf(`{"rate": %d, "endpoint_rate": %d}`, limits[0], limits[1]))
	arrivals := loadtest.Steady(rate, lasting)
	visits := make([]*checkoutVisit, len(arrivals))
	shop.concurrently(len(visits), func(i int) { visits[i] = shop.place() })
	s.AwaitRelay()
	c := costOf(s, func() (orders int) {
		var payments sync.WaitGroup
		began := time.Now()
		for i, at := range arrivals {
			faulttest.Sleep(b.Context(), time.Until(began.Add(at)))
			payments.Go(func() {
				visits[i].open()
				visits[i].pay()
			})
		}
		payments.Wait()
		s.AwaitEnds(faulttest.Patience)
		return testenv.Query[int](b, s.DB, `SELECT count(*) FROM orders WHERE status = 'paid'`)
	})
	if c.orders != len(visits) {
		b.Fatalf("%d of %d orders were paid", c.orders, len(visits))
	}
	c.network = 0 // has that of the simulator and its database
	return c
}

// BenchmarkPaymentDeadline opens checkouts with one deadline, as many a second as the provider allows. A tenth of the
// customers pay shortly before the deadline, all at once. The provider limits its calls, and is slow. Every payment
// must pay its order, and the checkouts must be closed within the grace.
func BenchmarkPaymentDeadline(b *testing.B) {
	for b.Loop() {
		n, payers := *paymentCheckouts, *paymentCheckouts/10
		opening := time.Duration(n) * time.Second / paymentEndpointRate
		s := newPaymentBench(b, opening*5/4+*paymentLead+10*time.Second)
		s.Turn(b, "webhooks", *paymentWebhooks)
		all := make([]*checkoutVisit, n)
		s.concurrently(n, func(i int) { all[i] = s.place() })
		deadline := s.oneDeadline()
		refused := new(atomic.Int64)
		s.concurrently(n, func(i int) { refused.Add(int64(all[i].openAndRepeat())) })
		if time.Until(deadline) < *paymentLead {
			b.Fatalf("the checkouts were open %v before the deadline, want %v: the machine is too slow", time.Until(deadline), *paymentLead)
		}
		faulttest.Sleep(b.Context(), time.Until(deadline)-*paymentLead)
		before := s.usedCalls()
		s.concurrently(payers, func(i int) { all[i].pay() })
		faulttest.Sleep(b.Context(), time.Until(deadline))
		atDeadline := s.usedCalls()
		s.awaitEnd()

		ends := s.ends(all)
		s.report(fmt.Sprintf("%d checkouts with one deadline, %d paid %v before it; creates refused: %d, %d by the limits",
			n, payers, *paymentLead, refused.Load(), s.busy()), [][]any{
			{"paid by", "orders paid", "refunded", "until paid: p50", "max", "closed", "after the deadline: p50", "max", "cancelled unclosed"},
			{payers, len(ends.paid), ends.refunded, short(faulttest.Percentile(ends.paid, 50)), short(faulttest.Percentile(ends.paid, 100)),
				len(ends.late), short(faulttest.Percentile(ends.late, 50)), short(faulttest.Percentile(ends.late, 100)), ends.unclosed},
			{"calls:", "create", "confirm", "expire", "poll", "429"},
			append([]any{"opening"}, before.cells()...),
			append([]any{"until the deadline"}, atDeadline.since(before).cells()...),
			append([]any{"closing"}, s.usedCalls().since(atDeadline).cells()...),
		})
		if ends.refunded > 0 || len(ends.paid) != payers || ends.unclosed > 0 {
			b.Errorf("%d of %d payments paid their orders, %d were refunded, and %d orders were cancelled before their checkouts were closed; want %d, 0 and 0",
				len(ends.paid), payers, ends.refunded, ends.unclosed, payers)
		}
		s.CheckHealth(b)
	}
}

// BenchmarkPaymentLoad has ten customers a second open a checkout. Of four, two pay, one cancels the order, each before
// the first poll, and one walks away. So all calls to confirm are those of customers who pay, and all polls those of
// customers who walk away.
func BenchmarkPaymentLoad(b *testing.B) {
	const rate = 10 // customers a second
	for b.Loop() {
		s := newPaymentBench(b, *paymentTimeout)
		arrivals := loadtest.Steady(rate, *paymentFor)
		all := make([]*checkoutVisit, len(arrivals))
		var visits sync.WaitGroup
		began, lag := time.Now(), time.Duration(0)
		for i, at := range arrivals {
			faulttest.Sleep(b.Context(), time.Until(began.Add(at)))
			lag = max(lag, time.Since(began.Add(at)))
			visits.Go(func() {
				v := s.place()
				all[i] = v
				if v.open() != http.StatusCreated {
					return
				}
				faulttest.Sleep(b.Context(), time.Duration(2+rand.N(5))*time.Second)
				switch i % 4 {
				case 0, 1:
					v.pay()
				case 2:
					v.cancel()
				}
			})
		}
		visits.Wait()
		s.stopIfFailed()
		s.awaitEnd()

		refused, cancelled, paid := 0, 0, 0
		var opened []time.Duration
		for _, v := range all {
			switch {
			case v.status != http.StatusCreated:
				refused++
				continue
			case !v.paidAt.IsZero():
				paid++
			case v.cancelled:
				cancelled++
			}
			opened = append(opened, v.took)
		}
		ends, used := s.ends(all), s.usedCalls()
		abandoned := len(opened) - paid - cancelled
		per := func(calls, checkouts int) string {
			return fmt.Sprintf("%.2f", float64(calls)/float64(max(checkouts, 1)))
		}
		s.report(fmt.Sprintf("%d checkouts a second for %v, orders time out after %v: %d paid, %d cancelled, %d abandoned; the generator was at most %v late",
			rate, *paymentFor, *paymentTimeout, paid, cancelled, abandoned, short(lag)), [][]any{
			{"create refused (by the limits)", "until open: p50", "p99", "max", "until paid: p50", "p99", "max", "refunded", "closed late: p99", "max", "unclosed"},
			{
				fmt.Sprintf("%d (%d)", refused, s.busy()), short(faulttest.Percentile(opened, 50)), short(faulttest.Percentile(opened, 99)), short(faulttest.Percentile(opened, 100)),
				short(faulttest.Percentile(ends.paid, 50)), short(faulttest.Percentile(ends.paid, 99)), short(faulttest.Percentile(ends.paid, 100)), ends.refunded,
				short(faulttest.Percentile(ends.late, 99)), short(faulttest.Percentile(ends.late, 100)), ends.unclosed,
			},
			{"calls:", "create", "confirm", "expire", "poll", "429"},
			append([]any{"all"}, used.cells()...),
			{"a paid checkout", per(used.create, len(all)), per(used.confirm, paid), 0, 0},
			{"a cancelled one", per(used.create, len(all)), 0, per(used.expire, abandoned+cancelled), 0},
			{"an abandoned one", per(used.create, len(all)), 0, per(used.expire, abandoned+cancelled), per(used.poll, abandoned)},
		})
		if refused > 0 || len(ends.paid) != paid || ends.refunded > 0 {
			b.Errorf("%d creates were refused, %d of %d payments paid their orders, and %d were refunded; want 0, all and 0",
				refused, len(ends.paid), paid, ends.refunded)
		}
		s.CheckHealth(b)
	}
}

// BenchmarkPaymentOutage has customers try every second to open a checkout while the provider is away. When it is back,
// they must get a checkout, and pay.
func BenchmarkPaymentOutage(b *testing.B) {
	const customers = 20
	for b.Loop() {
		s := newPaymentBench(b, *paymentOutage+2*time.Minute)
		s.Turn(b, "api", *paymentFault)
		over := time.Now().Add(*paymentOutage)
		var mu sync.Mutex
		var opened []time.Duration // from the end of the outage
		tries := 0
		var visits sync.WaitGroup
		all := make([]*checkoutVisit, customers)
		for i := range all {
			visits.Go(func() {
				v := s.place()
				all[i] = v
				n := v.openAndRepeat()
				mu.Lock()
				opened, tries = append(opened, time.Since(over)), tries+n
				mu.Unlock()
				v.pay()
			})
		}
		faulttest.Sleep(b.Context(), time.Until(over))
		s.Turn(b, "api", "up")
		visits.Wait()
		s.stopIfFailed()
		s.awaitEnd()
		var most, attempts int
		testenv.Must(b, s.db.QueryRowContext(b.Context(), `
			SELECT max(n), sum(n) FROM (SELECT count(*) AS n FROM payment_attempts GROUP BY order_id) AS orders`).Scan(&most, &attempts))
		ends := s.ends(all)
		s.report(fmt.Sprintf("%d customers try every second to pay in an outage (%s) of %v", customers, *paymentFault, *paymentOutage), [][]any{
			{"tries in vain", "attempts", "most of an order", "open after the outage: p50", "max", "orders paid", "until paid: max", "refunded"},
			{
				tries, attempts, most, short(faulttest.Percentile(opened, 50)), short(faulttest.Percentile(opened, 100)), len(ends.paid),
				short(faulttest.Percentile(ends.paid, 100)), ends.refunded,
			},
		})
		if len(ends.paid) != customers {
			b.Errorf("%d of %d orders were paid", len(ends.paid), customers)
		}
		s.CheckHealth(b)
	}
}

// paymentBench is a shop with a provider that limits its calls, and takes its time for each.
type paymentBench struct {
	*paymenttest.Site
	b       *testing.B
	db      *sql.DB
	product string
	began   time.Time
}

// newPaymentBench starts a shop whose orders time out after a time. Everything else is as in production.
func newPaymentBench(b *testing.B, timeout time.Duration) *paymentBench {
	b.Helper()
	s := &paymentBench{b: b, began: time.Now()}
	s.Site = paymenttest.NewSite(b, paid, paid.TimeoutVariable()+"="+timeout.String(),
		faulttest.EnvSchedule+"=@every 30s", faulttest.EnvLookahead+"=2m",
		fmt.Sprintf("%sSTRIPE_RATE=%d", faulttest.EnvPrefix, *paymentRate))
	s.db = faulttest.OpenDatabase(b, s.Database)
	s.product = loadtest.InsertProducts(b, s.db, 1)[0]
	s.Control(b, http.MethodPut, "/sim/knobs", fmt.Sprintf(`{"rate": %d, "endpoint_rate": %d, "latency_ms": %d}`,
		*paymentRate, paymentEndpointRate, paymentLatency))
	return s
}

// concurrently calls do with the numbers 0 to n-1. The number of calls at the same time is more than the provider's
// limit and latency let through, and few enough that no create waits for its turn in vain.
func (s *paymentBench) concurrently(n int, do func(i int)) {
	var calls errgroup.Group
	calls.SetLimit(40)
	for i := range n {
		calls.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = calls.Wait() // no call returns an error
	s.stopIfFailed()
}

// stopIfFailed ends the benchmark if a customer could not do what it had to.
func (s *paymentBench) stopIfFailed() {
	s.b.Helper()
	if s.b.Failed() {
		s.b.FailNow()
	}
}

// checkoutVisit is an order whose customer opens a checkout.
type checkoutVisit struct {
	bench     *paymentBench
	customer  *faulttest.Client
	order     string
	url       string        // of the checkout
	status    int           // of the last answer to the request that opens the checkout
	took      time.Duration // of that request
	cancelled bool
	paidAt    time.Time // when the customer pressed "Pay" with success
}

// place places an order of a new customer.
func (s *paymentBench) place() *checkoutVisit {
	v := &checkoutVisit{bench: s, customer: s.Shop.SignUp()}
	faulttest.Eventually(s.b, "an order is placed", func() bool {
		a := v.customer.Send(orders.Create(string(loadtest.OrderBody(nil, s.product)), ""))
		if a.Status == http.StatusCreated {
			v.order = faulttest.Decode[shoptest.Order](s.b, a).ID
		}
		return v.order != ""
	})
	return v
}

// open opens the checkout, and returns the status of the answer.
func (v *checkoutVisit) open() int {
	a := v.customer.Send(faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(v.order)})
	v.status, v.took = a.Status, a.Took
	if a.Status == http.StatusCreated || a.Status == http.StatusOK {
		v.url = faulttest.Decode[paymenttest.Payment](v.bench.b, a).CheckoutURL
	}
	return a.Status
}

// openAndRepeat opens the checkout, and repeats that after a second as often as there is none. It returns the number of
// requests that opened none. It gives up once the order cannot be paid any more.
func (v *checkoutVisit) openAndRepeat() (failed int) {
	for {
		if status := v.open(); v.url != "" || status == http.StatusConflict {
			return failed
		}
		failed++
		faulttest.Sleep(v.bench.b.Context(), time.Second)
	}
}

// pay presses "Pay" on the page of the checkout.
func (v *checkoutVisit) pay() {
	if v.url == "" {
		return
	}
	resp, err := paymenttest.Browser.Post(v.url+"/pay", "application/x-www-form-urlencoded", http.NoBody)
	testenv.Must(v.bench.b, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSeeOther {
		v.bench.b.Errorf("a payment was answered with %d, want 303", resp.StatusCode)
		return
	}
	v.paidAt = time.Now()
}

func (v *checkoutVisit) cancel() {
	v.cancelled = v.customer.Send(orders.Cancel(v.order, "")).Status == http.StatusAccepted
}

// oneDeadline gives all orders the latest of their deadlines, and returns it. They have no checkout yet.
func (s *paymentBench) oneDeadline() (deadline time.Time) {
	s.b.Helper()
	testenv.Must(s.b, s.db.QueryRowContext(s.b.Context(), `
		WITH latest AS (SELECT max(expires_at) AS at FROM orders),
		moved AS (UPDATE orders SET expires_at = latest.at FROM latest)
		SELECT at FROM latest`).Scan(&deadline))
	return deadline
}

// awaitEnd waits until no order is pending and no checkout is live. It is patient: each step has a bound of its own,
// which the figures show.
func (s *paymentBench) awaitEnd() {
	s.b.Helper()
	deadline := time.Now().Add(*paymentTimeout + 10*time.Minute)
	for ended := false; !ended; faulttest.Sleep(s.b.Context(), 500*time.Millisecond) {
		testenv.Must(s.b, s.db.QueryRowContext(s.b.Context(), `
			SELECT NOT EXISTS (SELECT FROM orders WHERE status = 'pending')
			   AND NOT EXISTS (SELECT FROM payment_attempts WHERE next_check IS NOT NULL)
			   AND NOT EXISTS (SELECT FROM refunds WHERE next_check IS NOT NULL)`).Scan(&ended))
		if time.Now().After(deadline) {
			s.b.Fatal("orders are pending, or checkouts live, long after their deadlines")
		}
	}
}

// checkoutEnds tells how the checkouts ended.
type checkoutEnds struct {
	paid     []time.Duration // from "Pay" until the order was paid
	late     []time.Duration // from the deadline until the checkout was closed, of those closed after it
	refunded int
	unclosed int // orders that were cancelled at the end of their holds, before their checkouts were closed
}

func (s *paymentBench) ends(all []*checkoutVisit) (e checkoutEnds) {
	s.b.Helper()
	pressed := map[string]time.Time{}
	for _, v := range all {
		if !v.paidAt.IsZero() {
			pressed[v.order] = v.paidAt
		}
	}
	rows, err := s.db.QueryContext(s.b.Context(), `
		SELECT o.id, o.paid_at, o.expires_at, a.ended_at, coalesce(o.cancelled_at < a.ended_at, false), r.id IS NOT NULL
		FROM orders o JOIN payment_attempts a ON a.order_id = o.id LEFT JOIN refunds r ON r.attempt_id = a.id WHERE a.session_id IS NOT NULL`)
	testenv.Must(s.b, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		var paid sql.NullTime
		var deadline, ended time.Time
		var unclosed, refunded bool
		testenv.Must(s.b, rows.Scan(&id, &paid, &deadline, &ended, &unclosed, &refunded))
		switch {
		case paid.Valid:
			e.paid = append(e.paid, max(paid.Time.Sub(pressed[id]), 0))
		case ended.After(deadline):
			e.late = append(e.late, ended.Sub(deadline))
		}
		if unclosed {
			e.unclosed++
		}
		if refunded {
			e.refunded++
		}
	}
	testenv.Must(s.b, rows.Err())
	return e
}

// usedCalls are numbers of calls to the provider, by class.
type usedCalls struct{ create, confirm, expire, poll, rejected int }

// usedCalls returns the calls so far. The calls that the provider rejected are those that it answered with 429.
func (s *paymentBench) usedCalls() usedCalls {
	s.b.Helper()
	took := func(class string) int {
		calls := 0
		for _, result := range []string{"ok", "no_answer", "busy", "denied", "missing", "replayed", "refused"} { // not no_turn
			calls += int(s.Shop.Operator().Metric("payment_provider_calls_total", `class="`+class+`"`, `result="`+result+`"`))
		}
		return calls
	}
	u := usedCalls{create: took("create"), confirm: took("confirm"), expire: took("expire"), poll: took("poll")}
	var answers struct {
		Calls []struct{ Status, Count int }
	}
	testenv.Must(s.b, json.Unmarshal(s.Control(s.b, http.MethodGet, "/sim/calls", ""), &answers))
	for _, c := range answers.Calls {
		if c.Status == http.StatusTooManyRequests {
			u.rejected += c.Count
		}
	}
	return u
}

// busy returns the number of creates that were refused because of the limits. The others had no answer in time.
func (s *paymentBench) busy() int {
	s.b.Helper()
	return int(s.Shop.Operator().Metric("payment_provider_calls_total", `class="create"`, `result="no_turn"`))
}

func (u usedCalls) since(before usedCalls) usedCalls {
	return usedCalls{u.create - before.create, u.confirm - before.confirm, u.expire - before.expire, u.poll - before.poll, u.rejected - before.rejected}
}

func (u usedCalls) cells() []any { return []any{u.create, u.confirm, u.expire, u.poll, u.rejected} }

// report logs a table. It has at most eight lines, because the log of a benchmark ends after ten.
func (s *paymentBench) report(title string, lines [][]any) {
	s.b.Helper()
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		for _, cell := range line {
			fmt.Fprintf(table, "%v\t", cell)
		}
		fmt.Fprintln(table)
	}
	testenv.Must(s.b, table.Flush())
	busy := loadtest.ProcessorTime(s.b, s.Shop.Cmd.Process.Pid).Seconds() / time.Since(s.began).Seconds()
	s.b.Logf("%s; %d calls a second in all, %d of one operation, %d ms a call; the shop used %.0f%% of a processor\n%s",
		title, *paymentRate, paymentEndpointRate, paymentLatency, 100*busy, text.String())
}

// short returns a duration with two digits after the point of its seconds.
func short(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
