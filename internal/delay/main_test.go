package delay

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newRedis returns a client of an empty Redis.
func newRedis(t testing.TB) redis.UniversalClient {
	t.Helper()
	return connect(t, testenv.Redis(t))
}

// connect returns a client whose timeouts are longer than those of [Connect]: a machine under load may stand still for
// seconds.
func connect(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	server, err := parseURL(url)
	testenv.Must(t, err)
	options := withLimits(server)
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = time.Minute, time.Minute, time.Minute
	rdb := open(options)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// onEachRedis runs a test on a single Redis and on a three-node cluster.
func onEachRedis(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	t.Run("single", func(t *testing.T) { test(t, newRedis(t)) })
	t.Run("cluster", func(t *testing.T) {
		nodes := testenv.RedisCluster(t)
		test(t, connect(t, fmt.Sprintf("redis://%s?addr=%s&addr=%s", nodes[0], nodes[1], nodes[2])))
	})
}

func newQueue(t testing.TB, rdb redis.UniversalClient, shards int) *Queue {
	t.Helper()
	q, err := NewQueue(rdb, "test.kind", shards)
	testenv.Must(t, err)
	return q
}

// sleep returns when d has passed or when ctx has ended.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// do sends a command to Redis, and fails the test after an error.
func do(t testing.TB, q *Queue, args ...any) {
	t.Helper()
	if err := q.rdb.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}
