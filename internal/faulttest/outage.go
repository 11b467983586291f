package faulttest

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// RedisDown runs the service while Redis is down from the start. Rows are created: at first each publish takes at most
// its budget, and once the breaker is open it takes no time. The reconciler times them out within its interval and
// grace. When Redis is back, the relay publishes the backlog. Then Redis dies under a process without a reconciler: the
// relay and the worker of that process time out the rows that were created meanwhile.
func RedisDown(t *testing.T, s *Service) {
	NeedsProcesses(t)
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := s.NewSite(t, redis.URL())
	testenv.Must(t, redis.Kill())
	p := site.Serve(t)
	ops := p.Operator()
	before := site.available(t)

	const outage = 30
	var rows []Owned
	var times []time.Duration
	for range outage {
		c := p.SignUp()
		a := c.Expect(http.StatusCreated, s.Create(s.Bodies[0], ""))
		rows = append(rows, Owned{c.RowOf(a), c})
		times = append(times, a.Took)
	}
	slices.Sort(times)
	// A slow machine may delay one or two requests. Without the budget, each publish before the breaker opens is slow.
	thirdSlowest := times[outage-3]
	var failed, open int
	Eventually(t, "the publish of each row has ended", func() bool {
		failed, open = ops.published("failed"), ops.published("breaker_open")
		return failed+open >= outage
	})
	t.Logf("%d rows created without Redis within %v; %d publishes failed, %d found the breaker open",
		outage, times[outage-1], failed, open)
	if thirdSlowest > 2*time.Second { // the budget, and the delays of a loaded machine
		t.Errorf("creating each of three rows took %v or more; its budget for publishing is 100 ms", thirdSlowest)
	}
	if failed < 5 || open < outage/2 || failed+open != outage {
		t.Errorf("%d publishes failed and %d found the breaker open; want %d in total, at least 5 failed "+
			"and at least %d with an open breaker", failed, open, outage, outage/2)
	}
	if ready := Decode[struct{ Status, Redis string }](t, ops.Get("/readyz")); ready.Status != "degraded" ||
		ready.Redis != "down" {
		t.Errorf("/readyz: %+v, want degraded, with Redis down", ready)
	}
	// There are more messages if the service has other kinds of task, too.
	if s := ops.Stats(); s.Redis != "down" || s.Queue != nil || s.Outbox.Backlog < outage {
		fatalBreach(t, "stats %+v, want Redis down and at least %d messages in the outbox", s, outage)
	}
	for _, row := range rows[:5] { // they are pending past their deadlines, until a sweep finds them
		row.confirmLate()
	}
	// The interval and the grace are 2 s each. A loaded machine gets more.
	if latest := p.WaitForTimeouts(rows); latest > 15*time.Second {
		breach(t, "a row timed out %v late without Redis, the bound is 15 s", latest)
	}
	if got := site.available(t); got != before {
		breach(t, "%d available after the timeouts, want %d", got, before)
	}

	testenv.Must(t, redis.Restart(t.Context()))
	Eventually(t, "the outbox is empty", func() bool { return ops.Stats().Outbox.Backlog == 0 })
	p.Interrupt()

	// Without a reconciler, only the relay and the worker can time these rows out.
	p = site.Serve(t, "--roles=api,relay,worker")
	testenv.Must(t, redis.Kill())
	rows = nil
	for range 5 {
		rows = append(rows, p.Create())
	}
	testenv.Must(t, redis.Restart(t.Context()))
	if latest := p.WaitForTimeouts(rows); latest > 15*time.Second {
		breach(t, "a row timed out %v late after Redis came back, the bound is 15 s", latest)
	}
	site.Run(t, "reconcile")
	site.CheckHealth(t)
}
