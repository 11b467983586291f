package ops

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"example.com/shop/internal/app"
)

const (
	checkTimeout = time.Minute            // enough for millions of pending orders
	checkWait    = 200 * time.Millisecond // for which a request waits for a check before it answers with the last result
	checkRest    = 3                      // the pause after a check, as a multiple of the time that it took
)

// checker checks the invariants when a request asks for the result, one check at a time, and keeps the result of the
// last check. A check may take longer than a request.
type checker struct {
	check func(ctx context.Context, full bool) ([]app.Violation, error)
	log   *slog.Logger

	mu      sync.Mutex
	last    checked
	running chan struct{} // closed at the end of the check that is under way; nil: none is
	next    time.Time     // no check starts before this time
}

// checked is the result of a check that succeeded.
type checked struct {
	violations []app.Violation
	at         *time.Time // when the check began, by this machine's clock; nil: none has succeeded
}

// result starts a check, unless one is under way or has just ended, waits for it for at most checkWait, and returns
// the result of the last check that has succeeded.
func (c *checker) result(ctx context.Context) checked {
	if running := c.start(ctx); running != nil {
		timer := time.NewTimer(checkWait)
		defer timer.Stop()
		select {
		case <-running:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// start starts a check, unless one is under way or has just ended. It returns a channel that is closed at the end of
// the check that is under way, or nil if none is.
func (c *checker) start(ctx context.Context) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil || time.Now().Before(c.next) {
		return c.running
	}
	done := make(chan struct{})
	c.running = done
	go func() {
		defer close(done)
		c.run(context.WithoutCancel(ctx))
	}()
	return done
}

func (c *checker) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	began := time.Now()
	violations, err := c.check(ctx, false)
	if err != nil {
		c.log.WarnContext(ctx, "the invariants could not be checked; the operators' page shows the last result", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		at := began.UTC()
		c.last = checked{violations, &at}
	}
	c.running, c.next = nil, time.Now().Add(checkRest*time.Since(began))
}
