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
	"example.com/shop/bench/pgbench"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/timeout"
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
func (b *bench) limits(ctx context.Context, round int) error {
	if !b.results.has(burst, oneStatement, round) {
		if err := b.limitOfBursts(ctx, round); err != nil {
			return err
		}
	}
	if !b.results.has(place, pgbenchPlace, round) {
		return b.limitOfPlace(ctx, round)
	}
	return nil
}

func (b *bench) limitOfBursts(ctx context.Context, round int) error {
	if err := b.empty(ctx); err != nil {
		return err
	}
	c := b.cell(burst, oneStatement, round)
	for range mostBursts {
		rate, err := b.limitOfBurst(ctx)
		if err != nil {
			return err
		}
		c.report(burst, map[string]float64{"rate": rate})
	}
	return b.results.add(c)
}

// limitOfPlace measures how many orders pgbench places, each in a transaction of its own.
func (b *bench) limitOfPlace(ctx context.Context, round int) error {
	if err := b.empty(ctx); err != nil {
		return err
	}
	c := b.cell(place, pgbenchPlace, round)
	r, err := pgbench.Place(ctx, pgbench.Options{
		Database: b.databaseURL, Module: b.module, Clients: pgbenchClients, Products: products, For: b.PlaceFor,
	})
	if errors.Is(err, pgbench.ErrMissing) {
		b.results.noteMissing(pgbenchPlace, place, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	c.report(place, map[string]float64{"rate": r.Rate})
	return b.results.add(c)
}

// limitOfBurst cancels the orders of a burst with one statement, and returns the rate.
func (b *bench) limitOfBurst(ctx context.Context) (rate float64, err error) {
	orders, err := b.place(ctx, slices.Repeat([]time.Time{time.Now()}, b.Burst))
	if err != nil {
		return 0, err
	}
	if err := b.vacuum(ctx); err != nil {
		return 0, err
	}
	tasks := make([]delay.Task, len(orders))
	for i, o := range orders {
		tasks[i].ID = o.ID
	}
	log := slog.New(slog.DiscardHandler)
	service := order.NewService(b.store, nil, order.Config{}, log, prometheus.NewRegistry())
	table := timeout.NewTable(b.gorm, order.CancelKind, service.Rows(), log)
	began := time.Now()
	if _, err := table.Handle(ctx, tasks); err != nil {
		return 0, err
	}
	took := time.Since(began)
	left, err := b.pending(ctx, time.Now())
	if err != nil {
		return 0, err
	}
	if left > 0 {
		return 0, fmt.Errorf("one statement left %d of %d orders pending", left, b.Burst)
	}
	return float64(b.Burst) / took.Seconds(), b.violations(ctx)
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
	c := b.cell(growth, bareZADD, len(pending))
	rate := float64(len(pending)) / time.Since(began).Seconds()
	c.report(growth, map[string]float64{fmt.Sprint(len(pending), "/schedule"): rate})
	if !most {
		return b.results.add(c)
	}
	if info, err = b.redis.Info(ctx, "memory").Result(); err != nil {
		return err
	}
	each := float64(field(info, "used_memory")-before) / float64(len(pending))
	c.report(contender.Memory, map[string]float64{"redis": each})
	return b.results.add(c)
}
