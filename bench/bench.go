package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"example.com/shop/bench/contender"
)

// bench is a run of the benchmark.
type bench struct {
	*servers
	options
	contenders []contender.Info
	results    *results
	progress   *progress
}

// run runs all workloads. The contenders take turns, and each round begins with another one, because the speed of a
// machine changes from one minute to the next.
func (b *bench) run(ctx context.Context) error {
	b.progress.steps = (b.Rounds + len(b.Pending)) * len(b.contenders)
	for round := range b.Rounds {
		if err := b.limits(ctx); err != nil {
			return fmt.Errorf("the limits: %w", err)
		}
		for i := range b.contenders {
			info := b.contenders[(round+i)%len(b.contenders)]
			b.progress.step(fmt.Sprintf("round %d of %d: %s", round+1, b.Rounds, info.Name))
			if err := b.round(ctx, info, round == 0); err != nil {
				return err
			}
		}
	}
	defer b.progress.end()
	return b.grow(ctx)
}

// workload is one of the workloads of a round.
type workload struct {
	name string
	run  func(t *trial, ctx context.Context) error
	once bool // in the first round only
}

var workloads = []workload{
	{burst, (*trial).runBurst, false},
	{steady, (*trial).runSteady, false},
	{place, (*trial).runPlace, false},
	{mixed, (*trial).runMixed, true},
	{contender.Reschedule, (*trial).runReschedule, true},
	{crash, (*trial).runCrash, true},
	{contender.StoreLost, (*trial).runLost, true},
}

// round runs the workloads of a round for one contender. If a workload fails, the report says so, and the round goes on
// with the next one.
func (b *bench) round(ctx context.Context, info contender.Info, first bool) error {
	if reason := b.missing(info); reason != "" {
		for _, w := range workloads {
			b.results.refuse(info.Name, w.name, reason)
		}
		return nil
	}
	if info.Period > 0 && !first {
		return nil
	}
	t := &trial{servers: b.servers, sizes: b.sizes, info: info, results: b.results, first: first}
	defer t.end()
	for _, w := range workloads {
		switch reason := info.Cannot[w.name]; {
		case reason != "":
			b.results.refuse(info.Name, w.name, reason)
			continue
		case info.Period > 0 && w.name != burst && w.name != steady:
			b.results.refuse(info.Name, w.name, fmt.Sprintf("not measured: it looks only every %v", info.Period))
			continue
		case w.once && !first:
			continue
		}
		b.progress.show(w.name)
		if err := t.do(ctx, func() error { return w.run(t, ctx) }); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			b.progress.note(fmt.Sprintf("%s, %s: %v", info.Name, w.name, err))
			b.results.refuse(info.Name, w.name, "failed: "+err.Error())
		}
	}
	return nil
}

// do runs a workload in a clean process of the contender, or in that of the workload before. After an error the process
// is killed.
func (t *trial) do(ctx context.Context, workload func() error) (err error) {
	if t.w == nil {
		if err := t.empty(ctx); err != nil {
			return err
		}
		if t.w, err = t.start(ctx, t.info, true); err != nil {
			return err
		}
	}
	if err = workload(); err == nil {
		err = t.violations(ctx)
	}
	if err != nil {
		t.end()
	}
	return err
}

// end kills the process of the contender.
func (t *trial) end() {
	if t.w != nil {
		_ = t.w.kill() // it may have ended already
		t.w = nil
	}
}

// grow runs the workload growth. The table has the same pending orders for all contenders.
func (b *bench) grow(ctx context.Context) error {
	if err := b.empty(ctx); err != nil {
		return err
	}
	var pending []scheduled
	for i, n := range b.Pending {
		more, err := b.place(ctx, repeated(time.Now().Add(2*time.Hour), n-len(pending)))
		if err != nil {
			return err
		}
		pending = append(pending, more...)
		if err := b.settle(ctx); err != nil {
			return err
		}
		if err := b.limitOfSchedule(ctx, pending); err != nil {
			return err
		}
		most := i == len(b.Pending)-1
		for _, info := range b.contenders {
			b.progress.step(fmt.Sprintf("%s pending: %s", short(n), info.Name))
			if err := b.growWith(ctx, info, pending, most); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) growWith(ctx context.Context, info contender.Info, pending []scheduled, most bool) error {
	reason := b.missing(info)
	if info.Period > 0 {
		reason = fmt.Sprintf("not measured: it looks only every %v", info.Period)
	}
	if reason != "" {
		b.results.refuse(info.Name, growth, reason)
		b.results.refuse(info.Name, idle, reason)
		return nil
	}
	t := &trial{servers: b.servers, sizes: b.sizes, info: info, results: b.results}
	defer t.end()
	err := t.runGrowth(ctx, pending, most)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		b.progress.note(fmt.Sprintf("%s, %s: %v", info.Name, growth, err))
		b.results.refuse(info.Name, growth, "failed: "+err.Error())
	}
	return nil
}

// progress shows how far a run is: a line for each step, with the names of its workloads as they begin.
type progress struct {
	to          io.Writer
	began       time.Time
	steps, done int
}

func newProgress(to io.Writer) *progress { return &progress{to: to, began: time.Now()} }

// step begins the next step.
func (p *progress) step(name string) {
	p.done++
	fmt.Fprintf(p.to, "\n%5.0f s, step %d of %d: %s", time.Since(p.began).Seconds(), p.done, p.steps, name)
}

// show adds the name of a workload to the line of the step.
func (p *progress) show(workload string) { fmt.Fprint(p.to, ", "+workload) }

// note writes a line about a failure.
func (p *progress) note(text string) { fmt.Fprint(p.to, "\n        "+text) }

// end ends the last line.
func (p *progress) end() { fmt.Fprintf(p.to, "\n%5.0f s, done\n", time.Since(p.began).Seconds()) }
