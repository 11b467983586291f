package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// faults is the part in which something breaks.
const faults = "faults"

// faultSizes are the sizes of the part faults.
type faultSizes struct {
	Orders  int           // of each fault
	Tries   int           // of a fault, until the contender breaks its promise
	Most    int           // as Tries, if the contender broke its promise in another run
	Kills   int           // of the process that places
	Bursts  int           // in each of which the process that cancels is killed
	Lead    time.Duration // from the placement of an order to its deadline
	Spread  time.Duration // from the first deadline to the last
	Restart time.Duration // until what was killed starts again
	Away    time.Duration // how long the store does not answer
	Hang    time.Duration // for longer than a lease; three times as long without a lease
	Lost    time.Duration // orders are lost if none was cancelled for this time, after all deadlines
}

// faultCase is a fault that each contender has.
type faultCase struct {
	name  string // of the workload, and of the column in the report
	about string // what happens
	// run places orders and has the fault. It returns the last deadline.
	run     func(t *trial, ctx context.Context) (last time.Time, err error)
	inStore bool // the fault is one of the store beside the table
	once    bool // one try is enough, because run repeats the fault
	builds  bool // run needs the program whose clock is ahead
}

var faultCases = []faultCase{
	{
		name: "placer killed", run: (*trial).killPlacer, once: true,
		about: "the process is killed after the commit of orders, before the call that schedules them, again and again",
	},
	{
		name: "canceller killed", run: (*trial).killCanceller,
		about: "the process is killed when it was given the first orders of a burst, before or after its commit",
	},
	{
		name: "store wiped", run: (*trial).wipeStore, inStore: true,
		about: "Redis or RabbitMQ loses its data after all orders were scheduled",
	},
	{
		name: "store away", run: (*trial).stopStore, inStore: true,
		about: "Redis is stopped, or RabbitMQ killed, while orders are placed and become due; it starts again with its data",
	},
	{
		name: "PostgreSQL restarts", run: (*trial).restartPostgres,
		about: "PostgreSQL crashes while orders become due, and starts again",
	},
	{
		name: "handler hangs", run: (*trial).hangHandler,
		about: "the first cancellation does not return for longer than the lease and its renewals, or, if there is no " +
			"lease of at most a minute, for 15 s",
	},
	{
		name: "poisoned orders", run: (*trial).poison,
		about: "PostgreSQL refuses to cancel one order of fifty; these are not counted",
	},
	{
		name: "clock ahead", run: (*trial).runAhead, builds: true,
		about: "two processes run, each places half of the orders, and the clock of one is two hours ahead",
	},
}

// concerns reports whether a contender can have the fault.
func (f faultCase) concerns(info contender.Info) bool { return !f.inStore || len(info.Servers) > 0 }

// runFaults has each fault of each contender, several times.
func (b *bench) runFaults(ctx context.Context) error {
	for run := 1; run <= b.FaultRuns; run++ {
		err := b.inTurns(run, func(info contender.Info) error {
			show := b.progress.step(fmt.Sprintf("faults, run %d of %d: %s", run, b.FaultRuns, info.Name))
			return b.faultsOf(ctx, info, run, show)
		})
		if err != nil {
			return err
		}
	}
	return b.inTurns(b.FaultRuns, func(info contender.Info) error {
		return b.tryMore(ctx, info, func(part string) { b.progress.line(info.Name + ", more tries: " + part) })
	})
}

// faultsOf has each fault of a contender in one run.
func (b *bench) faultsOf(ctx context.Context, info contender.Info, run int, show step) error {
	for _, f := range faultCases {
		if reason := b.whyNoFault(info, f); reason != "" {
			b.results.noteMissing(info.Name, f.name, reason)
			continue
		}
		t := b.trial(info)
		tries, _ := b.Faults.triesOf(info, f)
		if err := b.measure(ctx, t, f.name, run, show, func() error { return t.runFault(ctx, f, tries) }); err != nil {
			return err
		}
	}
	return nil
}

// triesOf returns how often a fault is tried until the contender breaks its promise, and how often if it broke it in
// another run.
func (s faultSizes) triesOf(info contender.Info, f faultCase) (tries, most int) {
	if f.once || info.Period > 0 {
		return 1, 1
	}
	return s.Tries, s.Most
}

// tryMore tries a fault again in the runs in which a contender kept its promise, if it broke it in another run: then a
// loss depends on the moment. The outcomes are added to the cells of these runs.
func (b *bench) tryMore(ctx context.Context, info contender.Info, show step) error {
	for _, f := range faultCases {
		if b.whyNoFault(info, f) != "" {
			continue
		}
		_, most := b.Faults.triesOf(info, f)
		for _, c := range wavering(b.results.faultCells(info.Name, f.name), most) {
			show(f.name)
			t := b.trial(info)
			t.cell = c.clone()
			err := t.runFault(ctx, f, most-c.tries())
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				show(err.Error())
			}
			if err := b.results.add(t.cell); err != nil {
				return err
			}
		}
	}
	return nil
}

// whyNoFault returns why a contender does not have a fault, or "".
func (b *bench) whyNoFault(info contender.Info, f faultCase) string {
	if reason := b.missing(info); reason != "" {
		return reason
	}
	return b.options.whyNoFault(info, f)
}

// whyNoFault is as that of bench, if all servers can be started.
func (o options) whyNoFault(info contender.Info, f faultCase) string {
	if !f.concerns(info) {
		return "no store besides PostgreSQL"
	}
	if o.given != (given{}) {
		return "not measured with given servers"
	}
	if o.isQuick && info.Name != ours.Name {
		// Each contender has one of the faults, and each fault some of the contenders.
		i := slices.IndexFunc(all(), func(other contender.Info) bool { return other.Name == info.Name })
		if info.Period > 0 || f.name != faultCases[i%len(faultCases)].name {
			return "not measured with -quick"
		}
	}
	return ""
}

// runFault tries a fault until the contender breaks its promise, several times, because some losses depend on the
// moment.
func (t *trial) runFault(ctx context.Context, f faultCase, tries int) error {
	for range tries {
		o, err := t.tryFault(ctx, f)
		if err != nil || !o.kept() {
			return err
		}
	}
	return nil
}

// tryFault has a fault of a contender that starts with an empty store, and reports what became of the orders.
func (t *trial) tryFault(ctx context.Context, f faultCase) (o outcome, err error) {
	if err := t.begin(ctx); err != nil {
		return o, err
	}
	defer t.end()
	last, err := f.run(t, ctx)
	if err != nil {
		return o, err
	}
	const longest = time.Hour // for a way that cancels an order now and then
	waiting, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	err = t.await(waiting, last, t.Faults.Lost+t.info.Period, t.poisoned...)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return o, err
	}
	return t.reportFault(ctx, f.name, last)
}

// reportFault reports what became of the orders.
func (t *trial) reportFault(ctx context.Context, workload string, last time.Time) (o outcome, err error) {
	lost, err := t.pending(ctx, last, t.poisoned...)
	if err != nil {
		return o, err
	}
	o.lost = float64(lost)
	err = t.db.QueryRowContext(ctx, `
		SELECT count(*) FILTER (WHERE late < 0), coalesce(max(late), 0)
		FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - due_at)::float8 AS late
		      FROM orders WHERE status = 'cancelled' AND id <> ALL (coalesce($1::uuid[], '{}'))) ended`, t.poisoned).
		Scan(&o.early, &o.latest)
	if err != nil {
		return o, err
	}
	violations, err := t.store.Invariants(ctx, 24*time.Hour, true)
	if err != nil {
		return o, err
	}
	o.wrong = float64(len(violations)) // for instance a stock to which an order was returned twice
	t.report(workload, map[string]float64{"lost": o.lost, "early": o.early, "wrong": o.wrong, "latest": o.latest})
	return o, nil
}

// newOrders returns n orders whose deadlines are spread evenly over a time that begins at first.
func newOrders(n int, first time.Time, spread time.Duration) []scheduled {
	orders := make([]scheduled, n)
	for i := range orders {
		due := first.Add(spread * time.Duration(i) / time.Duration(n)).Truncate(time.Microsecond)
		orders[i] = scheduled{ID: uuid.Must(uuid.NewV7()).String(), Due: due.UnixNano()}
	}
	return orders
}

// nextDue returns the next deadline that the contender can meet.
func (t *trial) nextDue() time.Time { return time.Now().Add(t.Faults.Lead + t.info.Ahead) }

func lastDue(orders []scheduled) time.Time { return time.Unix(0, orders[len(orders)-1].Due) }

// placeGroup is the number of orders that a customer of the part faults places with one request.
const placeGroup = 5

// placeAll places orders at once, in turns in each of the processes, and returns when all are scheduled.
func (t *trial) placeAll(ctx context.Context, orders []scheduled, workers ...*worker) error {
	i := 0
	for group := range slices.Chunk(orders, placeGroup) {
		if err := workers[i%len(workers)].place(group); err != nil {
			return err
		}
		i++
	}
	for _, w := range workers {
		if err := t.awaitPlaced(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// awaitPlaced waits until a process has scheduled the orders that it was given to place.
func (t *trial) awaitPlaced(ctx context.Context, w *worker) error {
	for end := time.Now().Add(t.Patience); ; contender.Sleep(ctx, 20*time.Millisecond) {
		counts, err := w.counts()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case counts.Unscheduled > 0:
			return fmt.Errorf("%d orders were not placed: the log ends with: %s", counts.Unscheduled, w.logTail())
		case counts.Placing == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d orders are not placed yet: the log ends with: %s", counts.Placing, w.logTail())
		}
	}
}

// killPlacer kills the process that places, while another one cancels.
func (t *trial) killPlacer(ctx context.Context) (last time.Time, err error) {
	for range t.Faults.Kills {
		placer, err := t.start(ctx, t.info, instance{name: "2", eager: true})
		if err != nil {
			return last, err
		}
		contender.Sleep(ctx, t.Faults.Restart/2) // so that it also works
		last = time.Now().Add(t.Faults.Spread)
		if err := placer.have(dieAfterPlace); err != nil {
			return last, errors.Join(err, placer.kill())
		}
		_ = placer.place(newOrders(t.Faults.Orders/t.Faults.Kills, last, 0)) // it may die before it replies
		if !placer.awaitEnd(t.Patience) {
			return last, errors.New("the process did not place the orders")
		}
		contender.Sleep(ctx, t.Faults.Restart)
	}
	placer, err := t.start(ctx, t.info, instance{name: "2", eager: true})
	if err == nil {
		t.others = append(t.others, placer)
	}
	return last, err
}

// killCanceller kills the process in bursts, and starts it again each time.
func (t *trial) killCanceller(ctx context.Context) (last time.Time, err error) {
	for i := range t.Faults.Bursts {
		last = t.nextDue()
		if err := t.placeAll(ctx, newOrders(t.Faults.Orders/t.Faults.Bursts, last, 0), t.w); err != nil {
			return last, err
		}
		_ = t.w.have([]fault{dieBeforeCancel, dieAfterCancel}[i%2]) // it may die before it replies
		t.w.awaitEnd(time.Until(last) + t.Faults.Lost + t.info.Period)
		contender.Sleep(ctx, t.Faults.Restart)
		if t.w, err = t.start(ctx, t.info, instance{eager: true}); err != nil {
			return last, err
		}
	}
	return last, nil
}

func (t *trial) wipeStore(ctx context.Context) (last time.Time, err error) {
	orders := newOrders(t.Faults.Orders, t.nextDue(), t.Faults.Spread)
	if err := t.placeAll(ctx, orders, t.w); err != nil {
		return last, err
	}
	return lastDue(orders), t.wipe(ctx, t.info)
}

// stopStore stops the store for a time while orders are placed, whose deadlines come so soon that some pass meanwhile.
func (t *trial) stopStore(ctx context.Context) (last time.Time, err error) {
	groups := t.Faults.Orders / placeGroup
	interval := t.Faults.Spread / time.Duration(groups)
	var both errgroup.Group
	both.Go(func() error {
		contender.Sleep(ctx, t.Faults.Spread/5)
		return t.servers.stopStore(ctx, t.info, t.Faults.Away)
	})
	both.Go(func() error {
		for began := time.Now(); groups > 0; groups-- {
			last = t.nextDue()
			if err := t.w.place(newOrders(placeGroup, last, 0)); err != nil {
				return err
			}
			began = began.Add(interval)
			contender.Sleep(ctx, time.Until(began))
		}
		return ctx.Err()
	})
	err = both.Wait()
	return last, err
}

func (t *trial) restartPostgres(ctx context.Context) (last time.Time, err error) {
	first := t.nextDue()
	orders := newOrders(t.Faults.Orders, first, t.Faults.Spread)
	if err := t.placeAll(ctx, orders, t.w); err != nil {
		return last, err
	}
	contender.Sleep(ctx, time.Until(first.Add(t.Faults.Spread/4)))
	return lastDue(orders), t.servers.restartPostgres(ctx, t.Faults.Restart)
}

func (t *trial) hangHandler(ctx context.Context) (last time.Time, err error) {
	const longest = time.Minute
	length := 3 * t.Faults.Hang
	if t.info.Lease > 0 && t.info.Lease <= longest {
		length = t.info.Lease + t.Faults.Hang
	}
	orders := newOrders(t.Faults.Orders, t.nextDue(), t.Faults.Spread)
	if err := t.w.hang(length); err != nil {
		return last, err
	}
	return lastDue(orders), t.placeAll(ctx, orders, t.w)
}

// poison has PostgreSQL refuse each change of some orders, as it refuses a row that violates a constraint. The trigger
// stays, and concerns no later order.
func (t *trial) poison(ctx context.Context) (last time.Time, err error) {
	orders := newOrders(t.Faults.Orders, t.nextDue(), t.Faults.Spread)
	const each = 50
	for i := each / 2; i < len(orders); i += each {
		t.poisoned = append(t.poisoned, orders[i].ID)
	}
	err = t.exec(ctx,
		`CREATE OR REPLACE FUNCTION bench_poison() RETURNS trigger LANGUAGE plpgsql AS $$
		 BEGIN RAISE EXCEPTION 'order % is poisoned', OLD.id; END $$`,
		fmt.Sprintf(`CREATE OR REPLACE TRIGGER bench_poison BEFORE UPDATE ON orders FOR EACH ROW
			WHEN (OLD.id = ANY ('{%s}'::uuid[])) EXECUTE FUNCTION bench_poison()`, strings.Join(t.poisoned, ",")))
	if err != nil {
		return last, err
	}
	return lastDue(orders), t.placeAll(ctx, orders, t.w)
}

// runAhead runs a second process, whose clock is two hours ahead.
func (t *trial) runAhead(ctx context.Context) (last time.Time, err error) {
	program, err := t.ahead()
	if err != nil {
		return last, err
	}
	second, err := t.start(ctx, t.info, instance{name: "2", program: program})
	if err != nil {
		return last, err
	}
	t.others = append(t.others, second)
	orders := newOrders(t.Faults.Orders, t.nextDue(), t.Faults.Spread)
	return lastDue(orders), t.placeAll(ctx, orders, t.w, second)
}
