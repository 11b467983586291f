package faulttest

import (
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.com/shop/internal/testenv"
)

// ProcessFaults returns faults that kill and suspend the service's own processes at the worst moments.
func (s *Service) ProcessFaults() []Fault {
	// A call waits for the lock of a stopped process for at most lock_timeout, which is 3 s.
	redelivered := Bound{Late: 8 * time.Second, Answer: 5 * time.Second, Rejected: true}
	shared, own := &common{}, &common{needs: Needs{Redis: []string{}}}
	return []Fault{
		{Name: "API killed between commit and ZADD", on: own, withoutSweeps: true, Bound: redelivered,
			Inject: func(d *Deployment) {
				resume := suspend(d.T, d.redis.Pid()) // now a publish takes its whole budget of 100 ms
				began := d.Number(`SELECT extract(epoch FROM clock_timestamp())`)
				Eventually(d.T, "a row whose task is not in Redis", func() bool {
					return d.Number(`SELECT count(*) FROM outbox WHERE created_at > to_timestamp($1)`, began) > 0
				})
				apis := d.Running("api")
				d.Kill(apis...)
				resume()
				d.Replace(apis...)
			}},
		// The tasks come back within 3 s. They were due up to a second before, while the workers waited for the lock.
		// They are the last ones, because a worker that wakes for another task would find them by chance.
		{Name: "worker killed with leases", Quick: true, on: shared, withoutSweeps: true, last: true,
			Bound: Bound{Late: 5 * time.Second, Answer: 4 * time.Second, Rejected: true},
			Inject: func(d *Deployment) {
				Eventually(d.T, "all pending rows due within a second", func() bool {
					return d.rows(`status = 'pending' AND due > clock_timestamp() + interval '1 s'`) == 0
				})
				release := d.blockWorkers()
				workers := d.Running("worker")
				Eventually(d.T, "all pending rows due", func() bool {
					return d.rows(`status = 'pending' AND due > clock_timestamp()`) == 0
				})
				d.suspendWithLeases(workers)
				d.Kill(workers...)
				// Terminate the statements of the killed workers too: PostgreSQL would complete them after release.
				d.Exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE ` + waitingTimeouts)
				release()
				if d.leased() == 0 {
					d.T.Error("the workers had no lease, so the test proves nothing")
				}
				d.Replace(workers...)
			}},
		{Name: "worker slower than its lease", on: shared, Bound: redelivered, Inject: func(d *Deployment) {
			release := d.blockWorkers()
			slow := d.Running("worker")
			resume := d.suspendWithLeases(slow)
			release()
			d.Start("worker")
			d.Sleep(4 * time.Second) // a lease ends 2.5 s after its last renewal
			resume()
			Eventually(d.T, "a worker reports that its leases expired", func() bool {
				return strings.Contains(slow[0].Text()+slow[1].Text(),
					"leases ended before the outcomes of their tasks were written")
			})
		}},
		{Name: "relay killed in mid-batch", on: own, withoutSweeps: true, Bound: redelivered,
			Inject: func(d *Deployment) {
				resume := suspend(d.T, d.redis.Pid())
				Eventually(d.T, "a relay that has locked rows and waits for Redis, before it commits", func() bool {
					return d.Number(`SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND state = 'idle in transaction'
						AND query LIKE '%FROM outbox%'`) > 0
				})
				relays := d.Running("relay")
				d.Kill(relays...)
				resume()
				d.Replace(relays...)
			}},
		{Name: "everything killed at once", Needs: Needs{Postgres: map[string]string{}, Redis: []string{}},
			Bound: redelivered,
			Inject: func(d *Deployment) {
				all := d.Running("")
				d.Kill(all...)
				testenv.Must(d.T, d.redis.Kill())
				testenv.Must(d.T, d.Postgres.Stop())
				testenv.Must(d.T, d.Postgres.Restart(d.T.Context()))
				testenv.Must(d.T, d.redis.Restart(d.T.Context()))
				d.Replace(all...)
			}},
		{Name: "processes killed behind PgBouncer", Needs: Needs{Pooler: true},
			Bound: Bound{Late: 8 * time.Second, Answer: 5 * time.Second, Rejected: true, Again: 4 * time.Second},
			Inject: func(d *Deployment) {
				all := d.Running("")
				d.Kill(all...)
				d.Replace(all...)
				d.AwaitService() // a lock that a killed process left would stop the sweeps
			}},
		{Name: "two reconcilers alone",
			Bound: redelivered, Needs: Needs{Processes: []string{"api", "relay", "reconciler", "reconciler"}},
			Inject: func(d *Deployment) {
				d.Sleep(4 * time.Second)
				d.Start("worker") // the worker removes the tasks that are left in the queue
			}},
		{Name: "rolling restart with a newer schema",
			Bound: Bound{Late: 3 * time.Second, Answer: 3 * time.Second}, Needs: Needs{Env: []string{EnvDrain + "=5s"}},
			Inject: rollOut},
		{Name: "handler that always fails", on: shared, Bound: Bound{Late: time.Minute, Answer: 3 * time.Second},
			Inject: failHandler},
	}
}

func pids(processes []*Member) (pids []int) {
	for _, m := range processes {
		pids = append(pids, m.Cmd.Process.Pid)
	}
	return pids
}

// blockWorkers blocks the statements of the workers by locks until release, and waits until workers have leases.
func (d *Deployment) blockWorkers() (release func()) {
	d.T.Helper()
	Eventually(d.T, "a row timed out", func() bool { return d.rows(`status = 'timed out'`) > 0 })
	release = d.blockTimeouts()
	Eventually(d.T, "a worker that has leases and waits for a lock", func() bool {
		return d.leased() > 0 && d.Number(`SELECT count(*) FROM pg_stat_activity WHERE `+waitingTimeouts) > 0
	})
	return release
}

// suspendWithLeases suspends workers while they have leases and wait for a lock, so that no outcome of theirs is on its
// way to Redis. It may need several attempts, because blocked workers give their tasks back after a while.
func (d *Deployment) suspendWithLeases(workers []*Member) (resume func()) {
	d.T.Helper()
	Eventually(d.T, "workers suspended while they have leases and wait for a lock", func() bool {
		resume = suspend(d.T, pids(workers)...)
		if d.Number(`SELECT count(*) FROM pg_stat_activity WHERE `+waitingTimeouts) > 0 && d.leased() > 0 {
			return true
		}
		resume()
		return false
	})
	return resume
}

// failHandler makes the database reject one row's timeout. The other rows must still time out, and the row's task
// must become a dead letter. When the database accepts the timeout again, an operator redrives the dead letter.
func failHandler(d *Deployment) {
	api := d.Running("api")[0]
	c, ops := api.SignUp(), api.Operator()
	began := d.Number(`SELECT extract(epoch FROM clock_timestamp())`)
	poison := c.RowOf(c.Expect(http.StatusCreated, d.Service.Create(d.Service.Bodies[0], "poison"))).ID
	accept := d.rejectTimeouts(`id = '` + poison + `'`)
	// Ten failed attempts would take minutes, so the test sets the number of the task's failed attempts to nine.
	testenv.Must(d.T, d.RDB.HSet(d.T.Context(), d.Service.queue().attempts, poison, strconv.Itoa(9)).Err())
	Eventually(d.T, "a dead letter", func() bool {
		a := ops.Send(Request{Method: "GET", Path: "/ops/api/dead-letters"})
		if a.Status == http.StatusServiceUnavailable { // a Redis under load may not answer in time
			return false
		}
		letters := Decode[struct{ Items []struct{ ID, Error string } }](d.T, a).Items
		return len(letters) == 1 && letters[0].ID == poison && strings.Contains(letters[0].Error, "rejected")
	})
	d.Sleep(2 * time.Second)
	accept()
	ops.Post(http.StatusNoContent, "/ops/api/dead-letters/"+d.Service.Kind+"/"+poison+"/redrive")
	Eventually(d.T, "its row timed out", func() bool { return c.Look(poison).Status == TimedOut })
	if n := d.rows(`id <> $1 AND deadline > to_timestamp($2) AND ended_at > deadline + interval '20 s'`,
		poison, began); n > 0 {
		d.T.Errorf("%v other rows timed out more than 20 s late", n)
	}
}

// rollOut adds a later migration to those that the database has, and replaces one process after the other. The load
// balancer polls /readyz once a second: after SIGTERM the process must say that it is not ready, and still serve.
func rollOut(d *Deployment) {
	d.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`)
	for _, old := range d.Running("") {
		Contains(d.T, d.Start(old.Role).Text(), "schema is newer")
		testenv.Must(d.T, old.Cmd.Process.Signal(syscall.SIGTERM))
		Eventually(d.T, "the process says that it is stopping", func() bool {
			a, err := old.anonymous().Try(Request{Method: "GET", Path: "/readyz"})
			if err != nil {
				breach(d.T, "a process does not serve until its drain ends: %v", err)
			}
			return err != nil || a.Status == http.StatusServiceUnavailable
		})
		d.Sleep(time.Second)
		d.Remove(old)
		<-old.ended
		if code := old.Cmd.ProcessState.ExitCode(); code != 0 {
			d.T.Errorf("after SIGTERM a process ended with the exit code %d, want 0", code)
		}
	}
}
