package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"example.com/shop/bench/contender"
)

// sizes are the sizes of the workloads.
type sizes struct {
	Rounds      int           // of the workloads that are measured in each round
	Burst       int           // orders that are due at one instant
	BurstFor    time.Duration // a round repeats the burst until the bursts took this long, at most mostBursts times
	Steady      []int         // orders due per second
	SteadyFor   time.Duration // how long
	Unit        time.Duration // of the delays of the workloads below
	Mixed       int           // orders with a long delay, and as many with a short one
	Reschedule  int           // orders that get an earlier deadline, and as many that get a later one
	PlaceFor    time.Duration // how long orders are placed over HTTP
	Pending     []int         // orders that are pending and not due, while others are cancelled
	ScheduleFor time.Duration // the longest time for the pending orders of the workload growth
	IdleFor     time.Duration // how long a contender with the most pending orders is watched: one sweep of ours, each 30 s
	GrowthDue   int           // orders that are due at one instant beside the pending ones

	Patience time.Duration // how long the benchmark waits for orders that are not cancelled, without a fault

	Lanes int // contenders that run at the same time, each lane with servers of its own

	FaultLanes int // as Lanes, for the part faults
	FaultRuns  int // of the part faults
	Faults     faultSizes
	Pressure   pressureSizes
}

var full = sizes{
	Rounds: 3, Burst: 10_000, BurstFor: 2 * time.Second,
	Steady: []int{200, 2_000}, SteadyFor: 3 * time.Second,
	Unit: 700 * time.Millisecond, Mixed: 500, Reschedule: 500, PlaceFor: time.Second,
	Pending: []int{10_000, 1_000_000}, ScheduleFor: 3 * time.Minute, IdleFor: 30 * time.Second, GrowthDue: 5_000,
	Patience:   15 * time.Second,
	Lanes:      1,
	FaultLanes: 24, FaultRuns: 2,
	Faults: faultSizes{
		Orders: 500, Tries: 3, Most: 12, Kills: 50, Bursts: 5,
		Lead: 3 * time.Second, Spread: 10 * time.Second, Restart: 2 * time.Second,
		Away: 5 * time.Second, Hang: 5 * time.Second, Lost: 4 * time.Minute, // asynq's recovery takes up to three
	},
	Pressure: pressureSizes{
		Rates: []int{250, 500, 1000, 2000, 4000, 8000}, TryFor: 6 * time.Second, Minute: time.Minute,
		Window: 30 * time.Second, Lead: placeTimeout + 2*time.Second, Interval: 100 * time.Millisecond,
	},
}

var quick = sizes{
	Rounds: 1, Burst: 200, Steady: []int{100}, SteadyFor: time.Second,
	Unit: 300 * time.Millisecond, Mixed: 20, Reschedule: 20, PlaceFor: 300 * time.Millisecond,
	Pending: []int{1_000}, ScheduleFor: time.Minute, IdleFor: time.Second, GrowthDue: 100,
	Patience:   30 * time.Second,
	Lanes:      6,
	FaultLanes: 6, FaultRuns: 1,
	Faults: faultSizes{
		Orders: 50, Tries: 1, Kills: 2, Bursts: 2, Lead: time.Second, Spread: time.Second, Restart: 200 * time.Millisecond,
		Away: time.Second, Hang: time.Second, Lost: 15 * time.Second,
	},
	Pressure: pressureSizes{
		Rates: []int{50}, TryFor: time.Second, Minute: time.Second, Window: time.Second, Lead: time.Second,
		Interval: 100 * time.Millisecond,
	},
}

// The names of the workloads.
const (
	burst  = "burst"
	steady = "steady"
	mixed  = "mixed"
	place  = "place"
	idle   = "idle"
	growth = "growth"

	schedule = "schedule" // not a workload: the rate at which a contender schedules the orders of other workloads
)

// trial is a contender in one round.
type trial struct {
	*servers
	sizes
	info    contender.Info
	results *results
	w       *worker // nil: not started
	backlog bool    // the process has not cancelled all orders of a workload
	cell    cell    // of the workload that runs

	// Of the part faults only.
	ahead    func() (string, error) // see [bench]
	others   []*worker              // processes beside w
	poisoned []string               // the ids of orders that PostgreSQL refuses to cancel
}

// lead returns a time within which n orders can be inserted and scheduled, as early as the contender needs.
func (t *trial) lead(n int) time.Duration {
	const insertRate = 15_000
	rate, known := t.scheduleRate()
	if !known {
		rate = 4_000
	}
	return t.Unit + t.info.Ahead + time.Duration((float64(n)/insertRate+1.5*float64(n)/rate)*float64(time.Second))
}

// scheduleRate returns how many orders a second the contender scheduled the last time, if it has scheduled any.
func (t *trial) scheduleRate() (rate float64, known bool) {
	cells := t.results.cells(t.info.Name)
	slices.SortFunc(cells, func(a, b cell) int { return a.At.Compare(b.At) })
	for _, c := range append(cells, t.cell) {
		if rates := c.Values[schedule]["rate"]; len(rates) > 0 {
			rate, known = rates[len(rates)-1], true
		}
	}
	return rate, known
}

// prepare inserts and schedules an order for each of the offsets from a time that it returns. The time is later than
// the end of the preparation, so the benchmark does nothing while orders become due.
func (t *trial) prepare(ctx context.Context, offsets []time.Duration) (start time.Time, orders []scheduled, err error) {
	lead := t.lead(len(offsets))
	for range 4 {
		if err := t.vacuum(ctx); err != nil {
			return start, nil, err
		}
		start = time.Now().Add(lead).Truncate(time.Microsecond)
		due := make([]time.Time, len(offsets))
		for i, offset := range offsets {
			due[i] = start.Add(offset)
		}
		if orders, err = t.place(ctx, due); err != nil {
			return start, nil, err
		}
		scheduling := time.Now()
		if err := t.w.schedule(orders); err != nil {
			return start, nil, err
		}
		t.report(schedule, map[string]float64{"rate": float64(len(orders)) / time.Since(scheduling).Seconds()})
		if time.Until(start) > t.info.Ahead {
			return start, orders, nil
		}
		// It was too late to schedule them. These orders must be gone before the next attempt.
		if err := t.await(ctx, slices.MaxFunc(due, time.Time.Compare), t.Patience); err != nil {
			return start, nil, err
		}
		lead *= 2
	}
	return start, nil, fmt.Errorf("%s could not schedule %d orders within %v", t.info.Name, len(offsets), lead/2)
}

// same returns n equal offsets.
func same(n int) []time.Duration { return make([]time.Duration, n) }

// evenly returns the offsets of n orders a second, for a time.
func evenly(rate int, lasting time.Duration) (offsets []time.Duration) {
	interval := time.Second / time.Duration(rate)
	for at := time.Duration(0); at < lasting; at += interval {
		offsets = append(offsets, at)
	}
	return offsets
}

// atMost is how much longer than its patience the benchmark waits for orders that are cancelled slowly.
const atMost = 20 * time.Second

// cancelled waits until all orders due from start to last are cancelled, or until a time limit. It returns their
// lateness.
func (t *trial) cancelled(ctx context.Context, start, last time.Time) (lateness, error) {
	ctx, cancel := context.WithDeadline(ctx, last.Add(t.info.Period+t.Patience+atMost))
	defer cancel()
	if err := t.await(ctx, last, t.info.Period+t.Patience); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return lateness{}, err
	}
	l, err := t.lateness(context.WithoutCancel(ctx), start, last)
	t.backlog = t.backlog || l.Pending > 0
	return l, err
}

// burst cancels orders that are due at one instant.
func (t *trial) burst(ctx context.Context, n int) (l lateness, err error) {
	start, _, err := t.prepare(ctx, same(n))
	if err != nil {
		return l, err
	}
	return t.cancelled(ctx, start, start)
}

// mostBursts is the most bursts of a contender in a round.
const mostBursts = 3

// runBurst measures bursts. One burst of a fast contender is so short that a single slow write to the disk changes its
// rate, so such a contender has several.
func (t *trial) runBurst(ctx context.Context) error {
	if t.info.Period > 0 {
		contender.Sleep(ctx, rand.N(t.info.Period)) // so that the orders are not always due at the same time after a look
	}
	var took time.Duration
	for range mostBursts {
		l, err := t.measureBurst(ctx)
		if err != nil {
			return err
		}
		took += time.Duration(l.LastEnd * float64(time.Second))
		if took >= t.BurstFor || l.Pending > 0 {
			break
		}
	}
	return nil
}

func (t *trial) measureBurst(ctx context.Context) (l lateness, err error) {
	before, err := t.w.counts()
	if err != nil {
		return l, err
	}
	if l, err = t.burst(ctx, t.Burst); err != nil {
		return l, err
	}
	after, err := t.w.counts()
	if err != nil {
		return l, err
	}
	t.report(burst, map[string]float64{
		"rate":    l.rate(),
		"working": float64(l.Cancelled) / max(l.LastEnd-l.FirstCommit, 0.001),
		"doubled": float64(after.Repeated - before.Repeated),
		"pending": float64(l.Pending),
	})
	return l, nil
}

// report adds results of the contender.
func (t *trial) report(workload string, values map[string]float64) {
	t.cell.report(workload, values)
}

// steady cancels orders whose deadlines are spread evenly.
func (t *trial) steady(ctx context.Context, rate int) error {
	lasting := max(t.SteadyFor, t.info.Period)
	start, _, err := t.prepare(ctx, evenly(rate, lasting))
	if err != nil {
		return err
	}
	lag := watchTimer(start, lasting)
	l, err := t.cancelled(ctx, start, start.Add(lasting))
	if err != nil {
		return err
	}
	prefix := fmt.Sprint(rate, "/")
	t.report(steady, l.values(prefix))
	t.report(steady, map[string]float64{prefix + "lag": (<-lag).Seconds()})
	return nil
}

// watchTimer sends the 99th percentile of how late timers of this process are for a time from start on, which shows how
// busy the machine is.
func watchTimer(start time.Time, lasting time.Duration) <-chan time.Duration {
	p99 := make(chan time.Duration, 1)
	go func() {
		<-time.After(time.Until(start))
		var late []float64
		const every = 5 * time.Millisecond
		for end := time.Now().Add(lasting); time.Now().Before(end); {
			began := time.Now()
			<-time.After(every)
			late = append(late, (time.Since(began) - every).Seconds())
		}
		p99 <- time.Duration(quantile(late, 0.99) * float64(time.Second))
	}()
	return p99
}

func (t *trial) runSteady(ctx context.Context) error {
	rates := t.Steady
	if t.info.Period > 0 {
		rates = rates[:1]
	}
	for _, rate := range rates {
		if err := t.steady(ctx, rate); err != nil {
			return err
		}
	}
	return nil
}

// runMixed schedules orders with a long delay, and then orders with short ones. It measures those with short ones.
func (t *trial) runMixed(ctx context.Context) error {
	long, short, spread := 5*t.Unit, t.Unit, 2*t.Unit
	offsets := make([]time.Duration, 0, 2*t.Mixed)
	for range t.Mixed {
		offsets = append(offsets, long)
	}
	for i := range t.Mixed {
		offsets = append(offsets, short+spread*time.Duration(i)/time.Duration(t.Mixed))
	}
	start, _, err := t.prepare(ctx, offsets)
	if err != nil {
		return err
	}
	if _, err := t.cancelled(ctx, start, start.Add(long)); err != nil {
		return err
	}
	l, err := t.lateness(ctx, start, start.Add(short+spread))
	if err != nil {
		return err
	}
	t.report(mixed, l.values(""))
	return nil
}

// runReschedule makes half of the deadlines later and half earlier.
func (t *trial) runReschedule(ctx context.Context) error {
	soon, between, later := t.Unit, 3*t.Unit, 5*t.Unit
	offsets := make([]time.Duration, 0, 2*t.Reschedule)
	for i := range 2 * t.Reschedule {
		offsets = append(offsets, []time.Duration{soon, later}[i%2])
	}
	start, orders, err := t.prepare(ctx, offsets)
	if err != nil {
		return err
	}
	middle := start.Add(between).UnixNano()
	for i := range orders {
		orders[i].Due = middle
	}
	if err := t.move(ctx, orders); err != nil {
		return err
	}
	if err := t.w.schedule(orders); err != nil {
		return err
	}
	due := time.Unix(0, middle)
	l, err := t.cancelled(ctx, due, due)
	if err != nil {
		return err
	}
	t.report(contender.Reschedule, l.values(""))
	return nil
}

// runGrowth starts the contender, and cancels a burst beside pending orders that are in the table already. With the
// most pending orders it also measures their memory, and what an idle contender costs.
func (t *trial) runGrowth(ctx context.Context, pending []scheduled, most bool) error {
	if err := t.clean(ctx, t.info); err != nil {
		return err
	}
	empty, err := t.usage(ctx, nil)
	if err != nil {
		return err
	}
	if t.w, err = t.start(ctx, t.info, instance{}); err != nil {
		return err
	}
	scheduled := len(pending)
	if !t.info.Loads {
		if scheduled, err = t.schedulePending(pending); err != nil {
			return err
		}
	}
	if most {
		if err := t.idle(ctx, empty, scheduled); err != nil {
			return err
		}
	}
	if _, err := t.burst(ctx, t.GrowthDue/10); err != nil { // fills the pools and caches of a new process
		return err
	}
	l, err := t.burst(ctx, t.GrowthDue)
	if err != nil {
		return err
	}
	prefix := fmt.Sprint(len(pending), "/")
	t.report(growth, map[string]float64{prefix + "burst": l.rate(), prefix + "pending": float64(scheduled)})
	if rate, known := t.scheduleRate(); known && t.info.Cannot[contender.Memory] == "" { // the others schedule nothing
		t.report(growth, map[string]float64{prefix + "schedule": rate})
	}
	return nil
}

// schedulePending schedules pending orders, or as many as the contender can within a time, and returns how many.
func (t *trial) schedulePending(pending []scheduled) (n int, err error) {
	end := time.Now().Add(t.ScheduleFor)
	for some := range slices.Chunk(pending, scheduleGroup) {
		if time.Now().After(end) {
			break
		}
		if err := t.w.schedule(some); err != nil {
			return n, err
		}
		n += len(some)
	}
	return n, nil
}

// idle watches a contender with n pending orders, none of which is due. empty is the usage without these orders.
func (t *trial) idle(ctx context.Context, empty usage, n int) error {
	contender.Sleep(ctx, 2*time.Second) // so that it has finished what scheduling left
	before, err := t.usage(ctx, t.w)
	if err != nil {
		return err
	}
	if err := t.reportMemory(ctx, empty, before, n); err != nil {
		return err
	}
	contender.Sleep(ctx, t.IdleFor)
	after, err := t.usage(ctx, t.w)
	if err != nil {
		return err
	}
	seconds := t.IdleFor.Seconds()
	processor := 0.0
	for name := range after.seconds {
		if name == string(contender.Rabbit) && !needsRabbit(t.info) {
			continue
		}
		processor += 100 * after.seconds[name].since(before.seconds[name]) / seconds
	}
	t.report(idle, map[string]float64{"processor": processor})
	return nil
}

// reportMemory reports the memory of n pending orders in the stores beside the table.
func (t *trial) reportMemory(ctx context.Context, empty, filled usage, n int) error {
	if reason := t.info.Cannot[contender.Memory]; reason != "" {
		t.results.noteMissing(t.info.Name, contender.Memory, reason)
		return nil
	}
	memory, err := residentMemory(ctx, t.w.pid())
	if err != nil {
		return err
	}
	each := func(bytes int64) float64 { return float64(bytes) / float64(n) }
	values := map[string]float64{"process": each(memory)}
	if slices.Contains(t.info.Servers, contender.Redis) {
		values["redis"] = each(filled.redisMemory - empty.redisMemory)
	}
	if needsRabbit(t.info) {
		values["rabbit"] = each(filled.rabbitMemory - empty.rabbitMemory)
	}
	if tables := filled.tables - empty.tables; tables > 0 {
		values["tables"] = each(tables)
	}
	t.report(contender.Memory, values)
	return nil
}
