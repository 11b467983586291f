package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.com/shop/internal/testenv"
)

// processFaults returns faults that kill and suspend the service's own processes at the worst moments.
func (s *service) processFaults() []fault {
	redelivered := bound{late: 8 * time.Second, answer: 3 * time.Second, rejected: true}
	shared, own := &common{}, &common{needs: needs{redis: []string{}}}
	return []fault{
		{name: "API killed between commit and ZADD", on: own, bound: redelivered, inject: func(d *deployment) {
			resume := suspend(d.t, d.redis.Pid()) // now a publish takes its whole budget of 100 ms
			began := d.number(`SELECT extract(epoch FROM clock_timestamp())`)
			eventually(d.t, "an item whose task is not in Redis", func() bool {
				return d.number(`SELECT count(*) FROM outbox WHERE created_at > to_timestamp($1)`, began) > 0
			})
			apis := d.running("api")
			d.kill(apis...)
			resume()
			d.replace(apis...)
		}},
		// The tasks come back within 3 s. They were due up to a second before, while the workers waited for the lock.
		{name: "worker killed with leases", on: shared, bound: bound{late: 4 * time.Second, answer: 3 * time.Second, rejected: true}, inject: func(d *deployment) {
			release := d.blockWorkers()
			workers := d.running("worker")
			d.suspendWithLeases(workers)
			d.kill(workers...)
			// Terminate the statements of the killed workers too: PostgreSQL would complete them after release.
			d.exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE ` + d.service.cancelling())
			release()
			if d.leased() == 0 {
				d.t.Error("the workers had no lease, so the test proves nothing")
			}
			d.replace(workers...)
		}},
		{name: "worker slower than its lease", on: shared, bound: redelivered, inject: func(d *deployment) {
			release := d.blockWorkers()
			slow := d.running("worker")
			resume := d.suspendWithLeases(slow)
			release()
			d.start("worker")
			d.sleep(4 * time.Second) // a lease ends 2.5 s after its last renewal
			resume()
			eventually(d.t, "a worker reports that its leases expired", func() bool {
				return strings.Contains(slow[0].text()+slow[1].text(), "leases ended before the outcomes of their tasks were written")
			})
		}},
		{name: "relay killed in mid-batch", on: own, bound: redelivered, inject: func(d *deployment) {
			resume := suspend(d.t, d.redis.Pid())
			eventually(d.t, "a relay that has deleted rows and waits for Redis, before it commits", func() bool {
				return d.number(`SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND state = 'idle in transaction' AND query LIKE '%DELETE FROM outbox%'`) > 0
			})
			relays := d.running("relay")
			d.kill(relays...)
			resume()
			d.replace(relays...)
		}},
		{name: "everything killed at once", needs: needs{postgres: map[string]string{}, redis: []string{}}, bound: redelivered, inject: func(d *deployment) {
			all := d.running("")
			d.kill(all...)
			testenv.Must(d.t, d.redis.Kill())
			testenv.Must(d.t, d.postgres.Stop())
			testenv.Must(d.t, d.postgres.Restart(d.t.Context()))
			testenv.Must(d.t, d.redis.Restart(d.t.Context()))
			d.replace(all...)
		}},
		{name: "processes killed behind PgBouncer", needs: needs{pooler: true},
			bound: bound{late: 8 * time.Second, answer: 3 * time.Second, rejected: true, again: 4 * time.Second}, inject: func(d *deployment) {
				all := d.running("")
				d.kill(all...)
				d.replace(all...)
				d.awaitService() // a lock that a killed process left would stop the sweeps
			}},
		{name: "two reconcilers alone", bound: redelivered, needs: needs{processes: []string{"api", "relay", "reconciler", "reconciler"}}, inject: func(d *deployment) {
			d.sleep(4 * time.Second)
			d.start("worker") // the worker removes the tasks that are left in the queue
		}},
		{name: "rolling restart to a newer schema", bound: bound{late: 3 * time.Second, answer: 3 * time.Second}, needs: needs{env: []string{envDrain + "=1s"}},
			before: func() { _, _ = s.newer() }, // building takes long, so it is done before the load begins; rollOut reports its error
			inject: rollOut},
		{name: "handler that always fails", on: shared, bound: bound{late: time.Minute, answer: 3 * time.Second}, inject: failHandler},
	}
}

func pids(processes []*member) (pids []int) {
	for _, m := range processes {
		pids = append(pids, m.cmd.Process.Pid)
	}
	return pids
}

// cancelling selects the sessions that wait for a lock in order to time items out.
func (s *service) cancelling() string {
	return `datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '` + s.timeoutStatement + `'`
}

// blockWorkers blocks the statements of the workers by locks until release, and waits until workers have leases.
func (d *deployment) blockWorkers() (release func()) {
	d.t.Helper()
	eventually(d.t, "an item timed out", func() bool { return d.items(`status = 'timed out'`) > 0 })
	_, release = d.lock(d.service.blockTimeouts)
	eventually(d.t, "a worker that has leases and waits for a lock", func() bool {
		return d.leased() > 0 && d.number(`SELECT count(*) FROM pg_stat_activity WHERE `+d.service.cancelling()) > 0
	})
	return release
}

// suspendWithLeases suspends workers while they have leases and wait for a lock, so that no outcome of theirs is on its
// way to Redis. It may need several attempts, because blocked workers give their tasks back after a while.
func (d *deployment) suspendWithLeases(workers []*member) (resume func()) {
	d.t.Helper()
	eventually(d.t, "workers suspended while they have leases and wait for a lock", func() bool {
		resume = suspend(d.t, pids(workers)...)
		if d.number(`SELECT count(*) FROM pg_stat_activity WHERE `+d.service.cancelling()) > 0 && d.leased() > 0 {
			return true
		}
		resume()
		return false
	})
	return resume
}

// failHandler makes the database reject one item's timeout. The other items must still time out, and the item's task
// must become a dead letter. When the database accepts the timeout again, an operator redrives the dead letter.
func failHandler(d *deployment) {
	api := d.running("api")[0]
	c, ops := api.signUp(), api.operator()
	began := d.number(`SELECT extract(epoch FROM clock_timestamp())`)
	poison := c.item(c.expect(http.StatusCreated, d.service.create(d.service.bodies[0], "poison"))).id
	d.exec(d.service.rejectTimeouts(`NEW.id = '` + poison + `'`))
	// Ten failed attempts would take minutes, so the test sets the number of the task's failed attempts to nine.
	testenv.Must(d.t, d.rdb.HSet(d.t.Context(), d.service.queue().attempts, poison, strconv.Itoa(9)).Err())
	eventually(d.t, "a dead letter", func() bool {
		a := ops.send(request{method: "GET", path: "/ops/api/dead-letters"})
		if a.status == http.StatusServiceUnavailable { // a Redis under load may not answer in time
			return false
		}
		letters := decode[struct{ Items []struct{ ID, Error string } }](d.t, a).Items
		return len(letters) == 1 && letters[0].ID == poison && strings.Contains(letters[0].Error, "rejected")
	})
	d.sleep(2 * time.Second)
	d.exec(acceptTimeouts)
	ops.post(http.StatusNoContent, "/ops/api/dead-letters/"+d.service.kind+"/"+poison+"/redrive")
	eventually(d.t, "its item timed out", func() bool { return c.look(poison).status == timedOut })
	if n := d.items(`id <> $1 AND deadline > to_timestamp($2) AND cancelled_at > deadline + interval '5 s'`, poison, began); n > 0 {
		d.t.Errorf("%v other items timed out more than 5 s late", n)
	}
}

// newer returns the path of a later version of the program, which has one more migration. It builds it once.
func (s *service) newer() (string, error) { return s.builtNewer.get(s.buildNewer) }

func (s *service) buildNewer() (string, error) {
	dir, err := testenv.TempDir()
	if err != nil {
		return "", err
	}
	migration := filepath.Join(dir, "90000_note.sql")
	if err := os.WriteFile(migration, []byte(s.laterMigration()), 0o600); err != nil {
		return "", err
	}
	added, err := filepath.Abs(s.path("migrations/90000_note.sql"))
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {added: migration}})
	if err != nil {
		return "", err
	}
	replaced := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replaced, overlay, 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(dir, s.program+"-newer")
	return path, s.goBuild(path, "-overlay", replaced)
}

// rollOut migrates the database while the processes run, then replaces one process after the other.
func rollOut(d *deployment) {
	path, err := d.service.newer()
	testenv.Must(d.t, err)
	d.binary = path
	contains(d.t, d.run(d.t, "migrate"), "90000_note.sql")
	d.replaceEach(d.running("")...)
}

// replaceEach replaces one process after the other, as a rolling update does.
func (d *deployment) replaceEach(processes ...*member) {
	d.t.Helper()
	for _, old := range processes {
		d.start(old.role)
		d.remove(old) // as a load balancer does during the drain; old still serves the requests that were already sent
		d.t.Logf("%s stopped in %v", old.role, old.interrupt())
	}
}
