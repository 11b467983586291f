package faulttest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// RedisFailoverFaults returns faults that end or suspend a master of Redis, whose replica takes its place. The service
// must reject no request, and time rows out as it does while Redis is down. Each process that listened to wake-ups or
// notifications must listen to the new master.
func (s *Service) RedisFailoverFaults() []Fault {
	killed := func(d *Deployment) (resume func()) {
		testenv.Must(d.T, d.redis.Kill())
		return func() { testenv.Must(d.T, d.redis.Restart(d.T.Context())) }
	}
	hung := func(d *Deployment) (resume func()) {
		return suspend(d.T, d.redis.Pid(), d.pair.Sentinels[0].Pid()) // a machine that has both
	}
	sentinels := Needs{RedisPair: testenv.RedisSentinels}
	cluster := Needs{
		RedisPair: func(t testing.TB) *testenv.RedisPair { return testenv.RedisClusterPair(t, s.queue().due) },
		Env:       []string{fmt.Sprintf("%sQUEUE_SHARDS=%d", EnvPrefix, mostShards)},
	}
	within := func(again time.Duration) Bound {
		return Bound{Late: 7 * time.Second, Answer: 2 * time.Second, Again: again}
	}
	return []Fault{
		{Name: "killed", Needs: sentinels, Bound: within(5 * time.Second), Inject: failOverRedis(killed)},
		{Name: "hung", Needs: sentinels, Bound: within(40 * time.Second), Inject: failOverRedis(hung)},
		{Name: "killed in a cluster", Needs: cluster, Bound: within(5 * time.Second), Inject: failOverRedis(killed)},
	}
}

// failOverRedis returns a fault that breaks a master, until some time after the promotion of its replica.
func failOverRedis(breaks func(d *Deployment) (resume func())) func(d *Deployment) {
	return func(d *Deployment) {
		before := d.listeners(d.pair.Master)
		resume := breaks(d)
		replica := testenv.RedisClient(d.T, d.pair.Replica.URL())
		defer replica.Close()
		Eventually(d.T, "the replica is a master", func() bool {
			info, err := replica.InfoMap(d.T.Context(), "replication").Result()
			return err == nil && info["Replication"]["role"] == "master"
		})
		promoted := time.Now()
		Eventually(d.T, "the new master has the listeners of the former one", func() bool {
			now := d.listeners(d.pair.Replica)
			return !slices.ContainsFunc(slices.Collect(maps.Keys(before)),
				func(channel string) bool { return now[channel] < before[channel] })
		})
		d.again = time.Since(promoted)
		d.Sleep(d.Timeout) // until rows are due whose tasks were lost
		resume()
		d.Sleep(2 * time.Second)
	}
}

// listeners counts the subscribers of each channel, at a server of the pair and at the other masters of a cluster.
func (d *Deployment) listeners(server *devstack.Redis) map[string]int64 {
	d.T.Helper()
	total := map[string]int64{}
	for _, s := range append(slices.Clone(d.pair.Others), server) {
		rdb := testenv.RedisClient(d.T, s.URL())
		channels, err := rdb.PubSubChannels(d.T.Context(), "[^_]*").Result() // without __sentinel__:hello
		testenv.Must(d.T, err)
		counts, err := rdb.PubSubNumSub(d.T.Context(), channels...).Result()
		testenv.Must(d.T, err)
		rdb.Close()
		for channel, n := range counts {
			total[channel] += n
		}
	}
	return total
}
