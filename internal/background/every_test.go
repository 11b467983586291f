package background_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"example.com/shop/internal/background"
)

// TestEvery calls a job for a minute that panics at first, and then takes longer than its interval. It is called again.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Second)
		defer cancel()
		var calls []time.Duration
		began := time.Now()
		err := background.Every(ctx, 10*time.Second, slog.New(slog.DiscardHandler), func(context.Context) {
			calls = append(calls, time.Since(began))
			switch len(calls) {
			case 1:
				panic("broken")
			case 2:
				<-time.After(15 * time.Second)
			}
		})
		const s = time.Second
		if want := []time.Duration{10 * s, 20 * s, 35 * s, 40 * s, 50 * s, 60 * s}; err != nil ||
			!slices.Equal(calls, want) {
			t.Errorf("the job was called after %v, and Every returns %v; want calls after %v, and no error", calls,
				err, want)
		}
	})
}
