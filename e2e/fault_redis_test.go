package e2e

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestRedisFaults: without Redis orders are taken as ever, none is refused, and what is due is cancelled by
// the reconciler within its interval, 2 s here, and the grace of 2 s. The bounds leave a loaded machine three
// seconds more.
func TestRedisFaults(t *testing.T) {
	by := bound{late: 7 * time.Second, answer: 2 * time.Second}
	own := needs{redis: []string{}}
	runFaults(t, []fault{
		{name: "none", bound: bound{late: 3 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.hold(2 * time.Second)
		}},
		{name: "restarted empty", bound: by, needs: own, inject: func(d *deployment) {
			must(d.t, d.redis.Kill())
			d.hold(4 * time.Second)
			must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "restarted with its AOF", bound: by, needs: needs{redis: []string{"--appendonly", "yes"}}, inject: func(d *deployment) {
			must(d.t, d.redis.Kill())
			d.hold(time.Second)
			must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "wiped", bound: by, inject: func(d *deployment) {
			for range 3 {
				must(d.t, d.rdb.FlushDB(d.t.Context()).Err())
				d.hold(time.Second)
			}
		}},
		{name: "foreign content", bound: by, inject: func(d *deployment) {
			for seed := range uint64(8) {
				d.litter(rand.New(rand.NewPCG(seed, 3)))
				d.hold(time.Second / 2)
			}
		}},
		{name: "hung", bound: by, needs: own, inject: func(d *deployment) {
			thaw := frozen(d.t, d.redis.Pid())
			d.hold(10 * time.Second)
			thaw()
		}},
		{name: "read-only", bound: by, needs: own, inject: func(d *deployment) {
			must(d.t, d.rdb.ReplicaOf(d.t.Context(), "127.0.0.1", "1").Err()) // a master that is not there
			d.hold(4 * time.Second)
			must(d.t, d.rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
		}},
		{name: "out of memory", bound: by, needs: own, inject: func(d *deployment) {
			limit := func(bytes string) { must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", bytes).Err()) }
			must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory-policy", "noeviction").Err())
			limit("1")
			d.hold(4 * time.Second)
			limit("0")
		}},
		{name: "failover that loses writes", bound: by, needs: needs{network: true, redis: []string{"--repl-diskless-sync-delay", "0"}}, inject: failOver},
	})
}

// failOver promotes a replica that was cut off a while ago: what the master acknowledged since is lost.
func failOver(d *deployment) {
	host, port, _ := strings.Cut(d.redis.Addr(), ":")
	heir := testenv.RedisServer(d.t, "--replicaof", host+" "+port)
	rdb := redisClient(d.t, heir.URL())
	defer rdb.Close()
	eventually(d.t, "a replica in step", func() bool {
		info, err := rdb.Info(d.t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	must(d.t, rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
	d.hold(2 * time.Second)
	acknowledged, err := d.rdb.ZRange(d.t.Context(), dueKey, 0, -1).Result()
	must(d.t, err)
	kept, err := rdb.ZMScore(d.t.Context(), dueKey, acknowledged...).Result()
	must(d.t, err)
	if lost := len(acknowledged) - len(slices.DeleteFunc(kept, func(score float64) bool { return score == 0 })); lost == 0 {
		d.t.Error("the failover lost nothing")
	}
	d.toRedis.Redirect(heir.Addr())
	d.rdb.Close()
	d.rdb = redisClient(d.t, heir.URL())
	d.hold(2 * time.Second)
}
