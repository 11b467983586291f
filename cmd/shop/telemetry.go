package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
)

// newLogger writes JSON lines, for machines, or text, for a person at a terminal.
func newLogger(w io.Writer, level string, text bool) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		panic(err) // the command line lets only levels through
	}
	opts := &slog.HandlerOptions{Level: l}
	var h slog.Handler = slog.NewJSONHandler(w, opts)
	if text {
		h = slog.NewTextHandler(w, opts)
	}
	log := slog.New(h)
	redis.SetLogger(redisLog{log})
	return log
}

// redisLog takes what the Redis client says of its connections. The rooms report an outage once; the
// client's line for each connection is for debugging.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return reg
}

// sharedGatherer gathers at most once a second. Clients need no token for the metrics, and some metrics cost a query to
// Redis or PostgreSQL. Callers only read what it returns.
type sharedGatherer struct {
	from prometheus.Gatherer

	mu       sync.Mutex
	at       time.Time
	families []*dto.MetricFamily
	err      error
}

func (g *sharedGatherer) Gather() ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.at) >= time.Second {
		g.families, g.err = g.from.Gather()
		g.at = time.Now()
	}
	return g.families, g.err
}

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// measure observes each request by its route's pattern, not its path: paths have ids.
func measure(reg prometheus.Registerer) gin.HandlerFunc {
	seconds := promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
		Name:    "shop_http_request_seconds",
		Help:    "Time to answer a request.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	}, []string{"method", "route", "status"})
	return func(c *gin.Context) {
		began := time.Now()
		c.Next()
		if isStream(c) {
			return
		}
		route := c.FullPath()
		if route == "" {
			route = "none"
		}
		method := c.Request.Method
		if !slices.Contains(methods, method) {
			method = "other" // callers make up what they like
		}
		seconds.WithLabelValues(method, route, strconv.Itoa(c.Writer.Status())).
			Observe(time.Since(began).Seconds())
	}
}

// stamped is set by the build: -ldflags "-X main.stamped=v1.2.3".
var stamped string

func version() string {
	if stamped != "" {
		return stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
