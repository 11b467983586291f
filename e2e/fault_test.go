package e2e

import (
	"math/rand/v2"
	"testing"
)

// fault is something that breaks while customers are at work.
type fault struct {
	name   string
	needs  needs
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
			d := deploy(t, f.needs)
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
			f.bound.check(t, found)
		})
	}
}
