package e2e

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// redisFaults returns faults that break Redis. The service must reject no request, and the reconciler must time items out within its
// interval and its grace, which are 2 s each in these tests. The bounds add three seconds for a loaded machine.
func redisFaults() []fault {
	swept := bound{late: 7 * time.Second, answer: 2 * time.Second}
	shared, own := &common{}, &common{needs: needs{redis: []string{}}}
	return []fault{
		{name: "none", on: shared, bound: bound{late: 3 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.sleep(2 * time.Second)
		}},
		{name: "restarted empty", bound: swept, on: own, inject: func(d *deployment) {
			testenv.Must(d.t, d.redis.Kill())
			d.sleep(4 * time.Second)
			testenv.Must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "restarted with its AOF", bound: swept, needs: needs{redis: []string{"--appendonly", "yes"}}, inject: func(d *deployment) {
			testenv.Must(d.t, d.redis.Kill())
			d.sleep(time.Second)
			testenv.Must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "wiped", on: shared, bound: swept, inject: func(d *deployment) {
			for range 3 {
				testenv.Must(d.t, d.rdb.FlushDB(d.t.Context()).Err())
				d.sleep(time.Second)
			}
		}},
		{name: "foreign content", on: shared, bound: swept, inject: func(d *deployment) {
			for seed := range uint64(8) {
				d.corrupt(rand.New(rand.NewPCG(seed, 3)))
				d.sleep(time.Second / 2)
			}
		}},
		{name: "hung", bound: swept, on: own, rate: 40, also: contended, inject: func(d *deployment) {
			resume := suspend(d.t, d.redis.Pid())
			d.sleep(10 * time.Second)
			resume()
		}},
		{name: "read-only", bound: swept, on: own, inject: func(d *deployment) {
			testenv.Must(d.t, d.rdb.ReplicaOf(d.t.Context(), "127.0.0.1", "1").Err()) // no server listens there
			d.sleep(4 * time.Second)
			testenv.Must(d.t, d.rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
		}},
		{name: "out of memory", bound: swept, on: own, inject: func(d *deployment) {
			limit := func(bytes string) { testenv.Must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", bytes).Err()) }
			testenv.Must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory-policy", "noeviction").Err())
			limit("1")
			d.sleep(4 * time.Second)
			limit("0")
		}},
		{name: "failover that loses writes", bound: swept, needs: needs{network: true, redis: syncAtOnce}, inject: failOver},
	}
}

// failOver promotes a replica that has received no writes for a while. The writes that the master acknowledged
// meanwhile are lost.
func failOver(d *deployment) {
	replica, rdb := d.redisReplica()
	testenv.Must(d.t, rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
	d.sleep(2 * time.Second)
	eventually(d.t, "writes that the replica does not have", func() bool {
		acknowledged, err := d.rdb.ZRange(d.t.Context(), d.service.queue().due, 0, -1).Result()
		testenv.Must(d.t, err)
		if len(acknowledged) == 0 {
			return false
		}
		kept, err := rdb.ZMScore(d.t.Context(), d.service.queue().due, acknowledged...).Result()
		testenv.Must(d.t, err)
		return slices.Contains(kept, 0)
	})
	d.promoteRedis(replica, rdb)
	d.sleep(2 * time.Second)
}

// syncAtOnce are the arguments of a Redis that sends its content to a new replica without a delay.
var syncAtOnce = []string{"--repl-diskless-sync-delay", "0"}

// redisReplica starts a replica of the deployment's Redis, and waits until it is in sync. It returns a client of the replica,
// too.
func (d *deployment) redisReplica() (*devstack.Redis, *redis.Client) {
	d.t.Helper()
	replica := testenv.RedisServer(d.t, syncAtOnce...)
	rdb := redisClient(d.t, replica.URL())
	// A command, and no argument of the server: after a promotion and a restart it must be a master.
	host, port, _ := strings.Cut(d.redis.Addr(), ":")
	testenv.Must(d.t, rdb.ReplicaOf(d.t.Context(), host, port).Err())
	eventually(d.t, "the replica is in sync", func() bool {
		info, err := rdb.Info(d.t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return replica, rdb
}

// promoteRedis makes a replica the master, also for the proxy and for the test's own client. The former master ends.
func (d *deployment) promoteRedis(replica *devstack.Redis, rdb *redis.Client) {
	d.t.Helper()
	testenv.Must(d.t, rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
	testenv.Must(d.t, d.redis.Kill())
	d.rdb.Close()
	d.redis, d.rdb = replica, rdb
	d.toRedis.Redirect(replica.Addr())
}
