package reconcile

import (
	"context"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// eventually waits for a state; its deadline is for a machine under heavy load.
func eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !reached() {
		select {
		case <-ctx.Done():
			t.Fatalf("never reached: %s", what)
		case <-tick.C:
		}
	}
}
