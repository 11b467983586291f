package faulttest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// Fault is a fault that a test injects into a deployment under load.
type Fault struct {
	Name   string
	Needs  Needs
	on     *common             // the deployment that the fault shares with others; nil: one of its own, as needs says
	Before func()              // called before the load begins, and before a deployment of its own starts; may be nil
	Rate   int                 // how many rows the load creates in a second; 0: usualRate
	Inject func(d *Deployment) // begins the fault, waits, and ends the fault
	Bound  Bound
	// NeedsShared is set if the fault affects shared rows. A service without them does not get it.
	NeedsShared bool
	// Quick is set if the fault is injected also without TEST_ALL=1.
	Quick bool
	// withoutSweeps is set if no reconciler sweeps from the beginning of the fault until all rows have ended. Otherwise
	// the sweeps would repair what the fault should not break.
	withoutSweeps bool
	// last is set if the load creates no more rows when the fault begins, so that nothing else wakes what the fault has
	// stopped.
	last bool
	// litters is set if the fault leaves tasks in the queue that no worker can acknowledge.
	litters bool
	// excused counts the statements that one of the test's own tools has broken in a deployment so far. The service may
	// reject a request for each of them. nil: the tools break no statement.
	excused func(d *Deployment) int
	// also returns a message for each further expectation that the load's figures do not meet, with the slack of an
	// excess. nil: there is none.
	also func(f figures, slack int) (exceeded []string)
	// Party returns a message for each part of the second party's bound that is exceeded. nil: there is no such bound.
	Party func(d *Deployment) (exceeded []string)
}

// common is a deployment that several faults of one test share. They are injected one after the other, each under a
// load of its own, because starting a deployment takes longer than most faults.
type common struct {
	needs Needs
	owner testing.TB
	left  int         // how many of the faults have not ended
	idle  *Deployment // nil: it is in use, or must be started
}

// take returns the deployment for a fault. The function release gives it back. A fault that has failed leaves none.
func (c *common) take(t *testing.T, s *Service) (d *Deployment, release func()) {
	t.Helper()
	if c.idle == nil {
		c.idle = s.deployFor(t, c.owner, c.needs)
	}
	d, c.idle = c.idle, nil
	d.use(t)
	return d, func() {
		if t.Failed() {
			d.cleanups.run() // a server has a limited number of databases for the deployments that follow
		} else {
			c.idle = d
		}
	}
}

// end counts a fault that has ended or was skipped. The last one ends the processes, so that they take no processor
// time from other tests.
func (c *common) end() {
	if c.left--; c.left == 0 && c.idle != nil {
		c.idle.Kill(c.idle.Running("")...)
	}
}

// deploy returns a deployment for the fault, and a function to call when the fault has been injected.
func (f Fault) deploy(t *testing.T, s *Service) (d *Deployment, release func()) {
	t.Helper()
	if f.on != nil {
		return f.on.take(t, s)
	}
	d = s.Deploy(t, f.Needs)
	return d, func() { d.Kill(d.Running("")...) }
}

// Faults injects each fault into a deployment under load, in a subtest of its own. It checks the invariants, the
// responses that each customer got, and the fault's bound. Without TEST_ALL=1 it skips the faults that are not quick.
func Faults(t *testing.T, s *Service, faults ...Fault) {
	t.Parallel()
	faults = slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool { return f.NeedsShared && s.Shared == nil })
	for _, f := range faults {
		if f.on != nil {
			f.on.owner = t
			f.on.left++
		}
	}
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			if f.on == nil {
				t.Parallel()
			} else {
				defer f.on.end()
			}
			if !f.Quick {
				testenv.Slow(t, "a fault under load")
			}
			checkBounds(t, func(t *testing.T) excess { return f.measure(t, s) })
		})
	}
}

// measure injects the fault into a deployment, and returns the bounds that the deployment exceeded.
func (f Fault) measure(t *testing.T, s *Service) excess {
	t.Helper()
	if f.Before != nil {
		f.Before()
	}
	d, release := f.deploy(t, s)
	defer release()
	figures := f.run(t, d)
	var unmet []string
	if f.Party != nil {
		unmet = append(unmet, f.Party(d)...)
	}
	return func(slack int) []string {
		exceeded := slices.Concat(f.Bound.exceeded(figures, slack), figures.near.tooFew(slack), unmet)
		if f.also != nil {
			exceeded = append(exceeded, f.also(figures, slack)...)
		}
		return exceeded
	}
}

// contended checks that customers competed, as far as the service lets them: rows were created in batches, some wanted
// more of a shared row than there was, and some were rejected because of a bound on what one customer can have.
func contended(f figures, _ int) (exceeded []string) {
	if f.service.BatchMetric != "" && f.created <= f.batches {
		exceeded = append(exceeded, fmt.Sprintf(
			unproven+"%.0f rows were created in %.0f batches, so no batch had two", f.created, f.batches))
	}
	for why, possible := range map[Rejection]bool{
		RejectedExhausted: f.service.rushes(), RejectedBound: f.service.Bounds != nil,
	} {
		if possible && f.rejected[why] == 0 {
			exceeded = append(exceeded, fmt.Sprintf(unproven+"no call was rejected for the reason %q", why))
		}
	}
	return exceeded
}

// excess returns a message for each bound that a measurement exceeded, when the bounds are slack times as wide as on an
// idle machine.
type excess func(slack int) []string

// unproven is the beginning of a message that says what the load did not do. It tells nothing about the service.
const unproven = "the load proves nothing: "

// busySlack is the slack on a busy machine, where a process waits seconds for a processor.
const busySlack = 3

// measuring lets a measurement run alone. Each measurement holds it for reading, and one that must run alone holds it
// for writing.
var measuring sync.RWMutex

// admission lets measurements begin one at a time.
var admission sync.Mutex

// measured is the number of measurements that have begun and not ended.
var measured atomic.Int32

// admit waits until the machine has processor time for one more measurement, or has no measurement. More of them would
// slow each other down until all missed their bounds, and would then be repeated.
func admit(t testing.TB) {
	t.Helper()
	const window = 2 * time.Second // a deployment starts within it on an idle machine
	admission.Lock()
	defer admission.Unlock()
	for measured.Load() > 0 {
		waited := cpuPressure()
		if !Sleep(t.Context(), window) || float64(cpuPressure()-waited) < 0.5*float64(window) {
			break
		}
	}
	measured.Add(1)
}

// checkBounds measures bounds, and fails the test if they are exceeded.
//
// A bound may also be exceeded because other programs leave the service no processor time. So the bounds are wider if
// the machine was busy. If it was busy and they are exceeded all the same, checkBounds measures once more, with no
// other measurement of this package at the same time. An error that measure reports to t always fails the test.
func checkBounds(t *testing.T, measure func(t *testing.T) excess) {
	t.Helper()
	exceeded, busy := measureHolding(t, measuring.RLocker(), measure)
	switch {
	case len(exceeded) > 0 && busy && !t.Failed():
		t.Logf("measuring again, alone, because the machine was busy: %q", exceeded)
		t.Run("alone", func(t *testing.T) {
			exceeded, _ := measureHolding(t, &measuring, measure)
			report(t, exceeded)
		})
	default:
		report(t, exceeded)
	}
}

// report reports exceeded bounds.
func report(t *testing.T, exceeded []string) {
	t.Helper()
	for _, message := range exceeded {
		if strings.HasPrefix(message, unproven) {
			t.Error(message)
		} else {
			breach(t, "%s", message)
		}
	}
}

// measureHolding measures while it holds a lock, and returns which bounds were exceeded. It reports whether the machine
// was busy.
func measureHolding(t *testing.T, l sync.Locker, measure func(t *testing.T) excess) (exceeded []string, busy bool) {
	t.Helper()
	l.Lock()
	defer l.Unlock()
	admit(t)
	defer measured.Add(-1)
	before := pressureNow()
	excess := measure(t)
	if busy = before.isBusy(); !busy {
		return excess(1), busy
	}
	if strict := excess(1); len(strict) > 0 {
		t.Logf("the machine was busy, so the bounds are %d times as wide; exceeded were: %q", busySlack, strict)
	}
	return excess(busySlack), busy
}

func (f Fault) run(t *testing.T, d *Deployment) figures {
	excused := f.excused
	if excused == nil {
		excused = func(*Deployment) int { return 0 }
	}
	rate, earlier := cmp.Or(f.Rate, usualRate), excused(d)
	load := d.startLoad(rand.New(rand.NewPCG(1, 1)), rate)
	load.waitForCreated(int64(rate / 2))
	if f.withoutSweeps {
		d.stopSweeps()
	}
	if f.last {
		load.waitForCreated(int64(rate))
		load.stop()
		f.Inject(d)
	} else {
		f.Inject(d)
		load.waitForCreated(int64(rate / 2))
	}
	load.finish(max(f.Bound.Late, f.Bound.Held))
	if !f.litters && d.pair == nil {
		load.awaitAcks()
	}
	figures := load.check()
	figures.excused = excused(d) - earlier
	t.Log(figures)
	return figures
}

// pressure is a time, with the pressure on the machine's processors until then.
type pressure struct {
	at     time.Time
	waited time.Duration
}

func pressureNow() pressure { return pressure{time.Now(), cpuPressure()} }

// isBusy reports whether the machine was busy since then: whether some process waited for a processor for half of the
// time.
func (p pressure) isBusy() bool {
	return float64(cpuPressure()-p.waited) > 0.5*float64(time.Since(p.at))
}

// cpuPressure returns how long, since the machine started, at least one process has waited for a processor. It returns
// 0 if the kernel does not report this time. See https://docs.kernel.org/accounting/psi.html.
func cpuPressure() time.Duration {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	_, total, _ := strings.Cut(string(text), "total=")
	digits, _, _ := strings.Cut(total, "\n")
	micros, _ := strconv.ParseInt(digits, 10, 64)
	return time.Duration(micros) * time.Microsecond
}
