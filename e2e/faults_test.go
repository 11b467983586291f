package e2e

import (
	"testing"

	"example.com/shop/internal/faulttest"
)

// The tests of package faulttest, with orders.

func TestKilledAfter201(t *testing.T)          { faulttest.Crash(t, orders) }
func TestKilledBeforeRedis(t *testing.T)       { faulttest.CrashBeforeRedis(t, orders) }
func TestRedisDown(t *testing.T)               { faulttest.RedisDown(t, orders) }
func TestRolesApart(t *testing.T)              { faulttest.RolesApart(t, orders) }
func TestDrain(t *testing.T)                   { faulttest.Drain(t, orders) }
func TestGracefulStop(t *testing.T)            { faulttest.GracefulStop(t, orders) }
func TestOrdersThatCannotTimeOut(t *testing.T) { faulttest.Stuck(t, orders) }
func TestProcessFaults(t *testing.T)           { faulttest.Faults(t, orders, orders.ProcessFaults()...) }
func TestRedisFaults(t *testing.T)             { faulttest.Faults(t, orders, orders.RedisFaults()...) }
func TestPostgresFaults(t *testing.T)          { faulttest.Faults(t, orders, orders.PostgresFaults()...) }
func TestNetworkFaults(t *testing.T)           { faulttest.Faults(t, orders, orders.NetworkFaults()...) }
func TestClockFaults(t *testing.T)             { faulttest.Faults(t, orders, orders.ClockFaults(t)...) }
func TestWithoutRedis(t *testing.T)            { faulttest.Faults(t, orders, orders.AloneFaults()...) }
func TestFailoverFaults(t *testing.T)          { faulttest.Faults(t, orders, orders.FailoverFaults()...) }
func TestRedisFailovers(t *testing.T)          { faulttest.Faults(t, orders, orders.RedisFailoverFaults()...) }
func TestChaos(t *testing.T)                   { faulttest.Chaos(t, orders) }
