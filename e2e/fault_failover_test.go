package e2e

import (
	"flag"
	"net/http"
	"time"

	"example.com/shop/internal/testenv"
)

// failovers is how often each fault of failoverFaults breaks a primary.
var failovers = flag.Int("failovers", 1, "how often each failover fault breaks a primary, one after the other")

// failoverFaults returns faults that break a primary in three ways, and then promote its synchronous standby. The service connects
// with a URL that names both. It must create and time out items again, and sweep, without a restart. No item of which a customer
// received a 201 may be lost. One more fault takes the standby away for a while.
func failoverFaults() []fault {
	faults := []fault{{
		name: "standby away", needs: needs{standby: true},
		bound:  bound{late: 12 * time.Second, answer: 10 * time.Second, rejected: true, again: 3 * time.Second},
		inject: takeStandby,
	}}
	for name, test := range map[string]struct {
		breaks func(d *deployment) (mend func())
		again  time.Duration
	}{
		"killed":    {func(d *deployment) func() { testenv.Must(d.t, d.postgres.Stop()); return func() {} }, 2 * time.Second},
		"hung":      {(*deployment).suspendPostgres, 3 * time.Second},
		"read-only": {func(d *deployment) func() { testenv.Must(d.t, d.postgres.SetReadOnly(d.t.Context())); return func() {} }, 2 * time.Second},
	} {
		faults = append(faults, fault{
			name: name, needs: needs{standby: true},
			bound: bound{late: 10 * time.Second, answer: 10 * time.Second, rejected: true, again: test.again},
			inject: func(d *deployment) {
				mend := func() {}
				for n := range *failovers {
					if n > 0 {
						mend()
						d.rebuild()
						d.replicate()
					}
					mend = test.breaks(d)
					d.sleep(3 * time.Second) // the time in which an operator or a cluster manager sees the fault
					d.promote()
					d.awaitService()
				}
				d.start("api") // a process starts although the other host has failed
			},
		})
	}
	return faults
}

// takeStandby stops the synchronous standby while a process looks at its readiness, and starts it again.
func takeStandby(d *deployment) {
	d.t.Helper()
	testenv.Must(d.t, d.standby.Stop())
	api := d.running("api")[0].operator()
	eventually(d.t, "a process that is degraded because commits wait", func() bool {
		a, err := api.try(request{method: "GET", path: "/readyz"})
		return err == nil && a.status == http.StatusOK && string(a.body) == `{"postgres":"waiting","redis":"up","status":"degraded"}` &&
			api.metric("postgres_commits_wait") == 1
	})
	out, err := d.command(d.t, "doctor").CombinedOutput()
	if err == nil {
		d.t.Error("the doctor finds no fault while commits wait")
	}
	contains(d.t, string(out), "FAIL  commits", "synchronous_standby_names")
	d.sleep(9 * time.Second) // longer than a request may take
	testenv.Must(d.t, d.standby.Restart(d.t.Context()))
	d.awaitService()
}

// sweepInterval is the interval of the schedule of a deployment's reconcilers.
const sweepInterval = 2 * time.Second

// awaitService waits until items are created and timed out, and measures from now how long both take. Then it waits for a
// sweep, which may begin one interval later.
func (d *deployment) awaitService() {
	d.t.Helper()
	began, since := time.Now(), d.number(`SELECT extract(epoch FROM clock_timestamp())`)
	eventually(d.t, "an item created and one timed out after the failover", func() bool {
		return d.items(`deadline - $1 * interval '1 second' > to_timestamp($2)`, d.timeout.Seconds(), since) > 0 &&
			d.items(`status = 'timed out' AND cancelled_at > to_timestamp($1)`, since) > 0
	})
	again := time.Since(began)
	eventually(d.t, "a sweep after the failover", func() bool {
		return d.number(`SELECT count(*) FROM reconcile_reports
			WHERE kind = $1 AND (report->>'started_at')::timestamptz > to_timestamp($2)`, d.service.kind, since) > 0
	})
	d.again = max(d.again, again, time.Since(began)-sweepInterval)
}
