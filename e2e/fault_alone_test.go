package e2e

import (
	"fmt"
	"slices"
	"time"

	"example.com/shop/internal/testenv"
)

// aloneFaults returns faults of a service that runs on PostgreSQL alone: its reconcilers time items out every second. The last
// fault gives the service a Redis, and takes it away again, while customers create items.
func aloneFaults() []fault {
	processes := []string{"api", "api", "reconciler", "reconciler"}
	alone := &common{needs: needs{alone: true, postgres: map[string]string{}, processes: processes}}
	return []fault{
		{name: "no fault", needs: needs{alone: true, processes: processes},
			bound: bound{late: 3 * time.Second, held: 5 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
				d.sleep(3 * time.Second)
				if n := d.number(`SELECT count(*) FROM outbox`); n > 0 {
					d.t.Errorf("the outbox has %v messages, which no relay takes", n)
				}
			}},
		{name: "all processes killed, and PostgreSQL restarted", on: alone, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, rejected: true}, inject: func(d *deployment) {
			all := d.running("")
			d.kill(all...)
			testenv.Must(d.t, d.postgres.Stop())
			testenv.Must(d.t, d.postgres.Restart(d.t.Context()))
			d.replace(all...)
		}},
		{name: "Redis added and removed", on: alone, bound: bound{late: 8 * time.Second, answer: 3 * time.Second}, inject: addAndRemoveRedis},
	}
}

// addAndRemoveRedis replaces each process by one with Redis, and later by one without it, in the order that docs/postgres-alone.md says. In
// between, both kinds run at the same time.
func addAndRemoveRedis(d *deployment) {
	alone := d.env
	redis := d.rdb.Options()
	url := fmt.Sprintf("redis://%s/%d", redis.Addr, redis.DB)
	d.env = slices.Concat(alone, []string{envRedisURL + "=" + url, envDrain + "=1s"})
	more := []*member{d.start("worker"), d.start("relay")}
	d.replaceEach(d.running("api")...)
	d.replaceEach(d.running("reconciler")...)
	d.sleep(2 * time.Second)
	if n, err := d.rdb.ZCard(d.t.Context(), d.service.queue().due).Result(); err != nil || n == 0 {
		d.t.Errorf("Redis has %d tasks, %v; want some", n, err)
	}
	d.env = slices.Concat(alone, []string{envDrain + "=1s"})
	d.replaceEach(d.running("reconciler")...)
	d.replaceEach(d.running("api")...)
	eventually(d.t, "the relay has taken what the last processes with Redis left in the outbox", func() bool {
		return d.number(`SELECT count(*) FROM outbox`) == 0
	})
	for _, m := range more {
		d.remove(m)
		m.interrupt()
	}
	d.env = alone
}
