package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/shop/bench/contender"
	"example.com/shop/internal/delay"
)

// fault is what goes wrong once in the process of a contender.
type fault string

// The faults. In each of them but hang the process kills itself (SIGKILL).
const (
	dieAfterPlace   fault = "after the commit of placed orders"
	dieBeforeCancel fault = "when orders were delivered"
	dieAfterCancel  fault = "after the commit of cancelled orders"
	hang            fault = "the next delivery takes longer, whatever its context says"
)

// placing places orders in the process of a contender, and has its faults.
type placing struct {
	pool  *pgxpool.Pool
	fault atomic.Value // the fault of the next order that is placed or delivered
	hang  atomic.Int64 // nanoseconds, if the fault is hang
}

func newPlacing(ctx context.Context, databaseURL string) (*placing, error) {
	pool, err := pgxpool.New(ctx, databaseURL)
	return &placing{pool: pool}, err
}

// happens reports whether a fault was asked for and has not happened yet. Then it happens now.
func (p *placing) happens(f fault) bool { return p.fault.CompareAndSwap(f, fault("")) }

// die kills the process.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// failing returns a handler that also has the faults of a delivery.
func (p *placing) failing(handle delay.Handler) delay.Handler {
	return func(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
		if p.happens(dieBeforeCancel) {
			die()
		}
		if p.happens(hang) {
			contender.Sleep(context.WithoutCancel(ctx), time.Duration(p.hang.Load()))
		}
		outcomes, err := handle(ctx, tasks)
		if err == nil && p.happens(dieAfterCancel) {
			die()
		}
		return outcomes, err
	}
}

// placeTimeout is the longest time for each call of a placement, as the shop's HTTP server allows for a request.
const placeTimeout = 8 * time.Second

// place places orders as the contender's documentation recommends. A call that schedules them after their commit has
// its own time limit, so that a slow commit does not take it away.
func (c *child) place(ctx context.Context, orders []contender.Order) {
	limited := func(call func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, placeTimeout)
		defer cancel()
		return call(ctx)
	}
	var err error
	if placer, ok := c.contender.(contender.Placer); ok {
		err = limited(func(ctx context.Context) error { return placer.Place(ctx, orders) })
	} else {
		err = limited(func(ctx context.Context) error { return c.placing.commit(ctx, orders, nil) })
		if err == nil {
			err = limited(func(ctx context.Context) error { return c.contender.Schedule(ctx, orders) })
		}
	}
	if err != nil {
		c.unscheduled.Add(int64(len(orders)))
		c.log.Warn("orders were not placed, or not scheduled", "orders", len(orders), "error", err)
	}
}

// commit is [contender.Env.Place].
func (p *placing) commit(
	ctx context.Context, orders []contender.Order, also func(ctx context.Context, tx pgx.Tx) error,
) error {
	ids, dues := make([]string, len(orders)), make([]int64, len(orders))
	for i, o := range orders {
		ids[i], dues[i] = o.ID, o.Due.UnixMicro()
	}
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		// Without this order of locks, placements would deadlock with each other and with cancellations.
		if _, err := tx.Exec(ctx, `SELECT FROM products ORDER BY id FOR NO KEY UPDATE`); err != nil {
			return fmt.Errorf("lock products: %w", err)
		}
		if _, err := tx.Exec(ctx, placeSQL, ids, dues, products); err != nil {
			return fmt.Errorf("place orders: %w", err)
		}
		if also == nil {
			return nil
		}
		return also(ctx, tx)
	})
	if err == nil && p.happens(dieAfterPlace) {
		die()
	}
	return err
}
