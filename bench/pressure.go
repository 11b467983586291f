package main

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// pressure is the workload of the part of this name: orders are placed and cancelled for minutes, and for one of them a
// snapshot is open, which keeps PostgreSQL from removing dead rows.
const pressure = "pressure"

// pressureSizes are the sizes of the part pressure.
type pressureSizes struct {
	Rates    []int         // orders a second that are tried, in this order, to find out which the contender sustains
	TryFor   time.Duration // the deadlines by which each rate is judged
	Minute   time.Duration // the deadlines of a third of the workload
	Window   time.Duration // at the end of each third, of which the figures are
	Lead     time.Duration // from the placement of an order to its deadline, longer than a commit may take
	Interval time.Duration // between two placements, each of all orders of this time
}

// pressed are the contenders that a team would choose for such a load, one of each kind.
var pressed = []string{
	ours.Name, "poll 1s, set-based", "LISTEN/NOTIFY + timer", "in-process heap", "ZSET poll, batches",
	"Redisson's delayed queue, batches", "sharded ZSETs → Stream", "RabbitMQ, per-message TTL", "asynq, tuned",
	"River, tuned", "DBOS, tuned", "gue, tuned",
}

// runPressure runs the workload pressure.
func (b *bench) runPressure(ctx context.Context) error {
	return b.inTurns(1, func(info contender.Info) error {
		show := b.progress.step(pressure + ": " + info.Name)
		if !slices.Contains(pressed, info.Name) || b.isQuick && info.Name != ours.Name || b.missing(info) != "" {
			return nil
		}
		t := b.trial(info)
		defer t.end()
		return b.measure(ctx, t, pressure, 1, show, func() error {
			return t.do(ctx, func() error { return t.runPressure(ctx) })
		})
	})
}

func (t *trial) runPressure(ctx context.Context) error {
	empty, err := t.usage(ctx, t.w)
	if err != nil {
		return err
	}
	sustained, err := t.sustained(ctx)
	if err != nil {
		return err
	}
	p, rate := t.Pressure, max(sustained/2, 1)
	if err := t.vacuum(ctx); err != nil {
		return err
	}
	first := t.firstDeadline()
	if err := t.loadWithSnapshot(ctx, first, rate); err != nil {
		return err
	}
	t.report(pressure, map[string]float64{"sustained": float64(sustained), "rate": float64(rate)})
	for i, third := range []string{"before", "during", "after"} {
		end := first.Add(time.Duration(i+1) * p.Minute)
		l, err := t.lateness(ctx, end.Add(-p.Window), end)
		if err != nil {
			return err
		}
		t.report(pressure, l.values(third+"/"))
		t.report(pressure, map[string]float64{third + "/rate": float64(l.Cancelled) / p.Window.Seconds()})
	}
	return t.reportBloat(ctx, empty)
}

// loadWithSnapshot places and cancels orders for three minutes, and holds a snapshot during the second one.
func (t *trial) loadWithSnapshot(ctx context.Context, first time.Time, rate int) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		contender.Sleep(ctx, time.Until(first.Add(t.Pressure.Minute)))
		return t.holdSnapshot(ctx, t.Pressure.Minute)
	})
	both.Go(func() error { return t.load(ctx, first, rate, 3*t.Pressure.Minute) })
	return both.Wait()
}

// sustained returns the highest of the rates at which the contender places and cancels orders, without being much later
// than usual.
func (t *trial) sustained(ctx context.Context) (rate int, err error) {
	const more = time.Second // than at the lowest rate; the orders that wait make it more within each trial
	usual := 2.0             // seconds; at the lowest rate no contender takes longer, unless orders wait
	for i, next := range t.Pressure.Rates {
		if err := t.vacuum(ctx); err != nil {
			return 0, err
		}
		first := t.firstDeadline()
		if err := t.load(ctx, first, next, t.Pressure.TryFor); err != nil {
			return 0, err
		}
		l, err := t.lateness(ctx, first, first.Add(t.Pressure.TryFor))
		if err != nil {
			return 0, err
		}
		if i == 0 {
			usual = min(usual, l.P99)
		}
		const complete = 0.98 // the rest was not placed in time
		placed := float64(l.Cancelled) >= complete*float64(next)*t.Pressure.TryFor.Seconds()
		if l.Pending > 0 || !placed || l.P99 > usual+more.Seconds() {
			break
		}
		rate = next
	}
	if rate == 0 {
		return 0, errors.New("it does not sustain the lowest rate")
	}
	return rate, nil
}

// firstDeadline returns the deadline of orders that are placed now.
func (t *trial) firstDeadline() time.Time {
	return time.Now().Add(t.pressureLead()).Truncate(time.Microsecond)
}

// pressureLead returns the time from the placement of an order to its deadline.
func (t *trial) pressureLead() time.Duration { return t.Pressure.Lead + t.info.Ahead }

// load places orders at a rate, whose deadlines begin at first, and waits until they are cancelled. Each placement
// comes earlier than its deadline by the lead. Placements go on until the deadlines have lasted for a time, so that all
// orders of this time are cancelled while others are placed.
func (t *trial) load(ctx context.Context, first time.Time, rate int, lasting time.Duration) error {
	placed, due := 0, first
	for at := time.Duration(0); at < lasting+t.pressureLead(); at += t.Pressure.Interval {
		due = first.Add(at)
		contender.Sleep(ctx, time.Until(due.Add(-t.pressureLead())))
		if err := ctx.Err(); err != nil {
			return err
		}
		upTo := int((at + t.Pressure.Interval).Seconds() * float64(rate))
		if err := t.w.place(newOrders(upTo-placed, due, t.Pressure.Interval)); err != nil {
			return err
		}
		placed = upTo
	}
	return t.await(ctx, due.Add(t.Pressure.Interval), t.Patience)
}

// holdSnapshot keeps a snapshot open for a time, as a long query of an analyst does.
func (t *trial) holdSnapshot(ctx context.Context, lasting time.Duration) error {
	tx, err := t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var orders int
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
		return err
	}
	contender.Sleep(ctx, lasting)
	return ctx.Err()
}

// reportBloat reports the sizes of the tables and of the index of deadlines, in bytes for each order that was placed,
// and the memory. empty is the usage before the first order.
func (t *trial) reportBloat(ctx context.Context, empty usage) error {
	u, err := t.usage(ctx, t.w)
	if err != nil {
		return err
	}
	memory, err := residentMemory(ctx, t.w.pid())
	if err != nil {
		return err
	}
	values := map[string]float64{"process": float64(memory)}
	if slices.Contains(t.info.Servers, contender.Redis) {
		values["store"] = float64(u.redisMemory - empty.redisMemory)
	}
	if needsRabbit(t.info) {
		values["store"] = float64(u.rabbitMemory - empty.rabbitMemory)
	}
	var orders, index, shop float64
	err = t.db.QueryRowContext(ctx, `
		SELECT (SELECT count(*) FROM orders), pg_relation_size('orders_pending_deadline'),
		       sum(pg_total_relation_size(t))
		FROM unnest('{orders, order_items, products}'::regclass[]) AS t`).Scan(&orders, &index, &shop)
	if err != nil {
		return err
	}
	values["index"], values["shop"], values["tables"] = index/orders, shop/orders, float64(u.tables-empty.tables)/orders
	t.report(pressure, values)
	return nil
}
