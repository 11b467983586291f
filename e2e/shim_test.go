package e2e

import (
	"os/exec"
	"testing"
)

var (
	domain       = orders
	program      = orders.program
	kind         = orders.kind
	metricPrefix = program + "_"
	envTimeout   = orders.timeoutVariable()
)

func binary() (string, error) { return orders.binary() }

func newSite(t testing.TB, redis string, env ...string) *site {
	t.Helper()
	return orders.newSite(t, redis, env...)
}

func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	return orders.start(t, cmd)
}

func command(t testing.TB, env []string, args ...string) *exec.Cmd {
	t.Helper()
	return orders.command(t, env, args...)
}

func deploy(t testing.TB, n needs) *deployment {
	t.Helper()
	return orders.deploy(t, n)
}
