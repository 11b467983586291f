package faulttest

import (
	"time"
)

// NetworkFaults returns faults that make the network to Redis and to PostgreSQL slow, cut, or half-open.
func (s *Service) NetworkFaults() []Fault {
	proxied := &common{needs: Needs{Network: true}}
	return []Fault{
		{Name: "Redis slow", on: proxied, Bound: Bound{Late: 8 * time.Second, Answer: 2 * time.Second},
			Inject: func(d *Deployment) {
				d.toRedis.Slow(60 * time.Millisecond) // a round trip takes longer than the budget for publishing
				d.Sleep(5 * time.Second)
				d.toRedis.Heal()
			}},
		{Name: "Redis cut off", on: proxied, Bound: Bound{Late: 8 * time.Second, Answer: 2 * time.Second},
			Inject: func(d *Deployment) {
				d.toRedis.Cut()
				d.Sleep(4 * time.Second)
				d.toRedis.Heal()
			}},
		{Name: "Redis half-open", on: proxied, withoutSweeps: true,
			Bound: Bound{Late: 10 * time.Second, Answer: 2 * time.Second},
			Inject: func(d *Deployment) {
				d.toRedis.HalfOpen()
				d.Sleep(4 * time.Second)
				d.toRedis.Heal()
			}},
		{Name: "PostgreSQL slow", on: proxied, Rate: competing,
			Bound: Bound{Late: 8 * time.Second, Answer: 5 * time.Second},
			also:  contended,
			Inject: func(d *Deployment) {
				d.toPostgres.Slow(30 * time.Millisecond)
				d.Sleep(5 * time.Second)
				d.toPostgres.Heal()
			}},
		{Name: "PostgreSQL cut off", on: proxied,
			Bound: Bound{Late: 8 * time.Second, Answer: 5 * time.Second, Rejected: true},
			Inject: func(d *Deployment) {
				d.toPostgres.Cut()
				d.Sleep(3 * time.Second)
				d.toPostgres.Heal()
			}},
		{Name: "PostgreSQL half-open", on: proxied,
			Bound: Bound{Late: 20 * time.Second, Answer: 12 * time.Second, Rejected: true},
			Inject: func(d *Deployment) {
				d.toPostgres.HalfOpen()
				d.Sleep(5 * time.Second)
				d.toPostgres.Heal()
			}},
	}
}
