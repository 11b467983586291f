package faulttest

import (
	"fmt"
	"slices"
	"time"

	"example.com/shop/internal/testenv"
)

// AloneFaults returns faults of a service that runs on PostgreSQL alone: its reconcilers time rows out every second.
// The last fault gives the service a Redis, and takes it away again, while customers create rows.
func (*Service) AloneFaults() []Fault {
	processes := []string{"api", "api", "reconciler", "reconciler"}
	// Without a drain, a process that stops could close a connection on which a request has just arrived.
	alone := &common{needs: Needs{
		Alone: true, Postgres: map[string]string{}, Processes: processes, Env: []string{EnvDrain + "=1s"},
	}}
	return []Fault{
		{Name: "no fault", Needs: Needs{Alone: true, Processes: processes},
			Bound: Bound{Late: 3 * time.Second, Held: 5 * time.Second, Answer: 2 * time.Second},
			Inject: func(d *Deployment) {
				d.Sleep(3 * time.Second)
				if n := d.Number(`SELECT count(*) FROM outbox`); n > 0 {
					d.T.Errorf("the outbox has %v messages, which no relay takes", n)
				}
			}},
		{Name: "all processes killed, and PostgreSQL restarted", on: alone,
			Bound: Bound{Late: 8 * time.Second, Answer: 5 * time.Second, Rejected: true},
			Inject: func(d *Deployment) {
				all := d.Running("")
				d.Kill(all...)
				testenv.Must(d.T, d.Postgres.Stop())
				testenv.Must(d.T, d.Postgres.Restart(d.T.Context()))
				d.Replace(all...)
			}},
		{Name: "Redis added and removed", on: alone, Bound: Bound{Late: 8 * time.Second, Answer: 3 * time.Second},
			Inject: addAndRemoveRedis},
	}
}

// addAndRemoveRedis replaces each process by one with Redis, and later by one without it: workers and relays come first
// and go last. In between, both kinds run at the same time.
func addAndRemoveRedis(d *Deployment) {
	alone := d.Env
	redis := d.RDB.Options()
	url := fmt.Sprintf("redis://%s/%d", redis.Addr, redis.DB)
	d.Env = slices.Concat(alone, []string{EnvRedisURL + "=" + url})
	more := []*Member{d.Start("worker"), d.Start("relay")}
	d.replaceEach(d.Running("api")...)
	d.replaceEach(d.Running("reconciler")...)
	d.Sleep(2 * time.Second)
	if n, err := d.RDB.ZCard(d.T.Context(), d.Service.queue().due).Result(); err != nil || n == 0 {
		d.T.Errorf("Redis has %d tasks, %v; want some", n, err)
	}
	d.Env = alone
	d.replaceEach(d.Running("reconciler")...)
	d.replaceEach(d.Running("api")...)
	Eventually(d.T, "the relay has taken what the last processes with Redis left in the outbox", func() bool {
		return d.Number(`SELECT count(*) FROM outbox`) == 0
	})
	for _, m := range more {
		d.Remove(m)
		m.Interrupt()
	}
}
