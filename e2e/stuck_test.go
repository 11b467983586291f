package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// stuck inserts thousands of items that are stuck: they are due, but cannot time out, because each
// statement on them fails or because another session has locked them. Good items are due after them. The good items must
// time out within their bound, with workers and without. When the test removes the cause, the stuck items must time out
// too, without an operator.
func stuck(t *testing.T, s *service) {
	t.Parallel()
	const stuckItems, good = 2500, 60 // stuck items fill several claims of a worker, and several pages of a sweep
	lock := func(statement string) func(*deployment, uuid.UUID) func() {
		return func(d *deployment, batch uuid.UUID) (unblock func()) {
			_, release := d.lock(statement, batch)
			return release
		}
	}
	withWorkers, withoutWorkers := []string{"worker", "worker", "relay", "reconciler"}, []string{"relay", "reconciler"}
	type stuckTest struct {
		processes []string
		block     func(d *deployment, batch uuid.UUID) (unblock func())
	}
	tests := map[string]stuckTest{"items locked, without workers": {withoutWorkers, lock(s.lockBatchItems())}}
	if r := s.resources; r != nil {
		withdraw := func(d *deployment, batch uuid.UUID) (unblock func()) {
			d.exec(r.withdrawBatch, batch)
			return func() { d.exec(r.restoreBatch, batch, stuckItems) }
		}
		tests["withdrawn"] = stuckTest{withWorkers, withdraw}
		tests["withdrawn, without workers"] = stuckTest{withoutWorkers, withdraw}
		tests["resource locked"] = stuckTest{withWorkers, lock(r.lockBatch)}
		tests["resource locked, without workers"] = stuckTest{withoutWorkers, lock(r.lockBatch)}
	} else {
		reject := func(d *deployment, batch uuid.UUID) (unblock func()) {
			d.exec(s.rejectTimeouts(`NEW.` + s.batch + `::text = '` + batch.String() + `'`))
			return func() { d.exec(acceptTimeouts) }
		}
		tests["rejected"] = stuckTest{withWorkers, reject}
		tests["rejected, without workers"] = stuckTest{withoutWorkers, reject}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkBounds(t, func(t *testing.T) excess {
				d := s.deploy(t, needs{processes: test.processes})
				bad := d.insertBatch(stuckItems, 8*time.Second)
				unblock := test.block(d, bad)
				sound := d.insertBatch(good, 10*time.Second)
				eventually(t, "the good items timed out", func() bool { return d.pending(sound) == 0 })
				if n := d.pending(bad); n != stuckItems {
					t.Errorf("%v items cannot time out, want %d: the test proves nothing", n, stuckItems)
				}
				late := d.number(`SELECT max(extract(epoch FROM cancelled_at - deadline))
					FROM (`+s.items+`) AS items WHERE batch = $1`, sound)
				t.Logf("the last good item timed out %.2f s late", late)
				unblock()
				eventually(t, "the stuck items timed out", func() bool { return d.pending(bad) == 0 })
				d.start("worker") // the worker removes the tasks that are left in the queue
				d.checkHealth(t)
				d.kill(d.running("")...)
				return func(slack int) (exceeded []string) {
					// The interval and the grace are 2 s each, and half an interval is 1 s. The bound adds three seconds for
					// a loaded machine.
					if most := 8 * float64(slack); late > most {
						exceeded = append(exceeded, fmt.Sprintf("a good item timed out %.1f s late, the bound is %v s", late, most))
					}
					return exceeded
				}
			})
		})
	}
}

// pending counts a batch's pending items.
func (d *deployment) pending(batch uuid.UUID) float64 {
	d.t.Helper()
	return d.items(`batch = $1 AND status = 'pending'`, batch)
}

// insertBatch inserts n items that have a resource of their own and the same deadline, and returns their batch.
func (d *deployment) insertBatch(n int, in time.Duration) (batch uuid.UUID) {
	d.t.Helper()
	batch = uuid.New()
	d.exec(d.service.insertBatch, batch, in.Seconds(), n)
	return batch
}
