package e2e

import (
	"testing"
	"time"
)

// TestNetworkFaults: the ways to Redis and to PostgreSQL are slow, cut, or half-open.
func TestNetworkFaults(t *testing.T) {
	between := needs{network: true}
	runFaults(t, []fault{
		{name: "Redis slow", needs: between, bound: bound{late: 8 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.Slow(60 * time.Millisecond) // a round trip is longer than the budget to publish
			d.hold(5 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "Redis cut off", needs: between, bound: bound{late: 8 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.Cut()
			d.hold(4 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "Redis half-open", needs: between, bound: bound{late: 10 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.HalfOpen()
			d.hold(4 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "PostgreSQL slow", needs: between, bound: bound{late: 8 * time.Second, answer: 5 * time.Second}, inject: func(d *deployment) {
			d.toPostgres.Slow(30 * time.Millisecond)
			d.hold(5 * time.Second)
			d.toPostgres.Heal()
		}},
		{name: "PostgreSQL cut off", needs: between, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, refused: true}, inject: func(d *deployment) {
			d.toPostgres.Cut()
			d.hold(3 * time.Second)
			d.toPostgres.Heal()
		}},
		{name: "PostgreSQL half-open", needs: between, bound: bound{late: 20 * time.Second, answer: 12 * time.Second, refused: true}, inject: func(d *deployment) {
			d.toPostgres.HalfOpen()
			d.hold(5 * time.Second)
			d.toPostgres.Heal()
		}},
	})
}
