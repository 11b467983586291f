package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// newTestProcess returns a process with parts, on a new database, and its log.
func newTestProcess(t *testing.T, parts ...Part) (*Process, *testenv.LogBuffer) {
	t.Helper()
	log := &testenv.LogBuffer{}
	cfg := Config{
		Name: "test", DatabaseURL: testenv.Postgres(t), DatabaseConns: 2, RedisURL: "redis://127.0.0.1:1/0",
		QueueShards: 1, Roles: []string{API},
	}
	b, err := Connect(t.Context(), cfg, slog.New(slog.NewTextHandler(log, nil)))
	testenv.Must(t, err)
	p, err := New(b, nil, parts...)
	testenv.Must(t, err)
	t.Cleanup(p.Close)
	return p, log
}

// TestUnknownMethodsShareASeries checks that a client cannot make a new series with each new method.
func TestUnknownMethodsShareASeries(t *testing.T) {
	p, _ := newTestProcess(t)
	handler := p.Handler()
	for i := range 10 {
		path := []string{"/healthz", "/healthz/"}[i%2] // a route of other methods, and none
		recorder := parttest.Send(t, handler, "BREW"+strconv.Itoa(i), path, "")
		if recorder.Code < 400 || recorder.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("got status %d with content type %s, want an error as application/problem+json",
				recorder.Code, recorder.Header().Get("Content-Type"))
		}
	}
	if n, err := testutil.GatherAndCount(p.Registry, "test_http_request_seconds"); err != nil || n != 2 {
		t.Errorf("got %d series and the error %v, want one of 404 and one of 405, and no error", n, err)
	}
}

// TestUnreadyIsLogged checks that the log says why a process is not ready, which the answer does not.
func TestUnreadyIsLogged(t *testing.T) {
	p, log := newTestProcess(t, Part{Relations: []string{"missing_index"}})
	code := parttest.Send(t, p.Handler(), "GET", "/readyz", "").Code
	if code != http.StatusServiceUnavailable || !strings.Contains(log.String(), "missing_index") {
		t.Errorf("/readyz answers %d, want 503 and the cause in the log:\n%s", code, log.String())
	}
}

// TestReadyUntilStopped stops a process. While it drains, /readyz tells load balancers that it stops, and the process
// goes on.
func TestReadyUntilStopped(t *testing.T) {
	p, _ := newTestProcess(t)
	p.Drain = time.Hour
	handler := p.Handler()
	status := func() int { return parttest.Send(t, handler, "GET", "/readyz", "").Code }
	ctx, stop := context.WithCancel(t.Context())
	drained, end := p.drained(ctx)
	defer end()
	if got := status(); got != http.StatusOK {
		t.Errorf("before the process stops, /readyz answers %d, want 200", got)
	}
	stop()
	testenv.Eventually(t, "/readyz answers 503", func() bool { return status() == http.StatusServiceUnavailable })
	if drained.Err() != nil {
		t.Error("the process ends before it is drained")
	}
}

// TestLastEndsInClose runs a component that is last, which is still there when the others stop.
func TestLastEndsInClose(t *testing.T) {
	events := make(chan string, 3)
	component := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			<-ctx.Done()
			events <- name
			return nil
		}
	}
	p, _ := newTestProcess(t, Part{Components: []Component{
		{Last: true, Run: component("last")},
		{Role: Worker, Last: true, Run: component("of another role")},
		{Run: component("first")},
	}})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, ln) }()
	stop()
	testenv.Must(t, <-ended)
	if len(events) != 1 || <-events != "first" {
		t.Error("when Run returns, want that only the component that is not last has ended")
	}
	p.Close()
	if len(events) != 1 || <-events != "last" {
		t.Error("after Close, want that the component that is last has ended, too")
	}
}

// TestUnguardedOps checks that the operators' API does not exist unless it has a guard.
func TestUnguardedOps(t *testing.T) {
	for _, test := range []struct {
		guard gin.HandlerFunc
		want  int
	}{{nil, http.StatusNotFound}, {func(*gin.Context) {}, http.StatusOK}} {
		p, _ := newTestProcess(t, Part{Guard: test.guard, Routes: func(_, ops gin.IRouter) {
			ops.GET("/secret", func(c *gin.Context) { c.Status(http.StatusOK) })
		}})
		if got := parttest.Send(t, p.Handler(), "GET", "/ops/api/secret", "").Code; got != test.want {
			t.Errorf("with a guard: %v, a request is answered with %d, want %d", test.guard != nil, got, test.want)
		}
	}
}

// TestMetricsAreGatheredOncePerSecond checks that oncePerSecond gathers at most once a second, however many requests
// there are.
func TestMetricsAreGatheredOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gathered := 0
		g := oncePerSecond(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathered++
			return nil, nil
		}))
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 1}, {0, 1}, {999 * time.Millisecond, 1}, {time.Millisecond, 2}, {0, 2}} {
			<-time.After(step.wait)
			if _, err := g.Gather(); err != nil || gathered != step.want {
				t.Errorf("%v later: gathered %d times with the error %v, want %d times and no error", step.wait,
					gathered, err, step.want)
			}
		}
	})
}
