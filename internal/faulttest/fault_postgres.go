package faulttest

import (
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"example.com/shop/internal/testenv"
)

// maxConnections is PostgreSQL's max_connections.
const maxConnections = 60

// PostgresFaults returns faults that break PostgreSQL. Meanwhile no row is created and none times out. The service
// rejects requests, and the customers repeat them with the same idempotency key. Each key must get at most one row.
func (s *Service) PostgresFaults() []Fault {
	var whileLocked []string // a message for each failure to create a row that does not need the locked row
	shared, own := &common{}, &common{needs: Needs{
		Postgres: map[string]string{"max_connections": strconv.Itoa(maxConnections), "deadlock_timeout": "100ms"},
	}}
	return []Fault{
		{Name: "restarted", on: own, withoutSweeps: true,
			Bound:  Bound{Late: 8 * time.Second, Answer: 5 * time.Second, Rejected: true},
			Inject: during(2*time.Second, postgresRestarted)},
		// A request, with its statements, times out after 8 s.
		{Name: "hung", on: own, Bound: Bound{Late: 15 * time.Second, Answer: 12 * time.Second, Rejected: true},
			Inject: during(6*time.Second, postgresHung)},
		{Name: "out of connections", on: own,
			Bound:  Bound{Late: 10 * time.Second, Answer: 10 * time.Second, Rejected: true},
			Inject: takeConnections},
		// A wait for a lock times out after 3 s. The worker retries its batch within 1.5 s.
		{Name: "shared row locked", on: shared, NeedsShared: true, Rate: competing,
			Bound: Bound{Late: 15 * time.Second, Answer: 8 * time.Second, Rejected: true},
			Inject: func(d *Deployment) {
				_, release := d.lockShared(s.Bodies[0])
				whileLocked = createIndependent(d, 4*time.Second)
				for range 3 { // their requests wait together, and so get into one batch
					d.load.rushNow <- struct{}{}
					d.Sleep(time.Second / 3)
				}
				release()
			}, also: func(f figures, slack int) []string { return append(contended(f, slack), whileLocked...) }},
		{Name: "rows locked", on: shared, withoutSweeps: true,
			Bound:  Bound{Late: 8 * time.Second, Answer: 6 * time.Second, Rejected: true},
			Inject: during(5*time.Second, pendingLocked)},
		{Name: "deadlocks", NeedsShared: true, on: own,
			Bound:  Bound{Late: 8 * time.Second, Answer: 6 * time.Second, Rejected: true},
			Inject: causeDeadlocks},
	}
}

func postgresRestarted(d *Deployment, _ int) (end func()) {
	testenv.Must(d.T, d.Postgres.Stop())
	return func() { testenv.Must(d.T, d.Postgres.Restart(d.T.Context())) }
}

func postgresHung(d *Deployment, _ int) (end func()) { return d.suspendPostgres() }

func pendingLocked(d *Deployment, _ int) (end func()) {
	_, release := d.Lock(`SELECT FROM ` + d.Service.Table + ` WHERE status = 'pending' ORDER BY id FOR UPDATE`)
	return release
}

// createIndependent creates rows for a while, one after the other. They do not need a shared row that the test has
// locked, so they must be created, although other rows that are requested at the same time wait and are rejected.
func createIndependent(d *Deployment, duration time.Duration) (exceeded []string) {
	Eventually(d.T, "a request waits for the lock", func() bool {
		return d.Number(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	apis, body := d.Running("api"), d.Service.independent()
	began := time.Now()
	for n := 0; time.Since(began) < duration; n++ {
		a := apis[n%len(apis)].SignUp().admitted(d.Service.Create(body, fmt.Sprintf("independent-%d", n)))
		if a.Status != http.StatusCreated {
			exceeded = append(exceeded, fmt.Sprintf(
				"status %d of a row that does not need the locked row: %s", a.Status, a.Body))
		}
		d.Sleep(50 * time.Millisecond)
	}
	return exceeded
}

// takeConnections takes all of PostgreSQL's connections, or nearly all. It terminates the service's sessions until the
// test has every connection. The service connects again at once, so the test does not wait between two attempts. On a
// slow machine the service may take the last ones again and again, so after some seconds a tenth may be left to it.
func takeConnections(d *Deployment) {
	var taken []*sql.Conn
	for began := time.Now(); len(taken) < maxConnections; {
		conn, err := d.DB.Conn(d.T.Context())
		if err == nil {
			taken = append(taken, conn)
			continue
		}
		if time.Since(began) > 5*time.Second && len(taken) >= maxConnections*9/10 {
			break
		}
		if time.Since(began) > time.Minute {
			d.T.Fatalf("only %d of %d connections taken after a minute: %v", len(taken), maxConnections, err)
		}
		_, err = taken[0].ExecContext(d.T.Context(), `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '`+d.Service.Program+`'`)
		testenv.Must(d.T, err)
	}
	d.Sleep(3 * time.Second)
	for _, conn := range taken {
		conn.Close()
	}
}

// causeDeadlocks repeatedly locks two shared rows that one row needs, in both orders. One of them is not the service's.
func causeDeadlocks(d *Deployment) {
	const deadlocks = `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`
	both := d.Service.sharedTogether()
	if both == nil {
		d.T.Skip("no row needs two shared rows")
	}
	began, before := time.Now(), d.Number(deadlocks)
	Eventually(d.T, "a deadlock occurred", func() bool {
		tx, release := d.Lock(d.Service.Shared.Lock, both[1:])
		defer release()
		d.Sleep(20 * time.Millisecond)
		// PostgreSQL rolls back this transaction or the service's.
		_, _ = tx.ExecContext(d.T.Context(), d.Service.Shared.Lock, both[:1])
		slices.Reverse(both)
		// The session that PostgreSQL chooses is mostly one of the service, and it reports its statistics at most once
		// a second.
		return time.Since(began) > 4*time.Second && d.Number(deadlocks) > before
	})
}
