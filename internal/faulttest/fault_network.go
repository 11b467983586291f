package faulttest

import (
	"time"
)

// NetworkFaults returns faults that make the network to Redis and to PostgreSQL slow, cut, or half-open.
func (s *Service) NetworkFaults() []Fault {
	proxied := &common{needs: Needs{Network: true}}
	return []Fault{
		{Name: "Redis slow", on: proxied, Bound: Bound{Late: 8 * time.Second, Answer: 2 * time.Second},
			// a round trip takes longer than the budget for publishing
			Inject: during(5*time.Second, toRedis(slow(60*time.Millisecond)))},
		{Name: "Redis cut off", on: proxied, Bound: Bound{Late: 8 * time.Second, Answer: 2 * time.Second},
			Inject: during(4*time.Second, toRedis((*Proxy).Cut))},
		{Name: "Redis half-open", on: proxied, withoutSweeps: true,
			Bound:  Bound{Late: 10 * time.Second, Answer: 2 * time.Second},
			Inject: during(4*time.Second, toRedis((*Proxy).HalfOpen))},
		{Name: "PostgreSQL slow", on: proxied, Rate: competing,
			Bound:  Bound{Late: 8 * time.Second, Answer: 5 * time.Second},
			also:   contended,
			Inject: during(5*time.Second, toPostgres(slow(30*time.Millisecond)))},
		{Name: "PostgreSQL cut off", on: proxied,
			Bound:  Bound{Late: 8 * time.Second, Answer: 5 * time.Second, Rejected: true},
			Inject: during(3*time.Second, toPostgres((*Proxy).Cut))},
		{Name: "PostgreSQL half-open", on: proxied,
			Bound:  Bound{Late: 20 * time.Second, Answer: 12 * time.Second, Rejected: true},
			Inject: during(5*time.Second, toPostgres((*Proxy).HalfOpen))},
	}
}

// toRedis and toPostgres return the beginning of a fault that changes the network to a server until it heals.
func toRedis(change func(*Proxy)) Begin {
	return func(d *Deployment, _ int) (end func()) {
		change(d.toRedis)
		return d.toRedis.Heal
	}
}

func toPostgres(change func(*Proxy)) Begin {
	return func(d *Deployment, _ int) (end func()) {
		change(d.toPostgres)
		return d.toPostgres.Heal
	}
}

func slow(delay time.Duration) func(*Proxy) { return func(p *Proxy) { p.Slow(delay) } }
