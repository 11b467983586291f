package ops

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"example.com/shop/internal/app"
)

const (
	checkTimeout = time.Minute // enough for millions of pending rows
	checkRest    = 3           // the pause after a check, as a multiple of the time that it took
)

// checker checks the invariants when a request asks for the result, one check at a time. A check may take longer than a
// request, so no request waits for it, and a later request gets its result.
type checker struct {
	check func(ctx context.Context, full bool) ([]app.Violation, error)
	log   *slog.Logger

	running sync.Mutex // locked while a check is under way
	next    time.Time  // no check starts before this time; guarded by running

	last atomic.Pointer[checked]
}

// checked is the result of a check that succeeded.
type checked struct {
	violations []app.Violation
	at         *time.Time // when the check began, by this machine's clock; nil: none has succeeded
}

// result starts a check, unless one is under way or has just ended, and returns the result of the last check that has
// succeeded.
func (c *checker) result(ctx context.Context) checked {
	if c.running.TryLock() {
		go c.run(context.WithoutCancel(ctx))
	}
	if last := c.last.Load(); last != nil {
		return *last
	}
	return checked{violations: []app.Violation{}}
}

// run checks the invariants, unless a check has just ended, and unlocks running.
func (c *checker) run(ctx context.Context) {
	defer c.running.Unlock()
	if time.Now().Before(c.next) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	began := time.Now()
	violations, err := c.check(ctx, false)
	c.next = time.Now().Add(checkRest * time.Since(began))
	if err != nil {
		c.log.WarnContext(ctx, "the invariants could not be checked; the operators' page shows the last result",
			"error", err)
		return
	}
	at := began.UTC()
	c.last.Store(&checked{violations, &at})
}
