package delay

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

// TestSubscriptionFollowsMaster suspends a master, and the Sentinels promote its replica. After a silence a worker
// subscribes to the new master, whose replication id is another one. If the Sentinels do not know a master, no caller
// may take the error for a missing key.
func TestSubscriptionFollowsMaster(t *testing.T) {
	t.Parallel()
	pair := testenv.RedisSentinels(t)
	rdb, err := Connect(pair.URL, nil)
	testenv.Must(t, err)
	defer rdb.Close()
	q := newQueue(t, rdb, 1)
	defer start(t, newWorker(q, nil, WorkerConfig{}, withMaxIdle(time.Second)))()
	awaitSubscriber := func(url string) {
		t.Helper()
		server := connect(t, url)
		testenv.Eventually(t, "the worker listens", func() bool {
			n, err := server.PubSubNumSub(t.Context(), q.channel()).Result()
			return err == nil && n[q.channel()] > 0
		})
	}
	awaitSubscriber(pair.Master.URL())
	before := q.ReplicationIDs(t.Context())

	testenv.Must(t, syscall.Kill(pair.Master.Pid(), syscall.SIGSTOP))
	awaitSubscriber(pair.Replica.URL())
	testenv.Eventually(t, "the replication id is another one", func() bool {
		after := q.ReplicationIDs(t.Context())
		return before != "" && after != "" && after != before
	})

	other, err := Connect(strings.Replace(pair.URL, "master_name=shop", "master_name=other", 1), nil)
	testenv.Must(t, err)
	defer other.Close()
	err = other.Get(t.Context(), "key").Err()
	if err == nil || errors.Is(err, redis.Nil) || !strings.Contains(err.Error(), "check master_name") {
		t.Errorf("the error is %v, want one that tells to check master_name, and not a missing key", err)
	}
}

// TestRereadURL changes the password of a user. The next connection has the new one.
func TestRereadURL(t *testing.T) {
	server := testenv.RedisServer(t)
	operator := connect(t, server.URL())
	url := strings.Replace(server.URL(), "redis://", "redis://shop:first@", 1)
	setPassword := func(password string) {
		testenv.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "shop", "on", "resetpass", ">"+password, "~*", "&*",
			"+@all").Err())
	}
	setPassword("first")
	current := url
	rdb, err := Connect(url, func() (string, error) { return current, nil })
	testenv.Must(t, err)
	defer rdb.Close()
	testenv.Must(t, rdb.Ping(t.Context()).Err())
	setPassword("second")
	current = strings.Replace(url, "first", "second", 1)
	testenv.Must(t, operator.Do(t.Context(), "CLIENT", "KILL", "USER", "shop").Err())
	testenv.Eventually(t, "a connection with the new password", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

// TestChannelsOfDatabases checks that deployments that share a server do not share channels.
func TestChannelsOfDatabases(t *testing.T) {
	channels := map[string]bool{}
	for _, url := range []string{"redis://one/0", "redis://one/1", "redis://one/3?master_name=shop"} {
		channels[newQueue(t, connect(t, url), 1).channel()] = true
	}
	if len(channels) != 3 {
		t.Errorf("the channels are %v, want one for each database", channels)
	}
}

// TestParseURL checks whose password is whose.
func TestParseURL(t *testing.T) {
	const sentinels = "rediss://watcher:s@one:1/3?master_name=shop&addr=two:2&username=shop&password=m"
	for url, want := range map[string]string{
		sentinels:                      "[one:1 two:2] watcher s shop false 3 shop m true",
		"redis://one?master_name=shop": "[one:6379]   shop false 0   false",
		"redis://shop:p@one:1?addr=two:2&addr=c:3": "[one:1 two:2 c:3]    true 0 shop p false",
		"rediss://shop:p@one/3":                    "[one:6379]    false 3 shop p true",
		"redis://[::1]:7":                          "[[::1]:7]    false 0   false",
	} {
		o, err := parseURL(url)
		testenv.Must(t, err)
		got := fmt.Sprintf("%v %s %s %s %v %d %s %s %v", o.Addrs, o.SentinelUsername, o.SentinelPassword, o.MasterName,
			o.IsClusterMode, o.DB, o.Username, o.Password, o.TLSConfig != nil)
		if got != want {
			t.Errorf("%s: got %q, want %q", url, got, want)
		}
	}
}

// TestReplicationIDsOfACluster reads the ids of three masters.
func TestReplicationIDsOfACluster(t *testing.T) {
	nodes := testenv.RedisCluster(t)
	q := newQueue(t, connect(t, fmt.Sprintf("redis://%s?addr=%s", nodes[0], nodes[1])), 1)
	if ids := strings.Fields(q.ReplicationIDs(t.Context())); len(ids) != 3 {
		t.Errorf("the replication ids are %q, want three", ids)
	}
}
