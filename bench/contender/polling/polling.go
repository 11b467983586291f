// Package polling times out orders with a periodic job that asks the table which orders are due. It is the first way in
// every overview of order timeouts.
//
// The usual job cancels the orders one by one, each in its own transaction, and runs once a minute. The set-based job
// cancels a page of orders in a transaction. Both read the due orders in keyset pages from the index on (due_at, id),
// so the cost of a poll does not grow with the orders that are not due.
//
// An order is late by up to the interval, on average by half of it. If a poll takes longer than the interval, the next
// one starts when it ends. So a burst of orders, cancelled one by one, delays all orders behind it. Each process polls,
// so several processes read the same due orders.
package polling

import (
	"context"
	"errors"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/pending"
)

// Contenders are the intervals and the kinds of job.
var Contenders = []contender.Info{
	info("poll 1s, one by one", time.Second, oneByOne),
	info("poll 60s, one by one", time.Minute, oneByOne),
	info("poll 1s, set-based", time.Second, setBased),
	info("poll 60s, set-based", time.Minute, setBased),
}

// job is a way to cancel the orders that are due.
type job struct {
	way, settings string
	cancelDue     func(ctx context.Context, env contender.Env) error
}

var (
	oneByOne = job{
		way:       "At each interval, a job reads the due orders from the table and cancels each in its own transaction.",
		settings:  "reads pages of 500 orders; the source polls every 60 s",
		cancelDue: cancelOneByOne,
	}
	setBased = job{
		way:      "At each interval, a job reads the due orders from the table and cancels a page in one transaction.",
		settings: "pages of 500 orders; the source polls every 60 s and cancels one by one",
		cancelDue: func(ctx context.Context, env contender.Env) error {
			_, err := pending.CancelDue(ctx, env) // the next poll finds those that must be tried again
			return err
		},
	}
)

func info(name string, every time.Duration, job job) contender.Info {
	var period time.Duration
	if every > 10*time.Second {
		period = every
	}
	return contender.Info{
		Name: name,
		Way:  job.way,
		Source: "https://www.besthub.dev/articles/how-to-build-a-reliable-15-minute-order-auto-cancel-in-java-" +
			"from-na-ve-scheduled-to-production-ready-redisson-5371083a8e22",
		Settings: job.settings,
		Period:   period,
		Cannot:   pending.Cannot,
		Loads:    true,
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return &poller{env: env, every: every, cancelDue: job.cancelDue}, nil
		},
	}
}

type poller struct {
	env       contender.Env
	every     time.Duration
	cancelDue func(ctx context.Context, env contender.Env) error
}

// Schedule does nothing: the table has the due times.
func (*poller) Schedule(context.Context, []contender.Order) error { return nil }

// Run polls at once and then at a fixed rate.
func (p *poller) Run(ctx context.Context, ready func()) error {
	ready()
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	contender.Repeat(ctx, p.env.Log, func(ctx context.Context) error {
		if err := p.cancelDue(ctx, p.env); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		return nil
	})
	return nil
}

func cancelOneByOne(ctx context.Context, env contender.Env) error {
	return pending.Due(ctx, env.DB, func(page []contender.Order) (err error) {
		for _, order := range page {
			// The next poll finds an order that must be tried again.
			_, failed := env.Cancel(ctx, order.ID)
			err = errors.Join(err, failed)
		}
		return err
	})
}
