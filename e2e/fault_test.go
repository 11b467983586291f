package e2e

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is something that breaks while customers are at work.
type fault struct {
	name   string
	needs  needs
	before func()              // nil: there is nothing to do before the deployment starts
	inject func(d *deployment) // breaks it, lets it last, and mends it
	bound  bound
	// excused counts the refusals that a tool of the test brought about, and not the fault; nil: none.
	excused func(d *deployment) int
}

// rate is how many orders are placed in a second.
const rate = 40

// runFaults injects each of the faults into a deployment of its own under load, and checks that everything that
// was promised is kept, and its price.
func runFaults(t *testing.T, faults []fault) {
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			measured(t, func(t *testing.T) []string {
				if f.before != nil {
					f.before()
				}
				d := deploy(t, f.needs)
				defer d.kill(d.all("")...)
				return f.bound.exceeded(f.run(t, d))
			})
		})
	}
}

// measuring is held for reading by each bound that is measured, and for writing by one that is measured alone.
var measuring sync.RWMutex

// measured measures bounds, and fails the test if they are exceeded.
//
// They are, too, if other programs leave the service no processor. If so they are measured once more, with no other
// bounds of this package beside them; then they must hold. Whatever else is checked must hold the first time.
func measured(t *testing.T, measure func(t *testing.T) (exceeded []string)) {
	t.Helper()
	exceeded, crowded := besideOthers(t, measure)
	switch {
	case len(exceeded) > 0 && crowded && !t.Failed():
		t.Logf("once more and alone, because the machine is busy: %q", exceeded)
		t.Run("alone", func(t *testing.T) {
			measuring.Lock()
			defer measuring.Unlock()
			if exceeded := measure(t); len(exceeded) > 0 {
				t.Errorf("%q", exceeded)
			}
		})
	case len(exceeded) > 0:
		t.Errorf("%q", exceeded)
	}
}

// besideOthers measures, and reports whether processes waited for a processor for most of the time.
func besideOthers(t *testing.T, measure func(t *testing.T) []string) (exceeded []string, crowded bool) {
	measuring.RLock()
	defer measuring.RUnlock()
	began, waited := time.Now(), cpuPressure()
	exceeded = measure(t)
	return exceeded, float64(cpuPressure()-waited) > 0.75*float64(time.Since(began))
}

func (f fault) run(t *testing.T, d *deployment) figures {
	load := d.open(rand.New(rand.NewPCG(1, 1)), rate)
	load.served(rate / 2)
	f.inject(d)
	load.served(rate / 2)
	load.close()
	d.settle()
	found := load.check()
	if f.excused != nil {
		found.excused = f.excused(d)
	}
	t.Log(found)
	return found
}

// cpuPressure is how long some process has waited for a processor since the machine started; 0 where the kernel does
// not tell. See https://docs.kernel.org/accounting/psi.html.
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
