package e2e

import "testing"

func TestMain(m *testing.M) { suite(m, orders) }

// The tests of package faulttest, with orders.

func TestKilledAfter201(t *testing.T)          { crash(t, orders) }
func TestKilledBeforeRedis(t *testing.T)       { crashBeforeRedis(t, orders) }
func TestRedisDown(t *testing.T)               { redisDown(t, orders) }
func TestRolesApart(t *testing.T)              { rolesApart(t, orders) }
func TestDrain(t *testing.T)                   { drain(t, orders) }
func TestGracefulStop(t *testing.T)            { gracefulStop(t, orders) }
func TestOrdersThatCannotTimeOut(t *testing.T) { stuck(t, orders) }
func TestProcessFaults(t *testing.T)           { runFaults(t, orders, orders.processFaults()...) }
func TestRedisFaults(t *testing.T)             { runFaults(t, orders, redisFaults()...) }
func TestPostgresFaults(t *testing.T)          { runFaults(t, orders, postgresFaults()...) }
func TestNetworkFaults(t *testing.T)           { runFaults(t, orders, networkFaults()...) }
func TestClockFaults(t *testing.T)             { runFaults(t, orders, clockFaults(t)...) }
func TestWithoutRedis(t *testing.T)            { runFaults(t, orders, aloneFaults()...) }
func TestFailoverFaults(t *testing.T)          { runFaults(t, orders, failoverFaults()...) }
func TestRedisFailovers(t *testing.T)          { runFaults(t, orders, orders.redisFailovers()...) }
func TestChaos(t *testing.T)                   { chaos(t, orders) }
