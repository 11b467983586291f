// Package inprocess runs the contenders that keep the orders in the memory of the process. It loads the orders from the
// table when the process starts. Its workers cancel one order at a time.
package inprocess

import (
	"context"
	"sync"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/pending"
)

// Timers is a store of orders in memory. Its methods may be called concurrently.
type Timers interface {
	// Add adds the orders. An order that is added again is delivered again.
	Add(orders ...contender.Order)
	// Deliver sends the id of each order to ids when the order is due, until ctx ends.
	Deliver(ctx context.Context, ids chan<- string)
}

// New returns a contender that keeps the orders in timers.
func New(env contender.Env, timers Timers) contender.Contender {
	return &inProcess{env: env, timers: timers}
}

type inProcess struct {
	env    contender.Env
	timers Timers
}

// Schedule adds the orders. The old timer of an order that is scheduled again stays: if it fires too early, Cancel
// returns the order.
func (p *inProcess) Schedule(_ context.Context, orders []contender.Order) error {
	p.timers.Add(orders...)
	return nil
}

func (p *inProcess) Run(ctx context.Context, ready func()) error {
	var group sync.WaitGroup
	defer group.Wait()
	ids := make(chan string)
	group.Go(func() { p.timers.Deliver(ctx, ids) })
	for range contender.Workers {
		group.Go(func() {
			contender.Repeat(ctx, p.env.Log, func(ctx context.Context) error { return p.cancelNext(ctx, ids) })
		})
	}
	p.load(ctx)
	if ctx.Err() == nil {
		ready()
	}
	return nil
}

// load adds all pending orders. It tries until it succeeds or ctx ends. An order that it adds twice is delivered twice.
func (p *inProcess) load(ctx context.Context) {
	ctx, loaded := context.WithCancel(ctx)
	defer loaded()
	contender.Repeat(ctx, p.env.Log, func(ctx context.Context) error {
		err := pending.All(ctx, p.env.DB, func(page []contender.Order) error {
			p.timers.Add(page...)
			return nil
		})
		if err == nil {
			loaded()
		}
		return err
	})
}

// cancelNext waits for the next order that is due, and cancels it.
func (p *inProcess) cancelNext(ctx context.Context, ids <-chan string) error {
	select {
	case <-ctx.Done():
		return nil
	case id := <-ids:
		early, err := p.env.Cancel(ctx, id)
		if err != nil {
			early = []contender.Order{{ID: id, Due: time.Now()}}
		}
		p.timers.Add(early...)
		return err
	}
}
