package e2e

import (
	"database/sql"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"example.com/shop/internal/testenv"
)

// maxConnections is PostgreSQL's max_connections.
const maxConnections = 60

// postgresFaults returns faults that break PostgreSQL. Meanwhile no item is created and none times out. The service rejects requests,
// and the customers repeat them with the same idempotency key. Each key must get at most one item.
func postgresFaults() []fault {
	var whileLocked []string // a message for each failure to create an item that does not need the locked row
	shared, own := &common{}, &common{needs: needs{
		postgres: map[string]string{"max_connections": strconv.Itoa(maxConnections), "deadlock_timeout": "100ms"},
	}}
	return []fault{
		{name: "restarted", on: own, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, rejected: true}, inject: func(d *deployment) {
			testenv.Must(d.t, d.postgres.Stop())
			d.sleep(2 * time.Second)
			testenv.Must(d.t, d.postgres.Restart(d.t.Context()))
		}},
		// A request, with its statements, times out after 8 s.
		{name: "hung", on: own, bound: bound{late: 15 * time.Second, answer: 12 * time.Second, rejected: true}, also: someOverloaded, inject: func(d *deployment) {
			resume := d.suspendPostgres()
			d.sleep(6 * time.Second)
			resume()
		}},
		{name: "out of connections", on: own, bound: bound{late: 10 * time.Second, answer: 10 * time.Second, rejected: true}, inject: takeConnections},
		// A wait for a lock times out after 3 s. The worker retries its batch within 1.5 s.
		{name: "shared row locked", on: shared, resources: true, rate: 40, bound: bound{late: 15 * time.Second, answer: 8 * time.Second, rejected: true}, inject: func(d *deployment) {
			_, release := d.lock(d.service.resources.lockFirst)
			whileLocked = createIndependent(d, 5*time.Second)
			release()
		}, also: func(f figures) []string { return append(contended(f), whileLocked...) }},
		{name: "items locked", on: shared, bound: bound{late: 8 * time.Second, answer: 6 * time.Second, rejected: true}, inject: func(d *deployment) {
			_, release := d.lock(d.service.lockPending())
			d.sleep(5 * time.Second)
			release()
		}},
		{name: "deadlocks", resources: true, on: own, bound: bound{late: 8 * time.Second, answer: 6 * time.Second, rejected: true}, inject: causeDeadlocks},
	}
}

// createIndependent creates items for a while, one after the other. They do not need a resource that the test has locked,
// so they must not wait for it, although other items that are created at the same time do.
func createIndependent(d *deployment, duration time.Duration) (exceeded []string) {
	const most = 2 * time.Second // a batch waits for the lock for 200 ms, and then continues without those that need it
	eventually(d.t, "a request waits for the lock", func() bool {
		return d.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	apis := d.running("api")
	var slowest time.Duration
	began, n := time.Now(), 0
	for ; time.Since(began) < duration; n++ {
		a := apis[n%len(apis)].signUp().admitted(d.service.create(d.service.resources.independent, fmt.Sprintf("independent-%d", n)))
		if a.status != http.StatusCreated {
			exceeded = append(exceeded, fmt.Sprintf("status %d of an item that does not need the locked row: %s", a.status, a.body))
		}
		slowest = max(slowest, a.took)
		d.sleep(50 * time.Millisecond)
	}
	d.t.Logf("%d items that do not need the locked row: the slowest response took %v", n, slowest)
	if slowest > most {
		exceeded = append(exceeded, fmt.Sprintf("an item that does not need the locked row took %v, the bound is %v", slowest, most))
	}
	return exceeded
}

// takeConnections takes all of PostgreSQL's connections, or nearly all. It terminates the service's sessions until the
// test has every connection. The service connects again at once, so the test does not wait between two attempts. On a
// slow machine the service may take the last ones again and again, so after some seconds a tenth may be left to it.
func takeConnections(d *deployment) {
	var taken []*sql.Conn
	for began := time.Now(); len(taken) < maxConnections; {
		conn, err := d.db.Conn(d.t.Context())
		if err == nil {
			taken = append(taken, conn)
			continue
		}
		if time.Since(began) > 5*time.Second && len(taken) >= maxConnections*9/10 {
			break
		}
		if time.Since(began) > time.Minute {
			d.t.Fatalf("only %d of %d connections taken after a minute: %v", len(taken), maxConnections, err)
		}
		_, err = taken[0].ExecContext(d.t.Context(), `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '`+d.service.program+`'`)
		testenv.Must(d.t, err)
	}
	d.sleep(3 * time.Second)
	for _, conn := range taken {
		conn.Close()
	}
}

// causeDeadlocks repeatedly locks two resources in the opposite order to the service's.
func causeDeadlocks(d *deployment) {
	const deadlocks = `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`
	began, before := time.Now(), d.number(deadlocks)
	for time.Since(began) < 4*time.Second {
		tx, release := d.lock(d.service.resources.lockSecond)
		d.sleep(20 * time.Millisecond)
		_, _ = tx.ExecContext(d.t.Context(), d.service.resources.lockFirst) // PostgreSQL rolls back this transaction or the service's
		release()
	}
	// The session that PostgreSQL chooses is mostly one of the service, and it reports its statistics at most once a second.
	eventually(d.t, "a deadlock occurred", func() bool { return d.number(deadlocks) > before })
}
