package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const (
	simulatedLanes    = 2    // as placementLanes of package order
	simulatedBatch    = 200  // as maxBatch of package order
	simulatedProducts = 1000 // as in the benchmark
)

// simulation places orders in batches, as package batch does: a transaction begins when a lane is free, with the orders that wait then.
// If two transactions have a product in common, the second one waits for the first one.
type simulation struct {
	request        time.Duration // the part of a request outside of its transaction
	perTransaction time.Duration
	perOrder       time.Duration // in addition, for each order of a transaction
}

// newSimulation returns the simulation with the times of two measured points: one at which each transaction has one order, and one at
// which all lanes are busy. request is the time of a request that does nothing.
func newSimulation(request time.Duration, single, busy point) simulation {
	short := max(single.p50-request, 0)                                                   // a transaction of one order
	long := time.Duration(simulatedLanes * busy.batch / busy.rate * float64(time.Second)) // of busy.batch orders
	perOrder := time.Duration(max(0, float64(long-short)) / max(busy.batch-1, 1))
	return simulation{request: request, perTransaction: max(short-perOrder, 0), perOrder: perOrder}
}

// lane is one of the transactions at the same time.
type lane struct {
	ends   time.Duration // the present transaction
	orders int           // in it
}

// place places orders that arrive at random times, with the given number a second on average, for 20 s.
func (s simulation) place(rate float64) point {
	arrivals := poisson(rate, 20*time.Second, 3)
	rng := rand.New(rand.NewPCG(3, 0))
	var lanes [simulatedLanes]lane
	var took []time.Duration
	transactions := 0
	for placed := 0; placed < len(arrivals); transactions++ {
		free := &lanes[0]
		for i := range lanes {
			if lanes[i].ends < free.ends {
				free = &lanes[i]
			}
		}
		begins, n := max(free.ends, arrivals[placed]), 0
		for placed+n < len(arrivals) && n < simulatedBatch && arrivals[placed+n] <= begins {
			n++
		}
		for _, other := range lanes {
			disjoint := math.Pow(1-float64(n)/simulatedProducts, float64(other.orders)) // the probability that no product is common
			if other.ends > begins && rng.Float64() > disjoint {
				begins = other.ends
			}
		}
		free.ends, free.orders = begins+s.perTransaction+time.Duration(n)*s.perOrder, n
		for _, arrived := range arrivals[placed : placed+n] {
			took = append(took, s.request+free.ends-arrived)
		}
		placed += n
	}
	return point{rate: rate, batch: float64(len(took)) / float64(transactions), p50: percentile(took, 50), p99: percentile(took, 99)}
}

// simulated returns a table of simulated placements beside the measured ones, and at two rates between the last two of them. request is
// the time of a request that does nothing. Of the points, the first is at the lowest rate, and the last is that of clients that place as
// fast as they can.
func simulated(request time.Duration, points []point) string {
	s := newSimulation(request, points[0], points[len(points)-1])
	var out strings.Builder
	fmt.Fprintf(&out, `
## Latency by rate

A simulation places orders as a process does: in %d transactions at the same time, each with the orders that wait when it begins, and
with at most %d. Transactions with a common product do not overlap. A request takes %.2f ms without its transaction, which is the time of
a request that does nothing. A transaction takes %.2f ms, and %.0f µs for each of its orders. These times follow from the p50 of the
first row and the rate of the last row of the table above, if both transactions were always busy then. They do not vary, so the
simulated p99 is too low. The measured columns show by how much the simulation is wrong.

| orders a second | in a transaction | measured | p50 | measured | p99 | measured |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`, simulatedLanes, simulatedBatch, milliseconds(request), milliseconds(s.perTransaction), float64(s.perOrder)/float64(time.Microsecond))
	for _, p := range points[:len(points)-1] {
		q := s.place(p.rate)
		fmt.Fprintf(&out, "| %.0f | %.1f | %.1f | %.1f ms | %.1f ms | %.1f ms | %.1f ms |\n", p.rate, q.batch, p.batch,
			milliseconds(q.p50), milliseconds(p.p50), milliseconds(q.p99), milliseconds(p.p99))
	}
	open, busy := points[len(points)-2].rate, points[len(points)-1].rate
	for _, share := range []float64{0.25, 0.5} {
		q := s.place(open + share*(busy-open))
		fmt.Fprintf(&out, "| %.0f | %.1f | | %.1f ms | | | |\n", q.rate, q.batch, milliseconds(q.p50))
	}
	return out.String()
}

// TestSimulation checks the simulation against what can be calculated.
func TestSimulation(t *testing.T) {
	s := newSimulation(time.Millisecond, point{batch: 1, p50: 3 * time.Millisecond}, point{rate: 10_000, batch: 11})
	if want := (simulation{time.Millisecond, 1980 * time.Microsecond, 20 * time.Microsecond}); s != want {
		t.Errorf("the simulation is %+v, want %+v", s, want)
	}
	if p := s.place(1); p.batch != 1 || p.p50 != 3*time.Millisecond || p.p99 != 3*time.Millisecond {
		t.Errorf("one order a second is placed as %+v, want each alone in 3 ms", p)
	}
	// All lanes are busy, and 11 orders arrive in half of the time of a transaction of 11 orders. Some transactions wait for another one.
	if p := s.place(10_000); p.batch < 11 || p.batch > 15 {
		t.Errorf("10,000 orders a second are placed in transactions of %.1f, want 11 to 15", p.batch)
	}
	// Large transactions have a product in common, so they follow each other: n = rate * (1.98 ms + n * 20 µs).
	if p := s.place(25_000); p.batch < 80 || p.batch > 110 {
		t.Errorf("25,000 orders a second are placed in transactions of %.1f, want about 99", p.batch)
	}
}
