package ops

import (
	"context"
	"slices"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
)

// depthOf counts the tasks of all kinds.
func depthOf(ctx context.Context, all app.Kinds) (sum delay.Depth, err error) {
	for _, k := range all {
		d, err := k.Queue.Depth(ctx)
		if err != nil {
			return delay.Depth{}, err
		}
		sum.Scheduled += d.Scheduled
		sum.Due += d.Due
		sum.Leased += d.Leased
		sum.Dead += d.Dead
		sum.OldestDue = max(sum.OldestDue, d.OldestDue)
	}
	return sum, nil
}

// backlogOf returns the number of messages in the outboxes of all kinds, and the age of the oldest.
func backlogOf(ctx context.Context, all app.Kinds) (count int64, oldest time.Duration, err error) {
	for _, k := range all {
		n, age, err := k.Outbox.Backlog(ctx)
		if err != nil {
			return 0, 0, err
		}
		count += n
		oldest = max(oldest, age)
	}
	return count, oldest, nil
}

// lastSweepOf returns the sum of the reports of the kinds' last sweeps, or nil if some kind has had no sweep yet.
func lastSweepOf(ctx context.Context, all app.Kinds) (*reconcile.Report, error) {
	reports := make([]reconcile.Report, len(all))
	for i, k := range all {
		last, _, err := k.Reconciler.Last(ctx)
		if last == nil || err != nil {
			return nil, err
		}
		reports[i] = *last
	}
	sum := reconcile.Sum(reports...)
	return &sum, nil
}

// deadLettersOf returns the latest dead letters of all kinds, at most limit, the latest first.
func deadLettersOf(ctx context.Context, all app.Kinds, limit int) ([]delay.DeadLetter, error) {
	letters := []delay.DeadLetter{}
	for _, k := range all {
		some, err := k.Queue.DeadLetters(ctx, limit)
		if err != nil {
			return nil, err
		}
		letters = append(letters, some...)
	}
	slices.SortStableFunc(letters, func(a, b delay.DeadLetter) int { return b.BuriedAt.Compare(a.BuriedAt) })
	return letters[:min(limit, len(letters))], nil
}

// redrive makes a dead letter of the named kind due now, and reports whether there was one.
func redrive(ctx context.Context, all app.Kinds, name, id string) (bool, error) {
	for _, k := range all {
		if k.Name == name {
			return k.Queue.Redrive(ctx, id)
		}
	}
	return false, nil
}
