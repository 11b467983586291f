package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// part is a part of a run: workloads that take place on the same servers.
type part struct {
	name  string
	run   func(b *bench, ctx context.Context) error
	lanes func(sizes) int // the number of contenders that run at the same time, each lane with servers of its own
	runs  func(sizes) int // how often each contender takes its turn
}

var parts = []part{
	{"pressure", (*bench).runPressure, func(s sizes) int { return s.Lanes }, func(sizes) int { return 1 }},
	{"growth", (*bench).runGrowth, func(s sizes) int { return s.Lanes }, func(s sizes) int { return len(s.Pending) }},
	{"speed", (*bench).runSpeed, func(s sizes) int { return s.Lanes }, func(s sizes) int { return s.Rounds }},
	{faults, (*bench).runFaults, func(s sizes) int { return s.FaultLanes }, func(s sizes) int { return s.FaultRuns }},
}

// builds reports whether the program whose clock is ahead is built for a part.
func (r *report) builds(p part) bool {
	return p.name == faults && slices.ContainsFunc(r.contenders, func(c contender.Info) bool {
		return slices.ContainsFunc(faultCases, func(f faultCase) bool { return f.builds && r.whyNoFault(c, f) == "" })
	})
}

// steps returns the number of steps whose progress the part shows.
func (p part) steps(r *report) int { return p.runs(r.sizes) * len(r.contenders) }

func partNames(parts []part) string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// partOf returns the name of the part that has a workload.
func partOf(workload string) string {
	switch {
	case slices.ContainsFunc(faultCases, func(f faultCase) bool { return f.name == workload }):
		return faults
	case slices.ContainsFunc(parts, func(p part) bool { return p.name == workload }):
		return workload
	default:
		return "speed"
	}
}

// findParts returns the parts with the names, in the order of a run.
func findParts(names string) (found []part, err error) {
	switch names {
	case "all":
		return parts, nil
	case "none":
		return nil, nil
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("there is no part %q; they are: %s; or all, or none", name, partNames(parts))
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(wanted, p.name) }), nil
}

// bench is a lane of a run.
type bench struct {
	*servers
	options
	contenders []contender.Info
	results    *results
	progress   *progress
	first      bool                   // whether this lane measures the limits
	setup      string                 // see [setup]
	ahead      func() (string, error) // builds the program whose clock is ahead, and returns its path
}

// runOnServers starts the servers, runs parts, and stops the servers.
func (b *bench) runOnServers(ctx context.Context, parts []part) (err error) {
	if b.servers, err = startServers(ctx, b.given, b.contenders); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	lines, err := b.describe(ctx)
	if err != nil {
		return err
	}
	if b.setup, err = b.results.describe(lines); err != nil {
		return err
	}
	for _, part := range parts {
		if err := part.run(b, ctx); err != nil {
			return err
		}
	}
	return nil
}

// inTurns calls f for each contender, in an order that depends on the seed and on the run. So the contenders take
// turns, because the speed of a machine changes from one minute to the next, and none always follows the same other
// one.
func (b *bench) inTurns(run int, f func(info contender.Info) error) error {
	order := rand.New(rand.NewPCG(b.seed, uint64(run)))
	for _, i := range order.Perm(len(b.contenders)) {
		if err := f(b.contenders[i]); err != nil {
			return err
		}
	}
	return nil
}

// cell returns the cell of a workload that begins now.
func (b *bench) cell(workload, name string, run int) cell {
	return cell{Workload: workload, Contender: name, Run: run, Seed: b.seed, Setup: b.setup, At: time.Now().UTC()}
}

// measure runs a workload of a contender, and stores its cell. If the workload fails, the report says so, and the run
// goes on: the error is that of ctx or of the file of the results.
func (b *bench) measure(ctx context.Context, t *trial, workload string, run int, show step, f func() error) error {
	if b.results.has(workload, t.info.Name, run) {
		return nil
	}
	show(workload)
	t.cell = b.cell(workload, t.info.Name, run)
	err := f()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		show(err.Error())
		t.cell.Failed, t.cell.Values = err.Error(), nil
	}
	return b.results.add(t.cell)
}

// workload is one of the workloads of the part speed.
type workload struct {
	name  string
	run   func(t *trial, ctx context.Context) error
	long  bool // with -quick, only ours runs it
	fresh bool // starts with a new process and an empty store
}

var workloads = []workload{
	{name: burst, run: (*trial).runBurst},
	{name: steady, run: (*trial).runSteady, long: true},
	{name: mixed, run: (*trial).runMixed, long: true},
	{name: contender.Reschedule, run: (*trial).runReschedule},
	{name: place, run: (*trial).runPlace, fresh: true}, // leaves orders that are pending for an hour
}

// runSpeed runs the workloads in rounds.
func (b *bench) runSpeed(ctx context.Context) error {
	for round := 1; round <= b.Rounds; round++ {
		if b.first {
			if err := b.limits(ctx, round); err != nil {
				return fmt.Errorf("the limits: %w", err)
			}
		}
		err := b.inTurns(round, func(info contender.Info) error {
			show := b.progress.step(fmt.Sprintf("round %d of %d: %s", round, b.Rounds, info.Name))
			return b.round(ctx, info, round, show)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// round runs the workloads of a round for one contender.
func (b *bench) round(ctx context.Context, info contender.Info, round int, show step) error {
	t := b.trial(info)
	defer t.end()
	for _, w := range workloads {
		if reason := b.whyNot(info, w); reason != "" {
			b.results.noteMissing(info.Name, w.name, reason)
			continue
		}
		if round > 1 && info.Period > 0 {
			continue
		}
		if w.fresh {
			t.end()
		}
		run := func() error { return t.do(ctx, func() error { return w.run(t, ctx) }) }
		if err := b.measure(ctx, t, w.name, round, show, run); err != nil {
			return err
		}
	}
	return nil
}

// trial returns the trial of a contender.
func (b *bench) trial(info contender.Info) *trial {
	return &trial{servers: b.servers, sizes: b.sizes, info: info, results: b.results, ahead: b.ahead}
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

// do runs a workload. It starts the contender first, unless the process of the previous workload is still running.
// After an error, or if orders are left, it ends the process.
func (t *trial) do(ctx context.Context, workload func() error) (err error) {
	if t.w == nil {
		if err := t.begin(ctx); err != nil {
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

// begin removes all orders, and starts the contender with an empty store.
func (t *trial) begin(ctx context.Context) (err error) {
	if err := t.empty(ctx); err != nil {
		return err
	}
	if err := t.clean(ctx, t.info); err != nil {
		return err
	}
	t.w, err = t.start(ctx, t.info, instance{})
	return err
}

// end kills the processes of the contender.
func (t *trial) end() {
	if t.w != nil {
		_ = t.w.kill() // it may have ended already
		t.w, t.backlog = nil, false
	}
	for _, w := range t.others {
		_ = w.kill()
	}
	t.others, t.poisoned = nil, nil
}

// runGrowth runs the workload growth. The table has the same pending orders for all contenders, which take turns to be
// the first.
func (b *bench) runGrowth(ctx context.Context) error {
	if err := b.empty(ctx); err != nil {
		return err
	}
	due := time.Now().Add(2 * time.Hour)
	var pending []scheduled
	for i, n := range b.Pending {
		left := slices.DeleteFunc(slices.Clone(b.contenders), func(info contender.Info) bool {
			return b.results.has(growth, info.Name, n)
		})
		if len(left) == 0 {
			continue
		}
		more, err := b.place(ctx, slices.Repeat([]time.Time{due}, n-len(pending)))
		if err != nil {
			return err
		}
		pending = append(pending, more...)
		if err := b.vacuum(ctx); err != nil {
			return err
		}
		most := n == slices.Max(b.Pending)
		if b.first && !b.results.has(growth, bareZADD, n) {
			if err := b.limitOfSchedule(ctx, pending, most); err != nil {
				return err
			}
		}
		for j := range left {
			info := left[(i+j)%len(left)]
			if time.Until(due) < 2*b.ScheduleFor {
				return errors.New("growth: the pending orders become due; with the same -results, a new run measures the rest")
			}
			step := b.progress.step(fmt.Sprintf("%s pending: %s", short(n), info.Name))
			if err := b.growWith(ctx, info, pending, most, step); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) growWith(
	ctx context.Context, info contender.Info, pending []scheduled, most bool, show step,
) error {
	if reason := b.whyNot(info, workload{name: growth}); reason != "" {
		for _, workload := range []string{growth, idle, contender.Memory} {
			b.results.noteMissing(info.Name, workload, reason)
		}
		return nil
	}
	t := b.trial(info)
	defer t.end()
	err := b.measure(ctx, t, growth, len(pending), show, func() error { return t.runGrowth(ctx, pending, most) })
	if err == nil && (t.backlog || t.cell.Failed != "") {
		err = b.postpone(ctx)
	}
	return err
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
