package devstack_test

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"example.com/shop/internal/devstack"
)

// TestRedisRetriesOnATakenPort takes the port after it was chosen and before the server starts. OnFreePort must
// recognize the server's message and try another port.
func TestRedisRetriesOnATakenPort(t *testing.T) {
	var ports []int
	r, err := devstack.OnFreePort(func(port int) (*devstack.Redis, error) {
		if len(ports) == 0 {
			take(t, port)
		}
		ports = append(ports, port)
		return devstack.StartRedisOn(t.Context(), t.TempDir(), port)
	})
	mustStart(t, err)
	defer stop(t, r)
	if want := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[len(ports)-1])); len(ports) != 2 || r.Addr() != want {
		t.Errorf("tried the ports %v, runs at %s; want two ports and the second one in use", ports, r.Addr())
	}
}

func TestPostgresReportsATakenPort(t *testing.T) {
	_, err := devstack.StartPostgresOn(t.Context(), t.TempDir(), take(t, 0))
	mustReportTaken(t, err)
}

// TestRedisIsNotConfusedWithAnotherServer starts a server on the port of a running server. The running server answers
// before the new one has failed.
func TestRedisIsNotConfusedWithAnotherServer(t *testing.T) {
	_, port, err := net.SplitHostPort(startRedis(t, t.TempDir()).Addr())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	_, err = devstack.StartRedisOn(t.Context(), t.TempDir(), number)
	mustReportTaken(t, err)
}

// mustReportTaken fails the test if err does not say that the port is taken. It skips the test if the machine lacks the
// server.
func mustReportTaken(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("the server started on a port that was taken")
	}
	if !strings.Contains(err.Error(), "ddress already in use") {
		mustStart(t, err)
	}
}

// take listens on a port until the test ends, and returns the port. 0 stands for any free port.
func take(t *testing.T, port int) int {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}
