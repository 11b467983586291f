package devstack

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestOnFreePortTriesAgainOnlyIfThePortIsTaken(t *testing.T) {
	taken := fmt.Errorf("bind: %w", syscall.EADDRINUSE)
	broken := errors.New("broken")
	tests := []struct {
		name    string
		results []error // of one start after the other
		starts  int
		want    error
	}{
		{"first", []error{nil}, 1, nil},
		{"taken once", []error{taken, nil}, 2, nil},
		{"taken, then broken", []error{taken, broken}, 2, broken},
		{"broken", []error{broken}, 1, broken},
		{"always taken", []error{taken, taken, taken, nil}, 3, taken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			starts := 0
			server, err := onFreePort(func(int) (string, error) {
				starts++
				return strconv.Itoa(starts), tt.results[starts-1]
			})
			if starts != tt.starts || !errors.Is(err, tt.want) {
				t.Errorf("%d starts, error %v; want %d, %v", starts, err, tt.starts, tt.want)
			}
			if err == nil && server != strconv.Itoa(tt.starts) {
				t.Errorf("server of start %s, want that of start %d", server, tt.starts)
			}
		})
	}
}

// TestRedisOnATakenPort has somebody take the port between its choice and the server's start: what the
// server says of it is understood.
func TestRedisOnATakenPort(t *testing.T) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip(ErrNoRedis)
	}
	var ports []int
	r, err := onFreePort(func(port int) (*Redis, error) {
		if len(ports) == 0 {
			take(t, port)
		}
		ports = append(ports, port)
		r := &Redis{binary: binary, dir: t.TempDir(), port: port}
		return r, r.Restart(t.Context())
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if len(ports) != 2 || r.port != ports[1] {
		t.Errorf("ports tried %v, runs on %d; want the second", ports, r.port)
	}
}

func TestPostgresOnATakenPort(t *testing.T) {
	bin, err := postgresBin(t.Context())
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	run, err := initCluster(t.Context(), bin, dir)
	if err != nil {
		t.Fatal(err)
	}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	take(t, port)
	server, err := start(run(childOf(syscall.SIGQUIT), "postgres", "-D", filepath.Join(dir, "data"), "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="), filepath.Join(dir, "postgres.log"))
	if err != nil {
		t.Fatal(err)
	}
	<-server.ended
	if said := server.logTail(); !strings.Contains(said, "ddress already in use") {
		t.Errorf("the server said %q, which is not taken for a taken port", said)
	}
}

// TestRedisIsNotTakenForAnother: the one that has the port answers, before the other knows that it must end.
func TestRedisIsNotTakenForAnother(t *testing.T) {
	first, err := StartRedis(t.Context(), t.TempDir())
	if errors.Is(err, ErrNoRedis) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := first.Stop(); err != nil {
			t.Error(err)
		}
	}()
	second := &Redis{binary: first.binary, dir: t.TempDir(), port: first.port}
	if err := second.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "ddress already in use") {
		t.Errorf("started on a taken port: error %v", err)
	}
}

// take holds a port until the test ends.
func take(t *testing.T, port int) {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
}
