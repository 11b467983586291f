package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/shop/bench/contender"
)

// sizes are the sizes of the workloads.
type sizes struct {
	Rounds     int           // of the workloads burst and steady; the others run in the first round
	Burst      int           // orders that are due at one instant
	Steady     []int         // orders due per second
	SteadyFor  time.Duration // how long
	Breaking   []int         // more rates, in the first round, up to the first that the contender cannot keep up with
	Unit       time.Duration // of the delays of the workloads below
	Mixed      int           // orders with a long delay, and as many with a short one
	Reschedule int           // orders that are moved forward, and as many that are moved back
	PlaceFor   time.Duration // how long orders are placed over HTTP
	Lost       int           // orders that are scheduled when the store is lost
	Pending    []int         // orders that are pending and not due, while others are cancelled
	IdleFor    time.Duration // how long a contender with the most pending orders is watched
	GrowthDue  int           // orders that are due at one instant beside the pending ones

	// How long the benchmark waits for orders that are not cancelled: without a fault, after a fault, and at most if the
	// contender's documentation says that its recovery takes longer.
	Patience, PatienceAfterFault, MaxRecovery time.Duration

	Lanes int // contenders that run at the same time, each lane with servers of its own
}

var full = sizes{
	Rounds: 5, Burst: 10_000,
	Steady: []int{200, 2_000}, SteadyFor: 1500 * time.Millisecond, Breaking: []int{5_000, 20_000},
	Unit: 700 * time.Millisecond, Mixed: 500, Reschedule: 500, PlaceFor: time.Second, Lost: 2_000,
	Pending: []int{10_000, 100_000, 1_000_000}, IdleFor: 4 * time.Second, GrowthDue: 5_000,
	Patience: 15 * time.Second, PatienceAfterFault: 8 * time.Second, MaxRecovery: 2 * time.Minute,
	Lanes: 1,
}

var quick = sizes{
	Rounds: 1, Burst: 200, Steady: []int{100}, SteadyFor: time.Second,
	Unit: 300 * time.Millisecond, Mixed: 20, Reschedule: 20, PlaceFor: 300 * time.Millisecond, Lost: 100,
	Pending: []int{1_000}, IdleFor: time.Second, GrowthDue: 100,
	Patience: 30 * time.Second, PatienceAfterFault: 3 * time.Second, MaxRecovery: 15 * time.Second,
	Lanes: 4,
}

// The names of the workloads.
const (
	burst  = "burst"
	steady = "steady"
	mixed  = "mixed"
	place  = "place"
	idle   = "idle"
	growth = "growth"
	crash  = "crash"

	schedule = "schedule" // no workload of its own: how fast contenders schedule the orders of the others
)

// trial is a contender in one round.
type trial struct {
	*servers
	sizes
	info    contender.Info
	results *results
	first   bool    // the first round
	w       *worker // nil: not started
}

// lead returns a time within which n orders can be inserted and scheduled.
func (t *trial) lead(n int) time.Duration {
	const insertRate = 15_000
	rate := 4_000.0
	if known := t.results.of(t.info.Name, metric{schedule, "rate"}); len(known) > 0 {
		rate = known[len(known)-1]
	}
	return t.Unit + time.Duration((float64(n)/insertRate+1.5*float64(n)/rate)*float64(time.Second))
}

// prepare inserts and schedules an order for each of the offsets from a time that it returns. The time is later than the
// end of the preparation, so the benchmark does nothing while orders become due.
func (t *trial) prepare(ctx context.Context, offsets []time.Duration) (start time.Time, orders []scheduled, err error) {
	lead := t.lead(len(offsets))
	for range 4 {
		if err := t.settle(ctx); err != nil {
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
		if slack := time.Until(start); slack > 0 {
			return start, orders, nil
		}
		// The deadlines have passed already. These orders must be gone before the next attempt.
		if err := t.await(ctx, due[len(due)-1], t.Patience); err != nil {
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

// cancelled waits for orders whose deadlines are from start to last, and returns their lateness. It gives up after a
// while.
func (t *trial) cancelled(ctx context.Context, start, last time.Time) (lateness, error) {
	ctx, cancel := context.WithDeadline(ctx, last.Add(t.info.Period+t.Patience+20*time.Second))
	defer cancel()
	if err := t.await(ctx, last, t.info.Period+t.Patience); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return lateness{}, err
	}
	return t.lateness(context.WithoutCancel(ctx), start, last)
}

// burst cancels orders that are due at one instant.
func (t *trial) burst(ctx context.Context, n int) (l lateness, err error) {
	start, _, err := t.prepare(ctx, same(n))
	if err != nil {
		return l, err
	}
	return t.cancelled(ctx, start, start)
}

func (t *trial) runBurst(ctx context.Context) error {
	before, err := t.w.counts()
	if err != nil {
		return err
	}
	l, err := t.burst(ctx, t.Burst)
	if err != nil {
		return err
	}
	after, err := t.w.counts()
	if err != nil {
		return err
	}
	t.report(burst, map[string]float64{
		"rate":    float64(l.Cancelled) / l.LastEnd,
		"working": float64(l.Cancelled) / max(l.LastEnd-l.FirstCommit, 0.001),
		"doubled": float64(after.Repeated - before.Repeated),
		"pending": float64(l.Pending),
	})
	return nil
}

// report adds results of the contender.
func (t *trial) report(workload string, values map[string]float64) {
	for name, value := range values {
		t.results.add(t.info.Name, metric{workload, name}, value)
	}
}

// steady cancels orders whose deadlines are spread evenly. It reports whether the contender keeps up: whether orders are
// cancelled at the end as soon after their deadlines as at the lowest rate.
func (t *trial) steady(ctx context.Context, rate int) (keepsUp bool, err error) {
	start, _, err := t.prepare(ctx, evenly(rate, t.SteadyFor))
	if err != nil {
		return false, err
	}
	lag := watchTimer(t.SteadyFor)
	l, err := t.cancelled(ctx, start, start.Add(t.SteadyFor))
	if err != nil {
		return false, err
	}
	prefix := fmt.Sprint(rate, "/")
	t.report(steady, l.values(prefix))
	t.report(steady, map[string]float64{prefix + "lag": (<-lag).Seconds()})
	usual := max(median(t.results.of(t.info.Name, metric{steady, fmt.Sprint(t.Steady[0], "/p99")})), t.info.Period.Seconds())
	return l.Pending == 0 && l.P99 < usual+1, nil
}

// watchTimer sends the 99th percentile of how late timers of this process are, which shows how busy the machine is.
func watchTimer(lasting time.Duration) <-chan time.Duration {
	p99 := make(chan time.Duration, 1)
	go func() {
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
	kept := 0
	try := func(rate int) (err error) {
		keepsUp, err := t.steady(ctx, rate)
		if keepsUp {
			kept = rate
		}
		return err
	}
	for _, rate := range rates {
		if err := try(rate); err != nil {
			return err
		}
	}
	if !t.first || t.info.Period > 0 {
		return nil
	}
	last := rates[len(rates)-1]
	for _, rate := range t.Breaking {
		if kept < last {
			break
		}
		if err := try(rate); err != nil {
			return err
		}
		last = rate
	}
	t.report(steady, map[string]float64{"kept": float64(kept)})
	return nil
}

// runMixed schedules orders with a long delay, and then orders with short ones. It measures those with short ones.
func (t *trial) runMixed(ctx context.Context) error {
	long, short, spread := 8*t.Unit, t.Unit, 2*t.Unit
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

// runReschedule moves the deadlines of half of the orders forward, and of the others back.
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
		orders[i].Due = middle + int64(i%2) // one nanosecond: PostgreSQL stores the same microsecond
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

// runCrash kills the contender in the middle of a burst, and starts it again.
func (t *trial) runCrash(ctx context.Context) error {
	start, _, err := t.prepare(ctx, same(t.Burst))
	if err != nil {
		return err
	}
	if err := t.untilCancelled(ctx, start, t.Burst/5); err != nil {
		return err
	}
	if err := t.w.kill(); err != nil {
		return err
	}
	if t.w, err = t.start(ctx, t.info, false); err != nil {
		return err
	}
	if err := t.await(ctx, start, t.patienceAfterCrash()); err != nil {
		return err
	}
	return t.reportLoss(ctx, crash, start, start, counts{})
}

// patienceAfterCrash returns how long to wait for a contender that cancels no order after a crash.
func (t *trial) patienceAfterCrash() time.Duration {
	return max(t.PatienceAfterFault, min(t.info.Recovery, t.MaxRecovery))
}

// untilCancelled waits until n orders with this deadline are cancelled, or for some seconds.
func (t *trial) untilCancelled(ctx context.Context, due time.Time, n int) error {
	for end := due.Add(t.Patience); time.Now().Before(end) && ctx.Err() == nil; contender.Sleep(ctx, 5*time.Millisecond) {
		var cancelled int
		err := t.db.QueryRowContext(ctx, `SELECT count(*) FROM orders WHERE status = 'cancelled' AND due_at = $1`, due).Scan(&cancelled)
		if err != nil || cancelled >= n {
			return err
		}
	}
	return nil
}

// reportLoss reports what became of the orders whose deadlines are from start to last, after a fault. before has the
// counts of the process before these orders.
func (t *trial) reportLoss(ctx context.Context, workload string, start, last time.Time, before counts) error {
	l, err := t.lateness(ctx, start, last)
	if err != nil {
		return err
	}
	c, err := t.w.counts()
	if err != nil {
		return err
	}
	t.report(workload, map[string]float64{"lost": float64(l.Pending), "doubled": float64(c.Repeated - before.Repeated), "max": l.Max})
	return nil
}

// runLost wipes the store beside the table while orders are scheduled.
func (t *trial) runLost(ctx context.Context) error {
	spread := 2 * t.Unit
	start, _, err := t.prepare(ctx, evenly(int(float64(t.Lost)/spread.Seconds()), spread))
	if err != nil {
		return err
	}
	before, err := t.w.counts()
	if err != nil {
		return err
	}
	if err := t.wipe(ctx, t.info); err != nil {
		return err
	}
	last := start.Add(spread)
	if err := t.await(ctx, last, t.PatienceAfterFault); err != nil {
		return err
	}
	return t.reportLoss(ctx, contender.StoreLost, start, last, before)
}

// runGrowth starts the contender, and cancels a burst beside pending orders that are in the table already. With the most
// pending orders it also measures their memory, and what an idle contender costs.
func (t *trial) runGrowth(ctx context.Context, pending []scheduled, most bool) error {
	if err := t.redis.FlushAll(ctx).Err(); err != nil {
		return err
	}
	before, err := t.usage(ctx, nil)
	if err != nil {
		return err
	}
	if t.w, err = t.start(ctx, t.info, true); err != nil {
		return err
	}
	began := time.Now()
	if err := t.w.schedule(pending); err != nil {
		return err
	}
	prefix := fmt.Sprint(len(pending), "/")
	t.report(growth, map[string]float64{prefix + "schedule": float64(len(pending)) / time.Since(began).Seconds()})
	if most {
		if err := t.idle(ctx, before, len(pending)); err != nil {
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
	t.report(growth, map[string]float64{prefix + "burst": float64(l.Cancelled) / l.LastEnd})
	return nil
}

// idle watches a contender with n pending orders, none of which is due.
func (t *trial) idle(ctx context.Context, empty usage, n int) error {
	contender.Sleep(ctx, t.IdleFor/2) // so that it has finished what scheduling left
	before, err := t.usage(ctx, t.w)
	if err != nil {
		return err
	}
	memory, err := residentMemory(ctx, t.w.pid())
	if err != nil {
		return err
	}
	contender.Sleep(ctx, t.IdleFor)
	after, err := t.usage(ctx, t.w)
	if err != nil {
		return err
	}
	seconds := t.IdleFor.Seconds()
	t.report(idle, map[string]float64{
		"redis":        float64(after.redisCommands-before.redisCommands-1) / seconds, // 1: the benchmark's INFO
		"transactions": float64(after.transactions-before.transactions-1) / seconds,   // 1: the benchmark's SELECT
	})
	for name := range after.seconds {
		t.report(idle, map[string]float64{name: 100 * after.seconds[name].since(before.seconds[name]) / seconds})
	}
	if reason := t.info.Cannot[contender.Memory]; reason != "" {
		t.results.refuse(t.info.Name, contender.Memory, reason)
		return nil
	}
	each := func(bytes int64) float64 { return float64(max(bytes, 0)) / float64(n) }
	t.report(contender.Memory, map[string]float64{
		"redis": each(before.redisMemory - empty.redisMemory), "process": each(memory),
		"rabbit": each(before.rabbitMemory - empty.rabbitMemory), "tables": each(before.tables - empty.tables),
	})
	return nil
}
