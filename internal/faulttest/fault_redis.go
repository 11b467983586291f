package faulttest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// RedisFaults returns faults that break Redis. The service must reject no request, and the reconciler must time rows
// out within its interval and its grace, which are 2 s each in these tests. The bounds add three seconds for a loaded
// machine.
func (s *Service) RedisFaults() []Fault {
	swept := Bound{Late: 7 * time.Second, Answer: 2 * time.Second}
	shared, own := &common{}, &common{needs: Needs{Redis: []string{}}}
	return []Fault{
		// A task that is delivered again comes 2.5 s later, which is the time of a lease.
		{Name: "none", on: shared, Bound: Bound{Late: 2 * time.Second, Answer: 2 * time.Second},
			Inject: func(d *Deployment) {
				d.Sleep(2 * time.Second)
			}},
		{Name: "restarted empty", Bound: swept, on: own, Inject: during(4*time.Second, redisRestarted)},
		{Name: "restarted with its AOF", Bound: swept, Needs: Needs{Redis: []string{"--appendonly", "yes"}},
			Inject: during(time.Second, redisRestarted)},
		{Name: "wiped", Quick: true, on: shared, Bound: swept, Inject: func(d *Deployment) {
			for range 3 {
				testenv.Must(d.T, d.RDB.FlushDB(d.T.Context()).Err())
				d.Sleep(time.Second)
			}
		}},
		// The next sweep by the schedule comes much too late for its tasks.
		{Name: "wiped between sweeps", Bound: swept,
			Needs: Needs{Env: []string{EnvSchedule + "=@every 1m", EnvLookahead + "=2m"}},
			Inject: func(d *Deployment) {
				Eventually(d.T, "a sweep", func() bool {
					return d.Number(`SELECT count(*) FROM reconcile_reports WHERE kind = $1`, d.Service.Kind) > 0
				})
				testenv.Must(d.T, d.RDB.FlushDB(d.T.Context()).Err())
				d.Sleep(time.Second)
			}},
		{Name: "foreign content", on: shared, litters: true, Bound: swept, Inject: func(d *Deployment) {
			for seed := range uint64(8) {
				d.corrupt(rand.New(rand.NewPCG(seed, 3)))
				d.Sleep(time.Second / 2)
			}
			d.deleteForeignKeys()
		}},
		{Name: "hung", Bound: swept, on: own, Rate: competing, also: contended,
			Inject: during(10*time.Second, redisHung)},
		{Name: "read-only", Bound: swept, on: own, Inject: during(4*time.Second, redisReadOnly)},
		{Name: "out of memory", Bound: swept, on: own, Inject: during(4*time.Second, redisOutOfMemory)},
		{Name: "failover that loses writes", Bound: swept, Needs: Needs{Network: true, Redis: syncAtOnce},
			Inject: failOver},
	}
}

func redisRestarted(d *Deployment, _ int) (end func()) {
	testenv.Must(d.T, d.redis.Kill())
	return func() { testenv.Must(d.T, d.redis.Restart(d.T.Context())) }
}

func redisHung(d *Deployment, _ int) (end func()) { return suspend(d.T, d.redis.Pid()) }

func redisReadOnly(d *Deployment, _ int) (end func()) {
	testenv.Must(d.T, d.RDB.ReplicaOf(d.T.Context(), "127.0.0.1", "1").Err()) // no server listens there
	return func() { testenv.Must(d.T, d.RDB.ReplicaOf(d.T.Context(), "NO", "ONE").Err()) }
}

func redisOutOfMemory(d *Deployment, _ int) (end func()) {
	limit := func(bytes string) { testenv.Must(d.T, d.RDB.ConfigSet(d.T.Context(), "maxmemory", bytes).Err()) }
	testenv.Must(d.T, d.RDB.ConfigSet(d.T.Context(), "maxmemory-policy", "noeviction").Err())
	limit("1")
	return func() { limit("0") }
}

// failOver promotes a replica that has received no writes for a while. The writes that the master acknowledged
// meanwhile are lost.
func failOver(d *Deployment) {
	replica, rdb := d.redisReplica()
	testenv.Must(d.T, rdb.ReplicaOf(d.T.Context(), "NO", "ONE").Err())
	d.Sleep(2 * time.Second)
	Eventually(d.T, "writes that the replica does not have", func() bool {
		acknowledged, err := d.RDB.ZRange(d.T.Context(), d.Service.queue().due, 0, -1).Result()
		testenv.Must(d.T, err)
		if len(acknowledged) == 0 {
			return false
		}
		kept, err := rdb.ZMScore(d.T.Context(), d.Service.queue().due, acknowledged...).Result()
		testenv.Must(d.T, err)
		return slices.Contains(kept, 0)
	})
	d.promoteRedis(replica, rdb)
	d.Sleep(2 * time.Second)
}

// syncAtOnce are the arguments of a Redis that sends its content to a new replica without a delay.
var syncAtOnce = []string{"--repl-diskless-sync-delay", "0"}

// redisReplica starts a replica of the deployment's Redis, and waits until it is in sync. It returns a client of the
// replica, too.
func (d *Deployment) redisReplica() (*devstack.Redis, *redis.Client) {
	d.T.Helper()
	replica := testenv.RedisServer(d.T, syncAtOnce...)
	rdb := testenv.RedisClient(d.T, replica.URL())
	// A command, and no argument of the server: after a promotion and a restart it must be a master.
	host, port, _ := strings.Cut(d.redis.Addr(), ":")
	testenv.Must(d.T, rdb.ReplicaOf(d.T.Context(), host, port).Err())
	Eventually(d.T, "the replica is in sync", func() bool {
		info, err := rdb.Info(d.T.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return replica, rdb
}

// promoteRedis makes a replica the master, also for the proxy and for the test's own client. The former master ends.
func (d *Deployment) promoteRedis(replica *devstack.Redis, rdb *redis.Client) {
	d.T.Helper()
	testenv.Must(d.T, rdb.ReplicaOf(d.T.Context(), "NO", "ONE").Err())
	testenv.Must(d.T, d.redis.Kill())
	d.RDB.Close()
	d.redis, d.RDB = replica, rdb
	d.toRedis.Redirect(replica.Addr())
}
