package faulttest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestChaosReplays checks that a seed determines the plan.
func TestChaosReplays(t *testing.T) {
	s := &Service{Shared: &SharedRows{}}
	plan := func(seed uint64) string {
		return fmt.Sprint(draw(rand.New(rand.NewPCG(seed, 1)), s.chaosFaults(), time.Minute))
	}
	if first := plan(7); first != plan(7) || first == plan(8) {
		t.Errorf("the plans of the seeds 7, 7 and 8 are %v, %v and %v: want the first two equal and the third different", plan(7), plan(7), plan(8))
	}
}
