package faulttest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
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
	lockRows := func(d *Deployment, b batch) (unblock func()) {
		_, release := d.Lock(`SELECT FROM `+s.Table+` WHERE id::text = ANY ($1) FOR UPDATE`, b.ids)
		return release
	}
	lockShared := func(d *Deployment, b batch) (unblock func()) {
		_, release := d.Lock(s.Shared.Lock, []string{b.shared})
		return release
	}
	reject := func(d *Deployment, b batch) (unblock func()) {
		return d.rejectTimeouts(`id::text = ANY ('{` + strings.Join(b.ids, ",") + `}')`)
	}
	withWorkers, withoutWorkers := []string{"worker", "worker", "relay", "reconciler"}, []string{"relay", "reconciler"}
	type stuckTest struct {
		processes []string
		block     func(d *Deployment, b batch) (unblock func())
	}
	tests := map[string]stuckTest{
		"rows locked, without workers": {withoutWorkers, lockRows},
		"rejected":                     {withWorkers, reject},
		"rejected, without workers":    {withoutWorkers, reject},
	}
	if s.Shared != nil {
		tests["shared row locked"] = stuckTest{withWorkers, lockShared}
		tests["shared row locked, without workers"] = stuckTest{withoutWorkers, lockShared}
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
				late := d.Number(`SELECT max(extract(epoch FROM ended_at - deadline))
					FROM (`+s.rows()+`) AS rows WHERE id::text = ANY ($1)`, sound.ids)
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

// batch is rows that have the same deadline, and a shared row of their own if there are shared rows.
type batch struct {
	shared string // the name of the shared row
	ids    []string
}

// pending counts a batch's pending rows.
func (d *Deployment) pending(b batch) float64 {
	d.T.Helper()
	return d.rows(`id::text = ANY ($1) AND status = 'pending'`, b.ids)
}

// insertBatch inserts n rows and their messages into the outbox.
func (d *Deployment) insertBatch(n int, in time.Duration) batch {
	d.T.Helper()
	tx, err := d.DB.BeginTx(d.T.Context(), nil)
	testenv.Must(d.T, err)
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	b, err := d.Service.insertBatch(d.T.Context(), tx, n, in)
	testenv.Must(d.T, err)
	testenv.Must(d.T, tx.Commit())
	return b
}

func (s *Service) insertBatch(ctx context.Context, tx *sql.Tx, n int, in time.Duration) (b batch, err error) {
	b.shared = uuid.NewString()
	rows, err := tx.QueryContext(ctx, s.InsertBatch, b.shared, in.Seconds(), n)
	if err != nil {
		return b, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return b, err
		}
		b.ids = append(b.ids, id)
	}
	if err := rows.Err(); err != nil {
		return b, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO outbox (kind, task_id, due_at)
		SELECT $1, id::text, deadline FROM (`+s.rows()+`) AS rows WHERE id::text = ANY ($2)`, s.Kind, b.ids)
	return b, err
}
