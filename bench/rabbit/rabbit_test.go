package rabbit

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestWhilePortTaken(t *testing.T) {
	taken := fmt.Errorf("%w: eaddrinuse", errPortTaken)
	broken := errors.New("broken")
	tests := []struct {
		name    string
		results []error // one for each start
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
			err := whilePortTaken(func() error {
				starts++
				return tt.results[starts-1]
			})
			if starts != tt.starts || !errors.Is(err, tt.want) {
				t.Errorf("%d starts, error %v; want %d, %v", starts, err, tt.starts, tt.want)
			}
		})
	}
}

// TestStartReportsATakenPort takes each of the server's ports before the server starts. The error must say so, because
// only then are other ports tried.
func TestStartReportsATakenPort(t *testing.T) {
	script, err := findScript()
	if errors.Is(err, ErrMissing) {
		testenv.Skip(t, "rabbitmq", err.Error())
	}
	for i, name := range []string{"AMQP", "Erlang distribution", "epmd"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a server whose epmd is missing waits for 20 s before it gives up
			ports, err := freePorts()
			if err != nil {
				t.Fatal(err)
			}
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			ports[i] = ln.Addr().(*net.TCPAddr).Port
			s, err := startOn(t.Context(), script, t.TempDir(), ports)
			if err == nil {
				err = s.Stop()
				t.Fatalf("the server started although a port was taken (stopped: %v)", err)
			}
			if !errors.Is(err, errPortTaken) {
				t.Errorf("error %v, want that a port is taken", err)
			}
		})
	}
}
