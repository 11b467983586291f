package background

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// Every calls job in each interval, first after one interval, until ctx ends. Then it returns nil.
func Every(ctx context.Context, interval time.Duration, log *slog.Logger, job func(context.Context)) error {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
			Do(ctx, log, job)
		}
	}
}

// Do calls a job once. If the job panics, Do logs that and returns.
func Do(ctx context.Context, log *slog.Logger, job func(context.Context)) {
	defer func() {
		if p := recover(); p != nil {
			log.ErrorContext(ctx, "a periodic job panicked, and is tried again", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	job(ctx)
}
