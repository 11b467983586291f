package faulttest

import (
	"flag"
	"net/http"
	"time"

	"example.com/shop/internal/testenv"
)

// failovers is how often each fault of FailoverFaults breaks a primary.
var failovers = flag.Int("failovers", 1, "how often each failover fault breaks a primary, one after the other")

// FailoverFaults returns faults that break a primary in three ways, and then promote its synchronous standby. The
// service connects with a URL that names both. It must create and time out rows again, and sweep, without a restart.
// No row of which a customer received a 201 may be lost. One more fault takes the standby away for a while.
func (*Service) FailoverFaults() []Fault {
	faults := []Fault{{
		// The timeouts of all rows that became due while commits waited can be done when the standby returns, so that
		// the next row to time out may be one that is created then.
		Name: "standby away", Needs: Needs{Standby: true},
		Bound: Bound{
			Late: 12 * time.Second, Answer: 10 * time.Second, Rejected: true, Again: RowTimeout + 2*time.Second,
		},
		Inject: takeStandby,
	}}
	for name, test := range map[string]struct {
		breaks func(d *Deployment) (mend func())
		again  time.Duration
	}{
		"killed": {func(d *Deployment) func() {
			testenv.Must(d.T, d.Postgres.Stop())
			return func() {}
		}, 2 * time.Second},
		"hung": {(*Deployment).suspendPostgres, 3 * time.Second},
		"read-only": {func(d *Deployment) func() {
			testenv.Must(d.T, d.Postgres.SetReadOnly(d.T.Context()))
			return func() {}
		}, 2 * time.Second},
	} {
		faults = append(faults, Fault{
			Name: name, Needs: Needs{Standby: true},
			Bound: Bound{Late: 10 * time.Second, Answer: 10 * time.Second, Rejected: true, Again: test.again},
			Inject: func(d *Deployment) {
				mend := func() {}
				for n := range *failovers {
					if n > 0 {
						mend()
						d.rebuild()
						d.replicate()
					}
					mend = test.breaks(d)
					d.Sleep(3 * time.Second) // the time in which an operator or a cluster manager sees the fault
					d.Promote()
					d.AwaitService()
				}
				d.Start("api") // a process starts although the other host has failed
			},
		})
	}
	return faults
}

// takeStandby stops the synchronous standby while a process looks at its readiness, and starts it again.
func takeStandby(d *Deployment) {
	d.T.Helper()
	testenv.Must(d.T, d.standby.Stop())
	api := d.Running("api")[0].Operator()
	Eventually(d.T, "a process that is degraded because commits wait", func() bool {
		a, err := api.Try(Request{Method: "GET", Path: "/readyz"})
		return err == nil && a.Status == http.StatusOK &&
			string(a.Body) == `{"postgres":"waiting","redis":"up","status":"degraded"}` &&
			api.Metric("postgres_commits_wait") == 1
	})
	out, err := d.Command(d.T, "doctor").CombinedOutput()
	if err == nil {
		d.T.Error("the doctor finds no fault while commits wait")
	}
	Contains(d.T, string(out), "FAIL  commits", "synchronous_standby_names")
	d.Sleep(9 * time.Second) // longer than a request may take
	testenv.Must(d.T, d.standby.Restart(d.T.Context()))
	d.AwaitService()
}

// AwaitService waits until rows are created and timed out, and measures from now how long both take. Then it waits for
// a sweep, which may begin one interval later.
func (d *Deployment) AwaitService() {
	d.T.Helper()
	began, since := time.Now(), d.Number(`SELECT extract(epoch FROM clock_timestamp())`)
	Eventually(d.T, "a row created and one timed out after the failover", func() bool {
		const created = `deadline - ($1 + extensions * $2) * interval '1 second' > to_timestamp($3)`
		return d.rows(created, d.Timeout.Seconds(), d.Extension.Seconds(), since) > 0 &&
			d.rows(`status = 'timed out' AND ended_at > to_timestamp($1)`, since) > 0
	})
	again := time.Since(began)
	Eventually(d.T, "a sweep after the failover", func() bool {
		return d.Number(`SELECT count(*) FROM reconcile_reports
			WHERE kind = $1 AND (report->>'started_at')::timestamptz > to_timestamp($2)`, d.Service.Kind, since) > 0
	})
	d.again = max(d.again, again, time.Since(began)-sweepInterval)
}
