package e2e

import (
	"time"
)

// networkFaults returns faults that make the network to Redis and to PostgreSQL slow, cut, or half-open.
func networkFaults() []fault {
	proxied := &common{needs: needs{network: true}}
	return []fault{
		{name: "Redis slow", on: proxied, bound: bound{late: 8 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.Slow(60 * time.Millisecond) // a round trip takes longer than the budget for publishing
			d.sleep(5 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "Redis cut off", on: proxied, bound: bound{late: 8 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.Cut()
			d.sleep(4 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "Redis half-open", on: proxied, bound: bound{late: 10 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.HalfOpen()
			d.sleep(4 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "PostgreSQL slow", on: proxied, bound: bound{late: 8 * time.Second, answer: 5 * time.Second}, rate: 40, also: contended, inject: func(d *deployment) {
			d.toPostgres.Slow(30 * time.Millisecond)
			d.sleep(5 * time.Second)
			d.toPostgres.Heal()
		}},
		{name: "PostgreSQL cut off", on: proxied, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, rejected: true}, inject: func(d *deployment) {
			d.toPostgres.Cut()
			d.sleep(3 * time.Second)
			d.toPostgres.Heal()
		}},
		{name: "PostgreSQL half-open", on: proxied, bound: bound{late: 20 * time.Second, answer: 12 * time.Second, rejected: true}, inject: func(d *deployment) {
			d.toPostgres.HalfOpen()
			d.sleep(5 * time.Second)
			d.toPostgres.Heal()
		}},
	}
}
