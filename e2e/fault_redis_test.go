package e2e

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestRedisFaults breaks Redis. The service must reject no request, and the reconciler must time items out within its
// interval and its grace, which are 2 s each in these tests. The bounds add three seconds for a loaded machine.
func TestRedisFaults(t *testing.T) {
	swept := bound{late: 7 * time.Second, answer: 2 * time.Second}
	own := needs{redis: []string{}}
	runFaults(t, []fault{
		{name: "none", bound: bound{late: 3 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.sleep(2 * time.Second)
		}},
		{name: "restarted empty", bound: swept, needs: own, inject: func(d *deployment) {
			testenv.Must(d.t, d.redis.Kill())
			d.sleep(4 * time.Second)
			testenv.Must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "restarted with its AOF", bound: swept, needs: needs{redis: []string{"--appendonly", "yes"}}, inject: func(d *deployment) {
			testenv.Must(d.t, d.redis.Kill())
			d.sleep(time.Second)
			testenv.Must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "wiped", bound: swept, inject: func(d *deployment) {
			for range 3 {
				testenv.Must(d.t, d.rdb.FlushDB(d.t.Context()).Err())
				d.sleep(time.Second)
			}
		}},
		{name: "foreign content", bound: swept, inject: func(d *deployment) {
			for seed := range uint64(8) {
				d.corrupt(rand.New(rand.NewPCG(seed, 3)))
				d.sleep(time.Second / 2)
			}
		}},
		{name: "hung", bound: swept, needs: own, also: contended, inject: func(d *deployment) {
			resume := suspend(d.t, d.redis.Pid())
			d.sleep(10 * time.Second)
			resume()
		}},
		{name: "read-only", bound: swept, needs: own, inject: func(d *deployment) {
			testenv.Must(d.t, d.rdb.ReplicaOf(d.t.Context(), "127.0.0.1", "1").Err()) // no server listens there
			d.sleep(4 * time.Second)
			testenv.Must(d.t, d.rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
		}},
		{name: "out of memory", bound: swept, needs: own, inject: func(d *deployment) {
			limit := func(bytes string) { testenv.Must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", bytes).Err()) }
			testenv.Must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory-policy", "noeviction").Err())
			limit("1")
			d.sleep(4 * time.Second)
			limit("0")
		}},
		{name: "failover that loses writes", bound: swept, needs: needs{network: true, redis: []string{"--repl-diskless-sync-delay", "0"}}, inject: failOver},
	})
}

// failOver promotes a replica that has received no writes for a while. The writes that the master acknowledged
// meanwhile are lost.
func failOver(d *deployment) {
	host, port, _ := strings.Cut(d.redis.Addr(), ":")
	replica := testenv.RedisServer(d.t, "--replicaof", host+" "+port)
	rdb := redisClient(d.t, replica.URL())
	defer rdb.Close()
	eventually(d.t, "the replica is in sync", func() bool {
		info, err := rdb.Info(d.t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	testenv.Must(d.t, rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
	d.sleep(2 * time.Second)
	acknowledged, err := d.rdb.ZRange(d.t.Context(), queue.due, 0, -1).Result()
	testenv.Must(d.t, err)
	kept, err := rdb.ZMScore(d.t.Context(), queue.due, acknowledged...).Result()
	testenv.Must(d.t, err)
	if lost := len(acknowledged) - len(slices.DeleteFunc(kept, func(score float64) bool { return score == 0 })); lost == 0 {
		d.t.Error("the failover lost no write, so the test proves nothing")
	}
	d.toRedis.Redirect(replica.Addr())
	d.rdb.Close()
	d.rdb = redisClient(d.t, replica.URL())
	d.sleep(2 * time.Second)
}
