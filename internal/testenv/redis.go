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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/devstack"
)

// Redis returns the URL of a Redis database that is the test's own, and empty.
//
// On a machine without redis-server it is a stand-in within the test's process. The stand-in runs the same
// commands and scripts, but nobody can kill, freeze or configure it: a test that does so calls [RedisServer].
// A benchmark gets no stand-in, because its figures would say nothing about Redis.
func Redis(t testing.TB) string {
	t.Helper()
	address, err := shared.redis.get(redisURL)
	if _, benchmark := t.(*testing.B); errors.Is(err, devstack.ErrNoRedis) && !benchmark && !required("redis") {
		return standIn(t)
	}
	skipWithoutRedis(t, err)
	url, release, err := takeDatabase(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	return url
}

// standIn returns the URL of a Redis in this process, which ends with the test.
func standIn(t testing.TB) string {
	t.Helper()
	server, err := devstack.StartMiniredis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server.URL()
}

func skipWithoutRedis(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, devstack.ErrNoRedis) {
		Skip(t, "redis", err.Error())
	}
	if err != nil {
		t.Fatalf("start Redis: %v", err)
	}
}

func redisURL() (string, error) {
	if address := os.Getenv("SHOP_TEST_REDIS_URL"); address != "" {
		return address, nil
	}
	if address, err := redisContainer(); err == nil || !errors.Is(err, errNoContainers) {
		return address, err
	}
	dir, err := TempDir()
	if err != nil {
		return "", err
	}
	server, err := devstack.StartRedis(background(), dir)
	if err != nil {
		return "", err
	}
	shared.onStop(server.Stop)
	return server.URL(), nil
}

// takeDatabase takes a database of the server that no test uses, and empties it. Test binaries run at the same
// time and may share a server, so a key in database 0 marks each database that is in use. It is not in the
// database itself, because a test may flush that.
func takeDatabase(ctx context.Context, address string) (url string, release func() error, err error) {
	opts, err := redis.ParseURL(address)
	if err != nil {
		return "", nil, fmt.Errorf("SHOP_TEST_REDIS_URL is not a Redis URL")
	}
	marks := database(opts, 0)
	for {
		for db := 1; db < 16; db++ {
			mark := fmt.Sprintf("testenv:database-%d-in-use", db)
			// A killed test leaves its mark. The mark lives longer than any test takes.
			taken, err := marks.SetNX(ctx, mark, os.Getpid(), 30*time.Minute).Result()
			if err != nil {
				marks.Close()
				return "", nil, fmt.Errorf("take a Redis database: %w", err)
			}
			if !taken {
				continue
			}
			release = func() error {
				defer marks.Close()
				return errors.Join(flush(opts, db), marks.Del(background(), mark).Err())
			}
			if err := flush(opts, db); err != nil {
				return "", nil, errors.Join(err, release())
			}
			return fmt.Sprintf("redis://%s%s/%d", userinfo(opts), opts.Addr, db), release, nil
		}
		select {
		case <-ctx.Done():
			marks.Close()
			return "", nil, fmt.Errorf("all Redis databases are in use: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func flush(opts *redis.Options, db int) error {
	rdb := database(opts, db)
	defer rdb.Close()
	if err := rdb.FlushDB(background()).Err(); err != nil {
		return fmt.Errorf("empty Redis database %d: %w", db, err)
	}
	return nil
}

// database returns a client of one of a server's databases.
func database(opts *redis.Options, db int) *redis.Client {
	o := *opts
	o.DB = db
	return client(&o)
}

func userinfo(o *redis.Options) string {
	if o.Password == "" {
		return ""
	}
	return o.Username + ":" + o.Password + "@"
}

func client(o *redis.Options) *redis.Client {
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o)
}

// RedisServer returns a server of the test's own, that it may stop, kill, fill and restart.
func RedisServer(t testing.TB, args ...string) *devstack.Redis {
	t.Helper()
	return RedisServerEnv(t, nil, args...)
}

// RedisServerEnv is RedisServer with more in the server's environment.
func RedisServerEnv(t testing.TB, env []string, args ...string) *devstack.Redis {
	t.Helper()
	server, err := devstack.StartRedisEnv(t.Context(), env, t.TempDir(), args...)
	skipWithoutRedis(t, err)
	t.Cleanup(func() {
		if err := server.Kill(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// RedisCluster returns the addresses of the masters of a three-node cluster, empty ones. The tests of a
// binary share it, one after the other.
func RedisCluster(t testing.TB) []string {
	t.Helper()
	nodes, err := shared.cluster.get(startCluster)
	skipWithoutRedis(t, err)
	for _, addr := range nodes {
		rdb := client(&redis.Options{Addr: addr})
		err := rdb.FlushAll(t.Context()).Err()
		rdb.Close()
		if err != nil {
			t.Fatalf("empty cluster node %s: %v", addr, err)
		}
	}
	return nodes
}

func startCluster() ([]string, error) {
	ctx, cancel := context.WithTimeout(background(), time.Minute)
	defer cancel()
	dir, err := TempDir()
	if err != nil {
		return nil, err
	}
	var nodes []string
	for i := range 3 {
		addr, err := startNode(ctx, filepath.Join(dir, "node"+strconv.Itoa(i)))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, addr)
	}
	return nodes, joinCluster(ctx, nodes)
}

// startNode runs a cluster node. Its bus takes a port of its own choosing too; where that is taken, the
// node is started once more on other ports.
func startNode(ctx context.Context, dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	bus, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	busPort := bus.Addr().(*net.TCPAddr).Port
	bus.Close()
	server, err := devstack.StartRedis(ctx, dir, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(busPort),
		"--cluster-node-timeout", "5000", "--cluster-require-full-coverage", "yes")
	if err != nil {
		return "", err
	}
	shared.onStop(server.Kill)
	return server.Addr(), nil
}

// joinCluster gives each node a third of the slots, introduces them and waits until all agree.
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
		// Distinct epochs, or the nodes have to find out who is first.
		if err := rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return fmt.Errorf("set epoch: %w", err)
		}
	}
	busPort, err := clients[0].ConfigGet(ctx, "cluster-port").Result()
	if err != nil {
		return fmt.Errorf("read bus port: %w", err)
	}
	host, port, err := net.SplitHostPort(nodes[0])
	if err != nil {
		return err
	}
	for _, rdb := range clients[1:] {
		if err := rdb.Do(ctx, "CLUSTER", "MEET", host, port, busPort["cluster-port"]).Err(); err != nil {
			return fmt.Errorf("introduce nodes: %w", err)
		}
	}
	for _, rdb := range clients {
		if err := awaitCluster(ctx, rdb, len(nodes)); err != nil {
			return err
		}
	}
	return nil
}

func awaitCluster(ctx context.Context, rdb *redis.Client, nodes int) error {
	for {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err != nil {
			return fmt.Errorf("cluster info: %w", err)
		}
		if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_size:%d\r", nodes)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster did not form: %s", strings.Join(strings.Fields(info), " "))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// RedisTypes has, for each type of value in Redis, the command that writes one to a key.
var RedisTypes = map[string]func(key string) []any{
	"string": func(key string) []any { return []any{"SET", key, "foreign"} },
	"list":   func(key string) []any { return []any{"RPUSH", key, "foreign"} },
	"set":    func(key string) []any { return []any{"SADD", key, "foreign"} },
	"hash":   func(key string) []any { return []any{"HSET", key, "foreign", "value"} },
	"zset":   func(key string) []any { return []any{"ZADD", key, 1, "foreign"} },
	"stream": func(key string) []any { return []any{"XADD", key, "*", "foreign", "value"} },
}
