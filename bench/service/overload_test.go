package service

import (
	"cmp"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"example.com/shop/bench/loadtest"
	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

var (
	overloadFor      = flag.Duration("overload.for", 8*time.Second, "how long each load of BenchmarkOverload takes")
	overloadProducts = flag.Int("overload.products", 1,
		"the number of products that the customers of BenchmarkOverload want")
)

// BenchmarkOverload offers orders at rates from half the capacity to four times the capacity. The capacity is
// the rate that 64 clients reach that each wait for the response before they send the next order. The loads are open
// loops: customers arrive independently of the responses, and the latency of an order counts from the arrival.
//
// The time to pay an order is the time from the start of one load to the start of the next. So the orders of a load
// are cancelled while the next one runs, at about the rate at which they were placed. Meanwhile another customer pays
// and cancels orders that were placed before the load.
//
// The load generator has processors of its own, so that it does not slow the service down when it offers more.
func BenchmarkOverload(b *testing.B) {
	s := newOverload(b)
	for b.Loop() {
		s.closedLoop() // fills the pools and caches; its orders are cancelled while the capacity is measured
		capacity := max(s.closedLoop(), s.closedLoop())
		var steps []loadStep
		for _, factor := range []float64{0.5, 0.75, 1, 1.5, 2, 3, 4} {
			steps = append(steps, s.offer(factor, capacity))
		}
		s.CheckHealth(b)
		s.report(capacity, steps)
	}
}

const (
	overloadConnections = 2000 // at most so many orders are under way
	probeRate           = 5    // requests per second of the customer that pays and cancels
)

// overload is the site of BenchmarkOverload.
type overload struct {
	*loadtest.Site
	b      *testing.B
	next   time.Time         // when the next load starts
	probe  *faulttest.Client // the customer that pays and cancels
	pinned bool              // the load generator has processors of its own
}

func newOverload(b *testing.B) *overload {
	b.Helper()
	s := &overload{b: b, next: time.Now()}
	s.pinned = separate(b, func() {
		s.Site = loadtest.NewSite(b, orders, *overloadProducts, orders.TimeoutVariable()+"="+period().String())
	})
	s.probe = s.Process.SignUp()
	return s
}

// period is the time from the start of one load to the start of the next.
func period() time.Duration { return *overloadFor * 3 / 2 }

// awaitStart waits until the next load is due, and returns when it starts. The time before is for orders that are still
// under way.
func (s *overload) awaitStart() time.Time {
	faulttest.Sleep(s.b.Context(), time.Until(s.next))
	now := time.Now()
	s.next = now.Add(period())
	return now
}

// closedLoop returns the rate that 64 clients reach.
func (s *overload) closedLoop() float64 {
	s.b.Helper()
	key := fmt.Sprint(s.awaitStart().UnixNano(), "-")
	r := loadtest.ClosedLoop(s.b, s.Addr(), 64, *overloadFor, s.Orders(key, s.Products))
	return r.Rate(loadtest.Is(http.StatusCreated))
}

// loadStep is the result of one load.
type loadStep struct {
	factor    float64     // offered / capacity
	offered   float64     // orders per second, as the next three
	good      float64     // 201
	rejected  float64     // 503
	failed    float64     // other responses, and no response
	failures  map[int]int // the failed responses by status; 0: no response
	unsent    int         // orders that found no free connection until the load ended
	p50, p99  time.Duration
	lag       time.Duration // the p99
	busy      float64       // the part of its processors' time that the generator used
	cancelled int           // orders that became due during the load
	late      time.Duration // the p99 of the time from when they were due until they were cancelled
	probe     loadtest.Traffic
}

// offer runs one load, and meanwhile the load of the customer that pays and cancels.
func (s *overload) offer(factor, capacity float64) loadStep {
	s.b.Helper()
	// The orders of the probe must be pending when the load ends. So they are placed shortly before it starts.
	faulttest.Sleep(s.b.Context(), time.Until(s.next)-*overloadFor/8)
	probe := s.probeOrders()
	began := s.awaitStart()
	probed := make(chan loadtest.Traffic, 1)
	go func() {
		probed <- loadtest.OpenLoop(s.b, s.Addr(), 20, loadtest.Steady(probeRate, *overloadFor), *overloadFor, probe)
	}()
	before := s.Usage()
	arrivals := loadtest.Poisson(factor*capacity, *overloadFor, uint64(factor*100))
	key := fmt.Sprint(began.UnixNano(), "-")
	r := loadtest.OpenLoop(s.b, s.Addr(), overloadConnections, arrivals, *overloadFor, s.Orders(key, s.Products))
	used, took := s.Usage().Since(before), time.Since(began)

	created, rejected := loadtest.Is(http.StatusCreated), loadtest.Is(http.StatusServiceUnavailable)
	failures := map[int]int{}
	failed := func(status int) bool { return !created(status) && !rejected(status) }
	for _, response := range r.Responses {
		if failed(response.Status) {
			failures[response.Status]++
		}
	}
	accepted := r.Latencies(created)
	result := loadStep{
		factor: factor, offered: float64(len(arrivals)) / overloadFor.Seconds(),
		good: r.Rate(created), rejected: r.Rate(rejected), failed: r.Rate(failed), failures: failures, unsent: r.Unsent,
		p50: faulttest.Percentile(accepted, 50), p99: faulttest.Percentile(accepted,
			99), lag: faulttest.Percentile(r.Lag, 99),
		busy:  used.Clients.Seconds() / took.Seconds() / float64(runtime.GOMAXPROCS(0)),
		probe: <-probed,
	}
	// Leave the service some time: orders that are overdue are cancelled.
	faulttest.Sleep(s.b.Context(), time.Until(began.Add(*overloadFor*5/4)))
	result.cancelled, result.late = s.lateness(began, began.Add(*overloadFor))
	return result
}

// probeOrders places the orders of the probe, and returns a requester that pays and cancels them in turn.
func (s *overload) probeOrders() loadtest.Requester {
	s.b.Helper()
	var requests [][]byte
	for i := range loadtest.Steady(probeRate, *overloadFor) {
		var placed shoptest.Order
		faulttest.Eventually(s.b, "an order of the probe is placed", func() bool {
			a := s.probe.Send(orders.Create(string(loadtest.OrderBody(nil, s.Products[0])), ""))
			if a.Status != http.StatusCreated {
				return false
			}
			placed = faulttest.Decode[shoptest.Order](s.b, a)
			return true
		})
		action := []string{"/pay", "/cancel"}[i%2]
		requests = append(requests, s.Post("/api/orders/"+placed.ID+action, s.probe.Token))
	}
	return func(buf []byte, i int) []byte { return append(buf, requests[i]...) }
}

// lateness returns the number of unpaid orders that were due between two times, and the p99 of the time from when they
// were due until they were cancelled. Orders that are still pending count as cancelled now.
func (s *overload) lateness(from, to time.Time) (n int, p99 time.Duration) {
	s.b.Helper()
	var seconds float64
	testenv.Must(s.b, s.DB.QueryRowContext(s.b.Context(), `
		SELECT count(*), coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY
			extract(epoch FROM coalesce(cancelled_at, clock_timestamp()) - due_at)), 0)
		FROM orders WHERE due_at >= $1 AND due_at < $2 AND (cancel_reason = 'timeout' OR status = 'pending')`,
		from, to).Scan(&n, &seconds))
	return n, time.Duration(seconds * float64(time.Second))
}

// report logs a table. It has at most nine lines, because the log of a benchmark ends after ten.
func (s *overload) report(capacity float64, steps []loadStep) {
	s.b.Helper()
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "load\toffered/s\tgood/s\t503/s\tfailed/s\tunsent\tp50 ms\tp99 ms\tdue\tlate p99 ms\t"+
		"paid, cancelled\tp50 ms\tmax ms\tlag p99 ms\tbusy\t")
	failures := map[int]int{}
	for _, r := range steps {
		for status, n := range r.failures {
			failures[status] += n
		}
		succeeded := loadtest.Is(http.StatusOK)
		all := r.probe.Latencies(func(int) bool { return true })
		fmt.Fprintf(table,
			"%g×\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%.1f\t%.1f\t%d\t%.1f\t%d of %d\t%.1f\t%.1f\t%.1f\t%.0f%%\t\n",
			r.factor, r.offered, r.good, r.rejected, r.failed, r.unsent,
			loadtest.Milliseconds(r.p50), loadtest.Milliseconds(r.p99),
			r.cancelled, loadtest.Milliseconds(r.late), r.probe.Count(succeeded), len(all)+r.probe.Unsent,
			loadtest.Milliseconds(faulttest.Percentile(all, 50)), loadtest.Milliseconds(faulttest.Percentile(all, 100)),
			loadtest.Milliseconds(r.lag), 100*r.busy)
	}
	testenv.Must(s.b, table.Flush())
	where := "the load generator has processors of its own"
	if !s.pinned {
		where = "the load generator and the service share their processors"
	}
	s.b.Logf("%d products; capacity: %.0f orders/s; %s; failed, by status (0: no response): %v\n%s",
		len(s.Products), capacity, where, failures, text.String())

	best, last := 0.0, steps[len(steps)-1]
	for _, r := range steps {
		best = max(best, r.good)
	}
	s.b.ReportMetric(capacity, "orders/s-capacity")
	s.b.ReportMetric(last.good/best, "goodput-4x/best")
	s.b.ReportMetric(loadtest.Milliseconds(last.p99), "p99-ms-4x")
	s.b.ReportMetric(loadtest.Milliseconds(last.late), "cancel-late-p99-ms-4x")
}

// separate runs start on the first of the processors that the test may use, and then moves the test to the others. The
// processes that start has started stay on the first. It reports whether that was possible. It needs two processors,
// and the command taskset.
func separate(b *testing.B, start func()) (separated bool) {
	b.Helper()
	_, err := orders.Binary() // the compiler may use all processors
	testenv.Must(b, err)
	cpus := allowedProcessors(b)
	if _, err := exec.LookPath("taskset"); err != nil || len(cpus) < 2 {
		start()
		return false
	}
	before := runtime.GOMAXPROCS(0)
	b.Cleanup(func() {
		pin(b, cpus)
		runtime.GOMAXPROCS(before)
	})
	pin(b, cpus[:1])
	start()
	pin(b, cpus[1:])
	runtime.GOMAXPROCS(len(cpus) - 1)
	return true
}

// pin restricts all threads of the test to some processors. Processes and threads that they start inherit that.
func pin(b *testing.B, cpus []string) {
	b.Helper()
	out, err := exec.Command("taskset", "-a", "-c", "-p", strings.Join(cpus, ","),
		strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		b.Fatalf("taskset: %v: %s", err, out)
	}
}

// allowedProcessors returns the numbers of the processors that the test may use, or nil if the system does not tell.
func allowedProcessors(b *testing.B) (cpus []string) {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	list, _, _ := strings.Cut(rest, "\n") // such as 0-3,8
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, _ := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		testenv.Must(b, err)
		to, err := strconv.Atoi(cmp.Or(last, first))
		testenv.Must(b, err)
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, strconv.Itoa(cpu))
		}
	}
	return cpus
}
