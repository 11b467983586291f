package ops

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"example.com/shop/internal/app"
)

const (
	checkTimeout = time.Minute            // enough for millions of pending rows
	checkWait    = 200 * time.Millisecond // for which a request waits for a check before it answers with the last result
	checkRest    = 3                      // the pause after a check, as a multiple of the time that it took
)

// checker checks the invariants when a request asks for the result, one check at a time, and keeps the result of the
// last check. A check may take longer than a request.
type checker struct {
	check func(ctx context.Context, full bool) ([]app.Violation, error)
	log   *slog.Logger

	running singleflight.Group
	next    time.Time // no check starts before this time; only the check that is under way uses it

	last atomic.Pointer[checked]
}

// checked is the result of a check that succeeded.
type checked struct {
	violations []app.Violation
	at         *time.Time // when the check began, by this machine's clock; nil: none has succeeded
}

// result starts a check, unless one is under way or has just ended, waits for it for at most checkWait, and returns
// the result of the last check that has succeeded.
func (c *checker) result(ctx context.Context) checked {
	ended := c.running.DoChan("", func() (any, error) {
		c.run(context.WithoutCancel(ctx))
		return nil, nil
	})
	waiting, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	select {
	case <-ended:
	case <-waiting.Done():
	}
	if last := c.last.Load(); last != nil {
		return *last
	}
	return checked{violations: []app.Violation{}}
}

// run checks the invariants, unless a check has just ended.
func (c *checker) run(ctx context.Context) {
	if time.Now().Before(c.next) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	began := time.Now()
	violations, err := c.check(ctx, false)
	c.next = time.Now().Add(checkRest * time.Since(began))
	if err != nil {
		c.log.WarnContext(ctx, "the invariants could not be checked; the operators' page shows the last result", "error", err)
		return
	}
	at := began.UTC()
	c.last.Store(&checked{violations, &at})
}
