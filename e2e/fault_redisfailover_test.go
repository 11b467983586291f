package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// redisFailovers returns faults that end or suspend a master of Redis, whose replica takes its place. The service must reject no request,
// and time items out as it does while Redis is down. Each process that listened to wake-ups or notifications must listen to the
// new master.
func (s *service) redisFailovers() []fault {
	killed := func(d *deployment) (resume func()) {
		testenv.Must(d.t, d.redis.Kill())
		return func() { testenv.Must(d.t, d.redis.Restart(d.t.Context())) }
	}
	hung := func(d *deployment) (resume func()) {
		return suspend(d.t, d.redis.Pid(), d.pair.Sentinels[0].Pid()) // a machine that has both
	}
	sentinels := needs{redisPair: testenv.RedisSentinels}
	cluster := needs{
		redisPair: func(t testing.TB) *testenv.RedisPair { return testenv.RedisClusterPair(t, s.queue().due) },
		env:       []string{envPrefix + "QUEUE_SHARDS=3"},
	}
	within := func(again time.Duration) bound {
		return bound{late: 7 * time.Second, answer: 2 * time.Second, again: again}
	}
	return []fault{
		{name: "killed", needs: sentinels, bound: within(5 * time.Second), inject: failOverRedis(killed)},
		{name: "hung", needs: sentinels, bound: within(10 * time.Second), inject: failOverRedis(hung)},
		{name: "killed in a cluster", needs: cluster, bound: within(5 * time.Second), inject: failOverRedis(killed)},
	}
}

// failOverRedis returns a fault that breaks a master, until some time after the promotion of its replica.
func failOverRedis(breaks func(d *deployment) (resume func())) func(d *deployment) {
	return func(d *deployment) {
		before := d.listeners(d.pair.Master)
		resume := breaks(d)
		replica := redisClient(d.t, d.pair.Replica.URL())
		defer replica.Close()
		eventually(d.t, "the replica is a master", func() bool {
			info, err := replica.InfoMap(d.t.Context(), "replication").Result()
			return err == nil && info["Replication"]["role"] == "master"
		})
		promoted := time.Now()
		eventually(d.t, "the new master has the listeners of the former one", func() bool {
			now := d.listeners(d.pair.Replica)
			return !slices.ContainsFunc(slices.Collect(maps.Keys(before)), func(channel string) bool { return now[channel] < before[channel] })
		})
		d.again = time.Since(promoted)
		d.sleep(d.timeout) // until items are due whose tasks were lost
		resume()
		d.sleep(2 * time.Second)
	}
}

// listeners counts the subscribers of each channel, at a server of the pair and at the other masters of a cluster.
func (d *deployment) listeners(server *devstack.Redis) map[string]int64 {
	d.t.Helper()
	total := map[string]int64{}
	for _, s := range append(slices.Clone(d.pair.Others), server) {
		rdb := redisClient(d.t, s.URL())
		channels, err := rdb.PubSubChannels(d.t.Context(), "[^_]*").Result() // without __sentinel__:hello
		testenv.Must(d.t, err)
		counts, err := rdb.PubSubNumSub(d.t.Context(), channels...).Result()
		testenv.Must(d.t, err)
		rdb.Close()
		for channel, n := range counts {
			total[channel] += n
		}
	}
	return total
}
