package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/bench/contender"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest/pgbench"
	"example.com/shop/internal/reconcile"
)

// The names of the limits, which stand in the tables beside the contenders.
const (
	oneStatement = "limit: one SQL statement"
	bareZADD     = "limit: bare ZADD"
	pgbenchPlace = "limit: pgbench, one by one"
)

// pgbenchClients is the number of clients with which pgbench places orders.
const pgbenchClients = 16

// limits measures simple programs that do only a part of the work of a contender.
func (b *bench) limits(ctx context.Context) error {
	if err := b.empty(ctx); err != nil {
		return err
	}
	for range mostBursts {
		if err := b.limitOfBurst(ctx); err != nil {
			return err
		}
	}
	r, err := pgbench.Place(ctx, pgbench.Load{
		Database: b.databaseURL, Module: b.module, Clients: pgbenchClients, Products: products, For: b.PlaceFor,
	})
	switch {
	case errors.Is(err, pgbench.ErrMissing):
		b.results.noteMissing(pgbenchPlace, place, err.Error())
	case err != nil:
		return err
	default:
		b.results.add(pgbenchPlace, metric{place, "rate"}, r.Rate)
	}
	return nil
}

// limitOfBurst cancels the orders of a burst with one statement.
func (b *bench) limitOfBurst(ctx context.Context) error {
	orders, err := b.place(ctx, slices.Repeat([]time.Time{time.Now()}, b.Burst))
	if err != nil {
		return err
	}
	if err := b.vacuum(ctx); err != nil {
		return err
	}
	tasks := make([]delay.Task, len(orders))
	for i, o := range orders {
		tasks[i].ID = o.ID
	}
	log := slog.New(slog.DiscardHandler)
	service := order.NewService(b.store, nil, order.Config{}, log, prometheus.NewRegistry())
	table := reconcile.NewTable(b.gorm, order.CancelKind, service.Rows(), nil, log)
	began := time.Now()
	if _, err := table.Handle(ctx, tasks); err != nil {
		return err
	}
	took := time.Since(began)
	left, err := b.pending(ctx, time.Now())
	if err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("one statement left %d of %d orders pending", left, b.Burst)
	}
	b.results.add(oneStatement, metric{burst, "rate"}, float64(b.Burst)/took.Seconds())
	return b.violations(ctx)
}

// limitOfSchedule adds the ids of orders to one sorted set, 1,000 in each command. With the most orders it measures the
// memory of the set.
func (b *bench) limitOfSchedule(ctx context.Context, pending []scheduled, most bool) error {
	if err := b.redis.FlushDB(ctx).Err(); err != nil {
		return err
	}
	info, err := b.redis.Info(ctx, "memory").Result()
	if err != nil {
		return err
	}
	before, began := field(info, "used_memory"), time.Now()
	for some := range slices.Chunk(pending, 1000) {
		if err := contender.ZAdd(ctx, b.redis, "bare", contenderOrders(some)); err != nil {
			return err
		}
	}
	b.results.add(bareZADD, metric{growth, fmt.Sprint(len(pending), "/schedule")},
		float64(len(pending))/time.Since(began).Seconds())
	if !most {
		return nil
	}
	if info, err = b.redis.Info(ctx, "memory").Result(); err != nil {
		return err
	}
	b.results.add(bareZADD, metric{contender.Memory, "redis"},
		float64(field(info, "used_memory")-before)/float64(len(pending)))
	return nil
}
