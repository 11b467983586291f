package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/devstack"
)

// Redis returns the URL of an empty Redis database that no other test uses.
//
// On a machine without redis-server the database is in a stand-in within the test's process, which runs the same
// commands and scripts. A test that kills, freezes or configures its server calls [RedisServer] instead. A benchmark is
// skipped, because measurements of the stand-in would say nothing about Redis.
func Redis(t testing.TB) string {
	t.Helper()
	server, err := sharedRedis()
	if _, benchmark := t.(*testing.B); errors.Is(err, devstack.ErrNoRedis) && !benchmark && !required("redis") {
		return standIn(t)
	}
	skipWithoutRedis(t, err)
	db := <-server.free
	t.Cleanup(func() { server.free <- db })
	rdb := client(&redis.Options{Addr: server.addr, DB: db})
	defer rdb.Close()
	Must(t, rdb.FlushDB(t.Context()).Err())
	return fmt.Sprintf("redis://%s/%d", server.addr, db)
}

// standIn returns the URL of a stand-in for Redis in this process. It stops when the test ends.
func standIn(t testing.TB) string {
	t.Helper()
	server, err := devstack.StartMiniredis()
	Must(t, err)
	t.Cleanup(func() { Must(t, server.Stop()) })
	return server.URL()
}

// skipWithoutRedis skips the test if err says that the machine lacks Redis, and fails it for any other error.
func skipWithoutRedis(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, devstack.ErrNoRedis) {
		Skip(t, "redis", err.Error())
	}
	if err != nil {
		t.Fatalf("start Redis: %v", err)
	}
}

// redisServer is a server whose databases the tests take.
type redisServer struct {
	addr string
	free chan int // the databases that no test uses
}

// sharedRedis is the server for [Redis].
var sharedRedis = sync.OnceValues(func() (*redisServer, error) {
	addr, err := redisAddr()
	s := &redisServer{addr, make(chan int, 15)}
	for db := range cap(s.free) {
		s.free <- db
	}
	return s, err
})

func redisAddr() (string, error) {
	if addr, err := redisContainer(); err == nil || !errors.Is(err, errNoContainers) {
		return addr, err
	}
	dir, err := TempDir()
	if err != nil {
		return "", err
	}
	server, err := devstack.StartRedis(context.Background(), dir)
	if err != nil {
		return "", err
	}
	AfterAll(server.Stop)
	return server.Addr(), nil
}

// RedisClient returns a client of the Redis at a URL. The caller closes it.
func RedisClient(t testing.TB, redisURL string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(redisURL)
	Must(t, err)
	return client(o)
}

func client(o *redis.Options) *redis.Client {
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o)
}

// RedisServer starts a server for one test, which may stop, kill, fill and restart the server. The arguments are added
// to the server's command line. The server is killed when the test ends.
func RedisServer(t testing.TB, args ...string) *devstack.Redis {
	t.Helper()
	return RedisServerEnv(t, nil, args...)
}

// RedisServerEnv is [RedisServer] with additional environment variables, each NAME=VALUE, for the server.
func RedisServerEnv(t testing.TB, env []string, args ...string) *devstack.Redis {
	t.Helper()
	server, err := devstack.StartRedisEnv(t.Context(), env, t.TempDir(), args...)
	skipWithoutRedis(t, err)
	t.Cleanup(func() { Must(t, server.Kill()) })
	return server
}

// RedisCluster flushes a cluster and returns the host:port of each of its three masters. The tests of a binary share
// the cluster, so tests that use it must not run in parallel.
func RedisCluster(t testing.TB) []string {
	t.Helper()
	nodes, err := sharedCluster()
	skipWithoutRedis(t, err)
	for _, addr := range nodes {
		rdb := client(&redis.Options{Addr: addr})
		err := rdb.FlushAll(t.Context()).Err()
		rdb.Close()
		if err != nil {
			t.Fatalf("flush cluster node %s: %v", addr, err)
		}
	}
	return nodes
}

// sharedCluster is the cluster for [RedisCluster].
var sharedCluster = sync.OnceValues(func() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := TempDir()
	if err != nil {
		return nil, err
	}
	var nodes []string
	for i := range 3 {
		node, err := startNode(ctx, filepath.Join(dir, "node"+strconv.Itoa(i)), 5*time.Second)
		if err != nil {
			return nil, err
		}
		AfterAll(node.Kill)
		nodes = append(nodes, node.Addr())
	}
	return nodes, joinCluster(ctx, nodes)
})

// startNode runs a cluster node. It chooses a free port for the cluster bus too, because the default, the port for
// clients plus 10000, may be taken or out of range. After the timeout without an answer, other nodes take the node for
// dead.
func startNode(ctx context.Context, dir string, timeout time.Duration) (*devstack.Redis, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	busPort, err := devstack.FreePort()
	if err != nil {
		return nil, err
	}
	return devstack.StartRedis(ctx, dir, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(busPort),
		"--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
		"--cluster-require-full-coverage", "yes")
}

// joinCluster assigns the hash slots evenly, has the nodes meet, and waits until all nodes report a complete cluster.
func joinCluster(ctx context.Context, nodes []string) error {
	clients := make([]*redis.Client, len(nodes))
	for i, addr := range nodes {
		clients[i] = client(&redis.Options{Addr: addr})
		defer clients[i].Close()
	}
	const slots = 16384
	for i, rdb := range clients {
		first, last := i*slots/len(nodes), (i+1)*slots/len(nodes)-1
		if err := rdb.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return fmt.Errorf("assign slots: %w", err)
		}
		// Nodes with equal epochs would first resolve the conflict, which takes longer.
		if err := rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return fmt.Errorf("set the node's configuration epoch: %w", err)
		}
	}
	for _, rdb := range clients[1:] {
		if err := meet(ctx, rdb, clients[0]); err != nil {
			return err
		}
	}
	for _, rdb := range clients {
		if err := awaitCluster(ctx, rdb, len(nodes)); err != nil {
			return err
		}
	}
	return nil
}

// meet makes a node join the cluster of another one.
func meet(ctx context.Context, node, other *redis.Client) error {
	busPort, err := other.ConfigGet(ctx, "cluster-port").Result()
	if err != nil {
		return fmt.Errorf("read the port of the cluster bus: %w", err)
	}
	host, port, err := net.SplitHostPort(other.Options().Addr)
	if err != nil {
		return err
	}
	if err := node.Do(ctx, "CLUSTER", "MEET", host, port, busPort["cluster-port"]).Err(); err != nil {
		return fmt.Errorf("join the nodes: %w", err)
	}
	return nil
}

// awaitCluster waits until a node reports that the cluster is complete.
func awaitCluster(ctx context.Context, rdb *redis.Client, nodes int) error {
	for {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err != nil {
			return fmt.Errorf("read the cluster's state: %w", err)
		}
		size := fmt.Sprintf("cluster_size:%d\r", nodes)
		if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, size) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the Redis cluster is incomplete: expected cluster_state:ok and cluster_size:%d, "+
				"found %s", nodes, strings.Join(strings.Fields(info), " "))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// RedisTypes holds, for each type of value in Redis, the command that writes such a value to a key.
var RedisTypes = map[string]func(key string) []any{
	"string": func(key string) []any { return []any{"SET", key, "foreign"} },
	"list":   func(key string) []any { return []any{"RPUSH", key, "foreign"} },
	"set":    func(key string) []any { return []any{"SADD", key, "foreign"} },
	"hash":   func(key string) []any { return []any{"HSET", key, "foreign", "value"} },
	"zset":   func(key string) []any { return []any{"ZADD", key, 1, "foreign"} },
	"stream": func(key string) []any { return []any{"XADD", key, "*", "foreign", "value"} },
}
