package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// bench is the part of a run that takes place on one set of servers.
type bench struct {
	*servers
	options
	contenders []contender.Info
	results    *results
	progress   *progress
	first      bool // whether this part measures the limits
}

// runOnServers starts the servers, runs all workloads, and stops the servers. The first part describes the servers in
// the report.
func (b *bench) runOnServers(ctx context.Context, r *report) (err error) {
	if b.servers, err = startServers(ctx, b.given, b.contenders); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	if b.first {
		if r.setup, err = b.describe(ctx); err != nil {
			return err
		}
	}
	return b.run(ctx, func() error {
		if r.Lanes > 1 {
			return nil // the other lanes are not as far
		}
		return r.write(io.Discard)
	})
}

// run runs the workload growth, and then the others in rounds. The contenders take turns, because the speed of a machine
// changes from one minute to the next. Each round has an order of its own, so that a contender does not always follow the
// same contender. It calls save after each round, so that an interrupted run has a report.
func (b *bench) run(ctx context.Context, save func() error) error {
	if err := b.grow(ctx, save); err != nil {
		return err
	}
	for round := range b.Rounds {
		if b.first {
			if err := b.limits(ctx); err != nil {
				return fmt.Errorf("the limits: %w", err)
			}
		}
		for _, i := range rand.Perm(len(b.contenders)) {
			info := b.contenders[i]
			step := b.progress.step(fmt.Sprintf("round %d of %d: %s", round+1, b.Rounds, info.Name))
			if err := b.round(ctx, info, round == 0, step); err != nil {
				return err
			}
		}
		if b.first {
			b.results.endRound()
		}
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

// workload is one of the workloads of a round.
type workload struct {
	name  string
	run   func(t *trial, ctx context.Context) error
	once  bool // in the first round only
	long  bool // with -quick, only ours runs it
	fresh bool // starts with a new process and an empty store
}

var workloads = []workload{
	{name: burst, run: (*trial).runBurst},
	{name: steady, run: (*trial).runSteady, long: true},
	{name: mixed, run: (*trial).runMixed, long: true},
	{name: contender.Reschedule, run: (*trial).runReschedule},
	{name: crash, run: (*trial).runCrash, once: true, long: true, fresh: true},
	{name: contender.StoreLost, run: (*trial).runLost, once: true, long: true, fresh: true},
	{name: place, run: (*trial).runPlace, fresh: true}, // leaves orders that are pending for an hour
}

// round runs the workloads of a round for one contender. If a workload fails, the report says so, and the round goes on
// with the next one.
func (b *bench) round(ctx context.Context, info contender.Info, first bool, show step) error {
	t := &trial{servers: b.servers, sizes: b.sizes, info: info, results: b.results, first: first}
	defer t.end()
	for _, w := range workloads {
		if reason := b.whyNot(info, w); reason != "" {
			b.results.noteMissing(info.Name, w.name, reason)
			continue
		}
		if !first && (w.once || info.Period > 0) {
			continue
		}
		show(w.name)
		if w.fresh {
			t.end()
		}
		if err := t.do(ctx, func() error { return w.run(t, ctx) }); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			show(err.Error())
			b.results.noteMissing(info.Name, w.name, "failed: "+err.Error())
		}
	}
	return nil
}

// whyNot returns why a contender does not run a workload, or "".
func (b *bench) whyNot(info contender.Info, w workload) string {
	if reason := b.missing(info); reason != "" {
		return reason
	}
	if reason := info.Cannot[w.name]; reason != "" {
		return reason
	}
	if info.Period > 0 && w.name != burst && w.name != steady {
		return fmt.Sprintf("not measured: it looks only every %v", info.Period)
	}
	if b.isQuick && (info.Period > 0 || w.long && info.Name != ours.Name) {
		return "not measured with -quick"
	}
	return ""
}

// do runs a workload. It starts the contender first, unless the process of the previous workload is still running. After
// an error, or if orders are left, it ends the process.
func (t *trial) do(ctx context.Context, workload func() error) (err error) {
	if t.w == nil {
		if err := t.empty(ctx); err != nil {
			return err
		}
		if err := t.clean(ctx, t.info); err != nil {
			return err
		}
		if t.w, err = t.start(ctx, t.info); err != nil {
			return err
		}
	}
	if err = workload(); err == nil {
		err = t.violations(ctx)
	}
	if err != nil || t.backlog {
		t.end()
	}
	return err
}

// end kills the process of the contender.
func (t *trial) end() {
	if t.w != nil {
		_ = t.w.kill() // it may have ended already
		t.w, t.backlog = nil, false
	}
}

// grow runs the workload growth. The table has the same pending orders for all contenders, which take turns to be the
// first.
func (b *bench) grow(ctx context.Context, save func() error) error {
	if err := b.empty(ctx); err != nil {
		return err
	}
	var pending []scheduled
	for i, n := range b.Pending {
		more, err := b.place(ctx, slices.Repeat([]time.Time{time.Now().Add(2 * time.Hour)}, n-len(pending)))
		if err != nil {
			return err
		}
		pending = append(pending, more...)
		if err := b.vacuum(ctx); err != nil {
			return err
		}
		most := i == len(b.Pending)-1
		if b.first {
			if err := b.limitOfSchedule(ctx, pending, most); err != nil {
				return err
			}
		}
		for j := range b.contenders {
			info := b.contenders[(i+j)%len(b.contenders)]
			step := b.progress.step(fmt.Sprintf("%s pending: %s", short(n), info.Name))
			if err := b.growWith(ctx, info, pending, most, step); err != nil {
				return err
			}
		}
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) growWith(ctx context.Context, info contender.Info, pending []scheduled, most bool, show step) error {
	if reason := b.whyNot(info, workload{name: growth}); reason != "" {
		for _, workload := range []string{growth, idle, contender.Memory} {
			b.results.noteMissing(info.Name, workload, reason)
		}
		return nil
	}
	show(growth)
	t := &trial{servers: b.servers, sizes: b.sizes, info: info, results: b.results}
	defer t.end()
	err := t.runGrowth(ctx, pending, most)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		show(err.Error())
		b.results.noteMissing(info.Name, growth, "failed: "+err.Error())
	}
	if err != nil || t.backlog {
		return b.postpone(ctx)
	}
	return nil
}

// progress shows how far a run is.
type progress struct {
	mu          sync.Mutex
	to          io.Writer
	began       time.Time
	steps, done int
}

func newProgress(to io.Writer) *progress { return &progress{to: to, began: time.Now()} }

// step writes a line about a part of the step that has begun.
type step func(part string)

// step begins the next step.
func (p *progress) step(name string) step {
	p.mu.Lock()
	p.done++
	n := p.done
	p.mu.Unlock()
	return func(part string) { p.line(fmt.Sprintf("step %d of %d, %s: %s", n, p.steps, name, part)) }
}

func (p *progress) end() { p.line("done") }

func (p *progress) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "%5.0f s  %s\n", time.Since(p.began).Seconds(), text)
}
