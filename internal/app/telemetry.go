package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/postgres"
)

// NewLogger returns a logger that writes JSON lines, or text for a terminal. All Redis clients of the process share one
// logger, and NewLogger makes them log to the new logger.
func NewLogger(w io.Writer, level string, text bool) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		panic(err) // Log.Check has accepted it
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

// redisLog logs the messages of the Redis client at the level DEBUG. In an outage the client logs a message for each
// connection. That is too much at a higher level, because our components log the outage once.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}

// measure registers the metrics of the Go runtime, the process and the build, and a gauge that looks for waiting
// commits at each scrape. The gauge is NaN if the database does not answer within a second.
func (b *Base) measure() {
	b.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	b.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "postgres_commits_wait",
		Help: "Whether commits wait for a synchronous standby of PostgreSQL: 1 or 0.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		switch waits, err := postgres.CommitsWait(ctx, b.Pool); {
		case err != nil:
			return math.NaN()
		case waits:
			return 1
		}
		return 0
	}))
}

// oncePerSecond gathers metrics at most once a second, and returns the same result in between, which callers must not
// change. The reason is that clients need no token for /metrics, and some metrics cost a query to Redis or PostgreSQL.
func oncePerSecond(from prometheus.Gatherer) prometheus.Gatherer {
	var mu sync.Mutex
	var at time.Time
	var families []*dto.MetricFamily
	var err error
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) >= time.Second {
			families, err = from.Gather()
			at = time.Now()
		}
		return families, err
	})
}
