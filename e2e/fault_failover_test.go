package e2e

import (
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestFailoverFaults breaks a primary in three ways, and then promotes its synchronous standby. The service connects with a
// URL that names both. It must create and time out items again, and sweep, without a restart. No item of which a customer
// received a 201 may be lost.
func TestFailoverFaults(t *testing.T) {
	var faults []fault
	for name, test := range map[string]struct {
		breaks func(d *deployment)
		again  time.Duration
	}{
		"killed":    {func(d *deployment) { testenv.Must(d.t, d.postgres.Stop()) }, 2 * time.Second},
		"hung":      {func(d *deployment) { d.suspendPostgres() }, 3 * time.Second},
		"read-only": {func(d *deployment) { testenv.Must(d.t, d.postgres.SetReadOnly(d.t.Context())) }, 2 * time.Second},
	} {
		faults = append(faults, fault{
			name: name, needs: needs{standby: true},
			bound: bound{late: 10 * time.Second, answer: 10 * time.Second, rejected: true, again: test.again},
			inject: func(d *deployment) {
				test.breaks(d)
				d.sleep(3 * time.Second) // the time in which an operator or a cluster manager sees the fault
				d.promote()
				d.awaitService()
				d.start("api") // a process starts although the other host has failed
			},
		})
	}
	runFaults(t, faults)
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
	d.again = time.Since(began)
	eventually(d.t, "a sweep after the failover", func() bool {
		return d.number(`SELECT count(*) FROM reconcile_reports
			WHERE kind = $1 AND (report->>'started_at')::timestamptz > to_timestamp($2)`, kind, since) > 0
	})
	d.again = max(d.again, time.Since(began)-sweepInterval)
}
