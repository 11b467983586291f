package testenv_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/shop/internal/testenv"
)

// failing records the failure of a test instead of failing it.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(f)
}

// TestEventually checks that Eventually stops waiting when the state is reached, and fails the test if it never is.
func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		reached := func() bool { return time.Since(began) >= 10*time.Second }
		testenv.Eventually(t, "ten seconds later", reached)
		if took := time.Since(began); took > 10*time.Second+300*time.Millisecond {
			t.Errorf("Eventually waited %v for a state reached after 10 s", took)
		}

		began = time.Now()
		f := &failing{TB: t}
		defer func() {
			if recover() != f || !strings.Contains(f.message, "a state never reached") {
				t.Errorf("Eventually fails with %q, want the name of the state", f.message)
			}
			if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
				t.Errorf("EventuallyWithin failed after %v, want its limit of 1 min", took)
			}
		}()
		testenv.EventuallyWithin(f, time.Minute, "a state never reached", func() bool { return false })
	})
}
