package e2e

import (
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
)

// The tests of package faulttest, with orders.

func TestKilledAfter201(t *testing.T)          { faulttest.Crash(t, orders) }
func TestRedisDown(t *testing.T)               { faulttest.RedisDown(t, orders) }
func TestOrdersThatCannotTimeOut(t *testing.T) { faulttest.Stuck(t, orders) }
func TestRedisFaults(t *testing.T)             { faulttest.Faults(t, orders, orders.RedisFaults()...) }
func TestProcessFaults(t *testing.T) {
	faulttest.Faults(t, orders, append(orders.ProcessFaults(), orders.FrozenInTransaction())...)
}
func TestPostgresFaults(t *testing.T) {
	faulttest.Faults(t, orders, append(orders.PostgresFaults(), booksLocked)...)
}
func TestNetworkFaults(t *testing.T) {
	faulttest.Faults(t, orders, append(orders.NetworkFaults(), orders.CutOffInTransaction())...)
}
func TestClockFaults(t *testing.T)    { faulttest.Faults(t, orders, orders.ClockFaults(t)...) }
func TestFailoverFaults(t *testing.T) { faulttest.Faults(t, orders, orders.FailoverFaults()...) }
func TestRedisFailovers(t *testing.T) { faulttest.Faults(t, orders, orders.RedisFailoverFaults()...) }
func TestChaos(t *testing.T)          { faulttest.Chaos(t, orders) }

// booksLocked lets two bookers wait until both have orders to book. Each order must be booked once. One more booker
// begins halfway between two runs of the others, which leave each other nothing to book.
var booksLocked = faulttest.Fault{
	Name: "books locked", Bound: faulttest.Bound{Late: 5 * time.Second, Answer: 5 * time.Second, Rejected: true},
	Inject: func(d *faulttest.Deployment) {
		faulttest.Eventually(d.T, "an order is booked", func() bool {
			return d.Number(`SELECT count(*) FROM stock_books WHERE sold > 0`) > 0
		})
		d.Sleep(2500 * time.Millisecond)
		d.Start("reconciler")
		_, release := d.Lock(`SELECT FROM stock_books FOR UPDATE`)
		faulttest.Eventually(d.T, "two bookers wait for the lock", func() bool {
			return d.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock' AND query LIKE '%Books up to 500%'`) > 1
		})
		release()
	},
}
