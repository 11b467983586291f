package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestChaosReplays checks that a seed determines the plan.
func TestChaosReplays(t *testing.T) {
	s := &service{resources: &resources{}}
	plan := func(seed uint64) string {
		return fmt.Sprint(draw(rand.New(rand.NewPCG(seed, 1)), s.chaosFaults(), time.Minute))
	}
	if plan(7) != plan(7) || plan(7) == plan(8) {
		t.Errorf("the plans of the seeds 7, 7 and 8 are %v, %v and %v: want the first two equal and the third different", plan(7), plan(7), plan(8))
	}
}
