package service

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"example.com/shop/bench/loadtest"
	"example.com/shop/internal/faulttest"
)

const (
	simulatedLanes    = 2    // as placementLanes of package order
	simulatedBatch    = 200  // as maxBatch of package order
	simulatedProducts = 1000 // as in the benchmark

	simulatedWait = 500 * time.Millisecond // a rate whose p50 is longer is too high
)

// simulation places orders in batches, as package batch does: a transaction begins when a lane is free, with the orders
// that wait then. If two transactions have a product in common, the second one waits for the first one.
type simulation struct {
	request        time.Duration // the part of a request outside of its transaction
	perTransaction time.Duration
	perOrder       time.Duration // in addition, for each order of a transaction
}

// newSimulation returns the simulation with the times of two measured points: one at which each transaction has one
// order, and one at which all lanes are busy. request is the time of a request that does nothing.
func newSimulation(request time.Duration, single, busy point) simulation {
	short := max(single.p50-request, 0)                                                   // a transaction of one order
	long := time.Duration(simulatedLanes * busy.batch / busy.rate * float64(time.Second)) // of busy.batch orders
	perOrder := time.Duration(max(0, float64(long-short)) / max(busy.batch-1, 1))
	return simulation{request: request, perTransaction: max(short-perOrder, 0), perOrder: perOrder}
}

// lane is one of the transactions of a process at the same time.
type lane struct {
	ends   time.Duration // the present transaction
	orders int           // in it
}

// simulatedProcess is a process that places orders.
type simulatedProcess struct {
	waiting []time.Duration // when its orders arrive that are not placed yet
	lanes   [simulatedLanes]lane
}

// next returns when the next transaction could begin, and its lane.
func (p *simulatedProcess) next() (begins time.Duration, free *lane) {
	free = &p.lanes[0]
	for i := range p.lanes {
		if p.lanes[i].ends < free.ends {
			free = &p.lanes[i]
		}
	}
	return max(free.ends, p.waiting[0]), free
}

// take takes the orders of a transaction that begins at a time.
func (p *simulatedProcess) take(begins time.Duration) (arrivals []time.Duration) {
	n := 0
	for n < len(p.waiting) && n < simulatedBatch && p.waiting[n] <= begins {
		n++
	}
	arrivals, p.waiting = p.waiting[:n], p.waiting[n:]
	return arrivals
}

// place places orders that arrive at random times, with the given number a second on average, for 20 s. Each goes to
// one of the processes at random.
func (s simulation) place(rate float64, processes int) point {
	rng := rand.New(rand.NewPCG(3, 1))
	all := make([]*simulatedProcess, processes)
	for i := range all {
		all[i] = &simulatedProcess{}
	}
	for _, at := range loadtest.Poisson(rate, 20*time.Second, 3) {
		p := all[rng.IntN(processes)]
		p.waiting = append(p.waiting, at)
	}
	var took []time.Duration
	transactions := 0
	for ; ; transactions++ {
		p, begins, free := nextOf(all)
		if p == nil {
			return point{
				rate: rate, batch: float64(len(took)) / float64(transactions),
				p50: faulttest.Percentile(took, 50), p99: faulttest.Percentile(took, 99),
			}
		}
		arrivals := p.take(begins)
		n := len(arrivals)
		*free = lane{ends: locked(rng, all, begins, n) + s.perTransaction + time.Duration(n)*s.perOrder, orders: n}
		for _, arrived := range arrivals {
			took = append(took, s.request+free.ends-arrived)
		}
	}
}

// nextOf returns the process whose transaction begins first, when it begins, and its lane. The process is nil if all
// orders are placed.
func nextOf(all []*simulatedProcess) (p *simulatedProcess, begins time.Duration, free *lane) {
	for _, q := range all {
		if len(q.waiting) == 0 {
			continue
		}
		if at, l := q.next(); p == nil || at < begins {
			p, begins, free = q, at, l
		}
	}
	return p, begins, free
}

// locked returns when a transaction of some orders that begins at a time has locked its products: when the last one
// with which it has a product in common has ended.
func locked(rng *rand.Rand, all []*simulatedProcess, begins time.Duration, orders int) time.Duration {
	last := begins
	for _, p := range all {
		for _, other := range p.lanes {
			if other.ends > begins && rng.Float64() > disjoint(orders, other.orders) {
				last = max(last, other.ends)
			}
		}
	}
	return last
}

// disjoint returns the probability that two transactions have no product in common, by the numbers of their orders.
func disjoint(a, b int) float64 { return math.Pow(1-float64(a)/simulatedProducts, float64(b)) }

// simulated returns a table of simulated placements beside the measured ones, and at two rates between the last two of
// them. request is the time of a request that does nothing. Of the points, the first is at the lowest rate, and the
// last is that of clients that place as fast as they can.
func simulated(request time.Duration, points []point) string {
	s := newSimulation(request, points[0], points[len(points)-1])
	var out strings.Builder
	fmt.Fprintf(&out, `
## Latency by rate

A simulation places orders as a process does: in %d transactions at the same time, each with the orders that wait when
it begins, and with at most %d. Transactions with a common product do not overlap. A request takes %.2f ms without
its transaction, which is the time of a request that does nothing. A transaction takes %.2f ms, and %.0f µs for each
of its orders. These times follow from the p50 of the first row and the rate of the last row of the table above,
where we assume that both transactions were always in use. They do not vary, so the simulated p99 is too low. The
measured columns show by how much the simulation is wrong.

| orders a second | in a transaction | measured | p50 | measured | p99 | measured |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`, simulatedLanes, simulatedBatch, loadtest.Milliseconds(request), loadtest.Milliseconds(s.perTransaction),
		float64(s.perOrder)/float64(time.Microsecond))
	for _, p := range points[:len(points)-1] {
		q := s.place(p.rate, 1)
		fmt.Fprintf(&out, "| %.0f | %.1f | %.1f | %.1f ms | %.1f ms | %.1f ms | %.1f ms |\n", p.rate, q.batch, p.batch,
			loadtest.Milliseconds(q.p50), loadtest.Milliseconds(p.p50),
			loadtest.Milliseconds(q.p99), loadtest.Milliseconds(p.p99))
	}
	open, busy := points[len(points)-2].rate, points[len(points)-1].rate
	for _, share := range []float64{0.25, 0.5} {
		q := s.place(open+share*(busy-open), 1)
		if q.p50 > simulatedWait { // the times of the simulation are too long for this rate
			break
		}
		fmt.Fprintf(&out, "| %.0f | %.1f | | %.1f ms | | | |\n", q.rate, q.batch, loadtest.Milliseconds(q.p50))
	}
	out.WriteString(simulatedProcesses(request, points))
	return out.String()
}

// simulatedProcesses returns a table of placements by more processes than the benchmark has, each with the rate of the
// last point but one.
func simulatedProcesses(request time.Duration, points []point) string {
	few, many := points[len(points)-2], points[len(points)-1]
	s := newFreeSimulation(request, points[0], few, many)
	var out strings.Builder
	fmt.Fprintf(&out, `
More processes can share one PostgreSQL. The next table has their simulation, each with %.0f orders a second. No
benchmark has measured it. It assumes that PostgreSQL and the processes have enough processors, as the section below
names them. Then a transaction takes %.2f ms, and %.0f µs for each of its orders. From the last row but one to the
last row of the table of rates, the processor time of PostgreSQL for a transaction grows by this time with each
further order. It includes work outside of the transaction, such as the outbox. Transactions wait for each other only
because of a common product, of %d. Transactions that wait get larger, and then have more products in common. So
from some number of processes on, orders are not placed as fast as they arrive. These rows say "too many": half of
the orders of 20 s wait for longer than %.0f ms, and the service would reject some.

The simulation is too favourable in one respect: it leaves out the ends of orders, which lock products, too. It is
too strict in another one: a transaction that waits already counts as one that has locked all of its products.

| processes | orders a second | in a transaction | p50 | p99 |
| ---: | ---: | ---: | ---: | ---: |
`, few.rate, loadtest.Milliseconds(s.perTransaction), float64(s.perOrder)/float64(time.Microsecond), simulatedProducts,
		loadtest.Milliseconds(simulatedWait))
	for _, processes := range []int{1, 2, 5, 10, 20, 50} {
		q := s.place(float64(processes)*few.rate, processes)
		placed := fmt.Sprintf("%.1f | %.1f ms | %.1f ms", q.batch, loadtest.Milliseconds(q.p50), loadtest.Milliseconds(q.p99))
		if q.p50 > simulatedWait {
			placed = "| too many |"
		}
		fmt.Fprintf(&out, "| %d | %.0f | %s |\n", processes, q.rate, placed)
	}
	return out.String()
}

// newFreeSimulation returns the simulation of a service with enough processors. A transaction of one order takes the
// time of the first point. Each further order takes the processor time of PostgreSQL that it costs, by the difference
// of the two other points.
func newFreeSimulation(request time.Duration, single, few, many point) simulation {
	cost := func(p point) float64 { return p.batch * float64(p.cpu.Postgres) }
	perOrder := time.Duration(max(0, cost(many)-cost(few)) / max(many.batch-few.batch, 1))
	return simulation{request: request, perTransaction: max(single.p50-request-perOrder, 0), perOrder: perOrder}
}

// TestSimulation checks the simulation against what can be calculated.
func TestSimulation(t *testing.T) {
	s := newSimulation(time.Millisecond, point{batch: 1, p50: 3 * time.Millisecond}, point{rate: 10_000, batch: 11})
	if want := (simulation{time.Millisecond, 1980 * time.Microsecond, 20 * time.Microsecond}); s != want {
		t.Errorf("the simulation is %+v, want %+v", s, want)
	}
	free := newFreeSimulation(time.Millisecond, point{p50: 3 * time.Millisecond},
		point{batch: 2, cpu: loadtest.Usage{Postgres: 600 * time.Microsecond}},
		point{batch: 10, cpu: loadtest.Usage{Postgres: 200 * time.Microsecond}})
	if want := (simulation{time.Millisecond, 1900 * time.Microsecond, 100 * time.Microsecond}); free != want {
		t.Errorf("the simulation with enough processors is %+v, want %+v", free, want)
	}
	// Each of twenty processes forms batches as one does with a twentieth of the orders. Some of the transactions wait
	// for one of another process.
	one, twenty, all := s.place(1_000, 1), s.place(20_000, 20), s.place(20_000, 1)
	if twenty.batch > 1.2*one.batch || twenty.batch > all.batch/5 {
		t.Errorf("twenty processes place %.1f orders in a transaction, want about as many as one at a twentieth of the rate, "+
			"%.1f, and not as one at the same rate, %.1f",
			twenty.batch, one.batch, all.batch)
	}
	if twenty.p99 < one.p99+time.Millisecond/2 || twenty.p99 > 3*one.p99 {
		t.Errorf("twenty processes have a p99 of %v, want more than that of one without the others, %v, "+
			"but not three times as much", twenty.p99, one.p99)
	}
	// Together they cannot place what they could place one by one: the transactions wait for each other, and get ever
	// larger.
	if p := s.place(80_000, 20); p.p50 < simulatedWait {
		t.Errorf("80,000 orders a second have a p50 of %v, want more than %v", p.p50, simulatedWait)
	}
	if p := s.place(1, 1); p.batch != 1 || p.p50 != 3*time.Millisecond || p.p99 != 3*time.Millisecond {
		t.Errorf("one order a second is placed as %+v, want each alone in 3 ms", p)
	}
	// All lanes are busy, and 11 orders arrive in half of the time of a transaction of 11 orders. Some transactions
	// wait for another one.
	if p := s.place(10_000, 1); p.batch < 11 || p.batch > 15 {
		t.Errorf("10,000 orders a second are placed in transactions of %.1f, want 11 to 15", p.batch)
	}
	// Large transactions have a product in common, so they follow each other: n = rate * (1.98 ms + n * 20 µs).
	if p := s.place(25_000, 1); p.batch < 80 || p.batch > 110 {
		t.Errorf("25,000 orders a second are placed in transactions of %.1f, want about 99", p.batch)
	}
}
