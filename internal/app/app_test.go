package app

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
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
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// newTestProcess returns a process without parts, on a new database.
func newTestProcess(t *testing.T) *Process {
	t.Helper()
	p, err := Open(t.Context(), Config{
		Name: "test", DatabaseURL: testenv.Postgres(t), DatabaseConns: 2, RedisURL: "redis://127.0.0.1:1/0", QueueShards: 1, Roles: []string{API},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestUnknownMethodsShareOneSeries checks that a client cannot make a new series with each new method.
func TestUnknownMethodsShareOneSeries(t *testing.T) {
	p := newTestProcess(t)
	handler, err := p.Handler()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "BREW"+strconv.Itoa(i), "/healthz/", nil))
		if recorder.Code < 400 || recorder.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("got status %d with content type %s, want an error as application/problem+json",
				recorder.Code, recorder.Header().Get("Content-Type"))
		}
	}
	if n, err := testutil.GatherAndCount(p.Registry, "test_http_request_seconds"); err != nil || n != 1 {
		t.Errorf("got %d series and the error %v, want 1 series and no error", n, err)
	}
}

// TestUnguardedOps checks that the operators' API does not exist unless a part guards it.
func TestUnguardedOps(t *testing.T) {
	p := newTestProcess(t)
	p.Routes(func(_, ops gin.IRouter) { ops.GET("/secret", func(c *gin.Context) { c.Status(http.StatusOK) }) })
	status := func() int {
		recorder := httptest.NewRecorder()
		p.router.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", "/ops/api/secret", nil))
		return recorder.Code
	}
	if got := status(); got != http.StatusNotFound {
		t.Errorf("without a guard, a request is answered with %d, want 404", got)
	}
	p.GuardOps(func(*gin.Context) {})
	if got := status(); got != http.StatusOK {
		t.Errorf("with a guard that lets all pass, a request is answered with %d, want 200", got)
	}
}

// TestMergeContract merges pieces, and rejects two that define the same.
func TestMergeContract(t *testing.T) {
	base := "openapi: 3.0.3\ntags: [{name: a}]\npaths:\n  /a: {get: {}}\ncomponents:\n  schemas:\n    A: {type: string}\n"
	merged, err := MergeContract([]byte(base), []byte("tags: [{name: b}]\npaths:\n  /b: {get: {}}\ncomponents:\n  schemas:\n    B: {type: string}\n"))
	want := "openapi: 3.0.3\ntags: [{name: a}, {name: b}]\npaths:\n  /a: {get: {}}\n  /b: {get: {}}\ncomponents:\n  schemas:\n    A: {type: string}\n    B: {type: string}\n"
	if err != nil || string(merged) != want {
		t.Errorf("merged:\n%s%v\nwant:\n%s", merged, err, want)
	}
	merged, err = MergeContract([]byte(base), []byte("components: {schemas: {Stats: {required: [a], properties: {a: {}}}}}"),
		[]byte("security: []\ninfo: {}\nx-more: 1"), []byte("components: {schemas: {Stats: {required: [b], properties: {b: {}}}}}"))
	want = "openapi: 3.0.3\ninfo: {}\ntags: [{name: a}]\nsecurity: []\npaths:\n  /a: {get: {}}\ncomponents:\n  schemas:\n    A: {type: string}\n" +
		"    Stats: {required: [a, b], properties: {a: {}, b: {}}}\nx-more: 1\n"
	if err != nil || string(merged) != want {
		t.Errorf("merged:\n%s%v\nwant the sections sorted, and the figures of both parts:\n%s", merged, err, want)
	}
	for piece, want := range map[string]string{
		"openapi: 3.1.0":                 "/openapi",
		"paths: {/a: {post: {}}}":        "/paths//a",
		"components: {schemas: {A: {}}}": "/components/schemas/A",
		"components: {schemas: [A]}":     "/components/schemas",
		"- a list":                       "not a map",
		"paths: {":                       "piece of the contract",
	} {
		if _, err := MergeContract([]byte(base), []byte(piece)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the piece %q the error is %v, want %q in it", piece, err, want)
		}
	}
}

// TestMetricsAreGatheredOncePerSecond checks that sharedGatherer gathers at most once a second, however many requests
// there are.
func TestMetricsAreGatheredOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gathered := 0
		g := &sharedGatherer{from: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathered++
			return nil, nil
		})}
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 1}, {0, 1}, {999 * time.Millisecond, 1}, {time.Millisecond, 2}, {0, 2}} {
			<-time.After(step.wait)
			if _, err := g.Gather(); err != nil || gathered != step.want {
				t.Errorf("%v later: gathered %d times with the error %v, want %d times and no error", step.wait, gathered, err, step.want)
			}
		}
	})
}
