package faulttest

import (
	"testing"

	"example.com/shop/internal/testenv"
)

// RedisDown runs the service while Redis is down from the start. Rows are created: at first each publish fails, and
// once the breaker is open none is tried. The reconciler times the rows out. When Redis is back, the relay publishes the
// backlog. Then Redis dies under a process without a reconciler: the relay and the worker of that process time out the
// rows that were created meanwhile.
func RedisDown(t *testing.T, s *Service) {
	NeedsProcesses(t)
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := s.NewSite(t, redis.URL())
	testenv.Must(t, redis.Kill())
	p := site.Serve(t)
	ops := p.Operator()

	const outage = 30
	var rows []Owned
	for range outage {
		rows = append(rows, p.Create())
	}
	var failed, open int
	Eventually(t, "the publish of each row has ended", func() bool {
		failed, open = ops.published("failed"), ops.published("breaker_open")
		return failed+open >= outage
	})
	if failed < 5 || open == 0 || failed+open != outage {
		t.Errorf("%d publishes failed and %d found the breaker open; want %d in total, at least 5 failed "+
			"and at least one with an open breaker", failed, open, outage)
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
	p.WaitForTimeouts(rows)

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
	p.WaitForTimeouts(rows)
	site.Run(t, "reconcile")
	site.CheckHealth(t)
}
