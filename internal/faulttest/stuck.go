package faulttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
)

// Stuck inserts thousands of rows that are stuck: they are due, but cannot time out, because each
// statement on them fails or because another session has locked them. Good rows are due after them. The good rows must
// time out within their bound, with workers and without. When the test removes the cause, the stuck rows must time out
// too, without an operator.
func Stuck(t *testing.T, s *Service) {
	testenv.Slow(t, "thousands of rows that cannot time out")
	NeedsProcesses(t)
	t.Parallel()
	const stuckRows, good = 2500, 60 // stuck rows fill several claims of a worker, and several pages of a sweep
	lock := func(statement string) func(*Deployment, uuid.UUID) func() {
		return func(d *Deployment, batch uuid.UUID) (unblock func()) {
			_, release := d.Lock(statement, batch)
			return release
		}
	}
	withWorkers, withoutWorkers := []string{"worker", "worker", "relay", "reconciler"}, []string{"relay", "reconciler"}
	type stuckTest struct {
		processes []string
		block     func(d *Deployment, batch uuid.UUID) (unblock func())
	}
	tests := map[string]stuckTest{"rows locked, without workers": {withoutWorkers, lock(s.lockBatchRows())}}
	if r := s.Shared; r != nil {
		withdraw := func(d *Deployment, batch uuid.UUID) (unblock func()) {
			d.Exec(r.WithdrawBatch, batch)
			return func() { d.Exec(r.RestoreBatch, batch, stuckRows) }
		}
		tests["withdrawn"] = stuckTest{withWorkers, withdraw}
		tests["withdrawn, without workers"] = stuckTest{withoutWorkers, withdraw}
		tests["shared row locked"] = stuckTest{withWorkers, lock(r.LockBatch)}
		tests["shared row locked, without workers"] = stuckTest{withoutWorkers, lock(r.LockBatch)}
	} else {
		reject := func(d *Deployment, batch uuid.UUID) (unblock func()) {
			d.Exec(s.rejectTimeouts(`NEW.` + s.Batch + `::text = '` + batch.String() + `'`))
			return func() { d.Exec(acceptTimeouts) }
		}
		tests["rejected"] = stuckTest{withWorkers, reject}
		tests["rejected, without workers"] = stuckTest{withoutWorkers, reject}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkBounds(t, func(t *testing.T) excess {
				d := s.Deploy(t, Needs{Processes: test.processes})
				bad := d.insertBatch(stuckRows, 8*time.Second)
				unblock := test.block(d, bad)
				sound := d.insertBatch(good, 10*time.Second)
				Eventually(t, "the good rows timed out", func() bool { return d.pending(sound) == 0 })
				if n := d.pending(bad); n != stuckRows {
					t.Errorf("%v rows cannot time out, want %d: the test proves nothing", n, stuckRows)
				}
				late := d.Number(`SELECT max(extract(epoch FROM cancelled_at - deadline))
					FROM (`+s.Rows+`) AS rows WHERE batch = $1`, sound)
				t.Logf("the last good row timed out %.2f s late", late)
				unblock()
				Eventually(t, "the stuck rows timed out", func() bool { return d.pending(bad) == 0 })
				d.Start("worker") // the worker removes the tasks that are left in the queue
				d.CheckHealth(t)
				d.Kill(d.Running("")...)
				return func(slack int) (exceeded []string) {
					// The grace is 2 s, and the search takes at least 1 s. The bound adds three seconds for a loaded
					// machine.
					if most := (sweepInterval.Seconds() + 6) * float64(slack); late > most {
						exceeded = append(exceeded, fmt.Sprintf(
							"a good row timed out %.1f s late, the bound is %v s", late, most))
					}
					return exceeded
				}
			})
		})
	}
}

// pending counts a batch's pending rows.
func (d *Deployment) pending(batch uuid.UUID) float64 {
	d.T.Helper()
	return d.rows(`batch = $1 AND status = 'pending'`, batch)
}

// insertBatch inserts n rows that have a shared row of their own and the same deadline, and returns their batch.
func (d *Deployment) insertBatch(n int, in time.Duration) (batch uuid.UUID) {
	d.T.Helper()
	batch = uuid.New()
	d.Exec(d.Service.InsertBatch, batch, in.Seconds(), n)
	return batch
}
