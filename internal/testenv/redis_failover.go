package testenv

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/devstack"
)

// RedisPair is a Redis master with a replica that takes its place, for one test. All servers stop when the test ends.
type RedisPair struct {
	URL             string // names the Sentinels, or the nodes of the cluster
	Master, Replica *devstack.Redis
	Sentinels       []*devstack.Redis // three, or none in a cluster
	Others          []*devstack.Redis // the two other masters of the cluster
}

// downAfter is the time without an answer after which a replica takes the place of its master. Tests wait for it, and a
// master on a busy machine must answer within it.
const downAfter = 3 * time.Second

const sentinelMaster = "shop" // the name that the Sentinels give to the master

// RedisSentinels starts a master, its replica, and three Sentinels.
func RedisSentinels(t testing.TB) *RedisPair {
	t.Helper()
	p := &RedisPair{Master: RedisServer(t, "--repl-diskless-sync-delay", "0")}
	host, port, _ := strings.Cut(p.Master.Addr(), ":")
	p.Replica = RedisServer(t, "--replicaof", host+" "+port)
	awaitReply(t, p.Replica, "master_link_status:up", "INFO", "replication")
	for range 3 {
		sentinel, err := devstack.StartSentinel(t.Context(), t.TempDir())
		Must(t, err)
		t.Cleanup(func() { Must(t, sentinel.Kill()) })
		rdb := clientOf(t, sentinel)
		for _, command := range [][]any{
			// The test shall not wait for rare messages of the Sentinels, nor for Sentinels that a busy machine did not
			// run.
			{"DEBUG", "publish-period", 100, "info-period", 100, "tilt-trigger", 60_000},
			{"MONITOR", sentinelMaster, host, port, 2},
			{"SET", sentinelMaster, "down-after-milliseconds", downAfter.Milliseconds(), "failover-timeout", 5000},
		} {
			Must(t, rdb.Do(t.Context(), append([]any{"SENTINEL"}, command...)...).Err())
		}
		p.Sentinels = append(p.Sentinels, sentinel)
	}
	for _, sentinel := range p.Sentinels {
		awaitReply(t, sentinel, "num-slaves:1", "SENTINEL", "MASTER", sentinelMaster)
		awaitReply(t, sentinel, "num-other-sentinels:2", "SENTINEL", "MASTER", sentinelMaster)
	}
	p.URL = fmt.Sprintf("redis://%s?master_name=%s&addr=%s&addr=%s",
		p.Sentinels[0].Addr(), sentinelMaster, p.Sentinels[1].Addr(), p.Sentinels[2].Addr())
	return p
}

// RedisClusterPair starts a cluster of three masters. The master of the given key has a replica.
func RedisClusterPair(t testing.TB, key string) *RedisPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := func() *devstack.Redis {
		node, err := startNode(ctx, filepath.Join(t.TempDir(), "node"), downAfter)
		skipWithoutRedis(t, err)
		t.Cleanup(func() { Must(t, node.Kill()) })
		return node
	}
	p := &RedisPair{}
	var addrs []string
	for range 3 {
		p.Others = append(p.Others, start())
		addrs = append(addrs, p.Others[len(p.Others)-1].Addr())
	}
	Must(t, joinCluster(ctx, addrs))
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = cluster.Close() }()
	master, err := cluster.MasterForKey(ctx, key)
	Must(t, err)
	isMaster := func(node *devstack.Redis) bool { return node.Addr() == master.Options().Addr }
	p.Master = p.Others[slices.IndexFunc(p.Others, isMaster)]
	p.Others = slices.DeleteFunc(p.Others, isMaster)
	id := clusterID(t, p.Master)

	p.Replica = start()
	Must(t, meet(ctx, clientOf(t, p.Replica), clientOf(t, p.Master)))
	awaitReply(t, p.Replica, id, "CLUSTER", "NODES")
	awaitReply(t, p.Replica, "OK", "CLUSTER", "REPLICATE", id)
	awaitReply(t, p.Replica, "master_link_status:up", "INFO", "replication")
	for _, other := range p.Others {
		awaitReply(t, other, clusterID(t, p.Replica)+" ", "CLUSTER", "REPLICAS", id)
	}
	p.URL = fmt.Sprintf("redis://%s?addr=%s&addr=%s", addrs[0], addrs[1], addrs[2])
	return p
}

// clusterID returns the id of a node of a cluster.
func clusterID(t testing.TB, node *devstack.Redis) string {
	t.Helper()
	id, err := clientOf(t, node).Do(t.Context(), "CLUSTER", "MYID").Text()
	Must(t, err)
	return id
}

// awaitReply repeats a command until the server's reply contains a text.
func awaitReply(t testing.TB, server *devstack.Redis, want string, command ...any) {
	t.Helper()
	rdb := clientOf(t, server)
	EventuallyWithin(t, time.Minute, fmt.Sprintf("%q in the reply of %s to %v", want, server.Addr(), command),
		func() bool {
			reply, err := rdb.Do(t.Context(), command...).Result()
			return err == nil && strings.Contains(fmt.Sprint(reply), want)
		})
}

// clientOf returns a client of a server. It is closed when the test ends.
func clientOf(t testing.TB, server *devstack.Redis) *redis.Client {
	t.Helper()
	rdb := client(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}
