package e2e

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

var (
	chaosFor   = flag.Duration("chaos.for", 20*time.Second, "how long TestChaos injects faults")
	chaosAlone = flag.Bool("chaos.alone", false, "TestChaos's service has no Redis")
	chaosKeep  = flag.Duration("chaos.keep", 0, "the time for which TestChaos's service keeps ended items, at least 20s; 0: for ever")
	chaosSeed  = flag.Uint64("chaos.seed", 0, "the seed of TestChaos's plan, to repeat an earlier one; 0: a random one")
)

// chaosFault is a fault that TestChaos injects into one part of a deployment. The function begin begins the fault and
// returns a function that ends it. If the fault affects one of several processes or items, pick selects which one.
type chaosFault struct {
	name  string
	part  part
	begin func(d *deployment, pick int) (end func())
}

// part is a part of a deployment. At most one fault affects a part at a time. Faults end in the order of their parts,
// because a process that replaces a killed one starts only if it can connect to PostgreSQL.
type part int

const (
	postgresServer part = iota
	redisServer
	postgresNetwork
	redisNetwork
	processes
)

// chaosParty starts the second party of TestChaos's deployment; nil: there is none. The file of the party's tests sets
// chaosParty, and adds faults of the party to chaosFaults.
var chaosParty func(d *deployment) (party, []string)

var chaosFaults = []chaosFault{
	{"PostgreSQL restarted", postgresServer, func(d *deployment, _ int) func() {
		testenv.Must(d.t, d.postgres.Stop())
		return func() { testenv.Must(d.t, d.postgres.Restart(d.t.Context())) }
	}},
	{"PostgreSQL failed over", postgresServer, func(d *deployment, pick int) func() {
		// After a crash of the primary, customers also see changes that have not waited for the standby, and that a promotion
		// loses.
		d.replicate()
		mend := func() {}
		if pick%2 == 0 {
			testenv.Must(d.t, d.postgres.Stop())
		} else {
			mend = d.suspendPostgres()
		}
		return func() {
			d.promote()
			mend()
			d.rebuild()
		}
	}},
	{"PostgreSQL hung", postgresServer, func(d *deployment, _ int) func() { return d.suspendPostgres() }},
	{"timeouts blocked by locks", postgresServer, func(d *deployment, _ int) func() {
		_, release := d.lock(domain.blockTimeouts)
		return release
	}},
	{"pending items locked", postgresServer, func(d *deployment, _ int) func() {
		_, release := d.lock(domain.lockPending())
		return release
	}},
	{"most timeouts rejected", postgresServer, func(d *deployment, pick int) func() {
		d.exec(domain.rejectTimeouts(fmt.Sprintf(`hashtext(NEW.id::text) %% 4 <> %d`, pick%4)))
		return func() { d.exec(acceptTimeouts) }
	}},
	{"sessions terminated", postgresServer, func(d *deployment, _ int) func() {
		d.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '` + program + `'`)
		return func() {}
	}},
	{"Redis restarted empty", redisServer, func(d *deployment, _ int) func() {
		testenv.Must(d.t, d.redis.Kill())
		return func() { testenv.Must(d.t, d.redis.Restart(d.t.Context())) }
	}},
	{"Redis failed over", redisServer, func(d *deployment, pick int) func() {
		replica, rdb := d.redisReplica()
		switch pick % 3 {
		case 0:
			testenv.Must(d.t, d.redis.Kill())
		case 1:
			suspend(d.t, d.redis.Pid())
		case 2: // the replica gets no more writes, so its promotion loses those that the master acknowledges meanwhile
			testenv.Must(d.t, rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err())
		}
		return func() { d.promoteRedis(replica, rdb) }
	}},
	{"Redis hung", redisServer, func(d *deployment, _ int) func() { return suspend(d.t, d.redis.Pid()) }},
	{"Redis wiped", redisServer, func(d *deployment, _ int) func() {
		testenv.Must(d.t, d.rdb.FlushAll(d.t.Context()).Err())
		return func() {}
	}},
	{"Redis read-only", redisServer, func(d *deployment, _ int) func() {
		testenv.Must(d.t, d.rdb.ReplicaOf(d.t.Context(), "127.0.0.1", "1").Err())
		return func() { testenv.Must(d.t, d.rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err()) }
	}},
	{"Redis out of memory", redisServer, func(d *deployment, _ int) func() {
		testenv.Must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", "1").Err())
		return func() { testenv.Must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", "0").Err()) }
	}},
	{"foreign content in Redis", redisServer, func(d *deployment, pick int) func() {
		d.corrupt(rand.New(rand.NewPCG(uint64(pick), 3)))
		return func() {}
	}},
	{"network to PostgreSQL slow", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.Slow(30 * time.Millisecond); return d.toPostgres.Heal }},
	{"network to PostgreSQL cut", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.Cut(); return d.toPostgres.Heal }},
	{"network to PostgreSQL half-open", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.HalfOpen(); return d.toPostgres.Heal }},
	{"network to Redis slow", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.Slow(60 * time.Millisecond); return d.toRedis.Heal }},
	{"network to Redis cut", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.Cut(); return d.toRedis.Heal }},
	{"network to Redis half-open", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.HalfOpen(); return d.toRedis.Heal }},
	{"a process killed", processes, func(d *deployment, pick int) func() {
		all := d.running("")
		return d.killForNow(all[pick%len(all)])
	}},
	{"half of the processes killed", processes, func(d *deployment, pick int) func() {
		var half []*member
		for i, m := range d.running("") {
			if i%2 == pick%2 {
				half = append(half, m)
			}
		}
		return d.killForNow(half...)
	}},
	{"all processes killed", processes, func(d *deployment, _ int) func() { return d.killForNow(d.running("")...) }},
	{"a process hung", processes, func(d *deployment, pick int) func() {
		all := d.running("")
		return suspend(d.t, all[pick%len(all)].cmd.Process.Pid)
	}},
}

func init() {
	if domain.resources == nil {
		return
	}
	chaosFaults = append(chaosFaults, chaosFault{"one resource locked", postgresServer, func(d *deployment, _ int) func() {
		_, release := d.lock(domain.resources.lockFirst)
		return release
	}})
}

// corrupt writes values into the keys of a kind's queue that the queue itself never writes: values of other types, infinite
// scores, foreign members, and attempts that are not numbers.
func (d *deployment) corrupt(rng *rand.Rand) {
	ctx := d.t.Context()
	queue := keysOf(d.kinds[rng.IntN(len(d.kinds))])
	sets := []string{queue.due, queue.leased, queue.dead, queue.owners}
	keys := slices.Concat(sets, []string{queue.attempts, queue.errors, queue.marker})
	for range 1 + rng.IntN(4) {
		switch key, set := keys[rng.IntN(len(keys))], sets[rng.IntN(len(sets))]; rng.IntN(6) {
		case 0: // another type; in one transaction, because the service may write the key after it was deleted
			_, err := d.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, key)
				p.SAdd(ctx, key, "foreign")
				return nil
			})
			testenv.Must(d.t, err)
		case 1: // a third type
			testenv.Must(d.t, d.rdb.Set(ctx, key, "foreign", 0).Err())
		case 2: // ZADD fails if another call has given the key another type
			_ = d.rdb.ZAdd(ctx, set, redis.Z{Member: "foreign", Score: math.Inf(1 - 2*rng.IntN(2))}, redis.Z{Member: "\x00\xff", Score: 1e300}).Err()
		case 3: // due in 30,000 years
			ids, _ := d.rdb.ZRange(ctx, queue.due, 0, -1).Result()
			for _, id := range ids {
				_ = d.rdb.ZAdd(ctx, queue.due, redis.Z{Member: id, Score: 1e18}).Err()
			}
		case 4:
			ids, _ := d.rdb.ZRange(ctx, queue.due, 0, -1).Result()
			for _, id := range ids {
				_ = d.rdb.HSet(ctx, queue.attempts, id, []string{"x", "-1", "1e300", ""}[rng.IntN(4)]).Err()
			}
		case 5: // leases that never expire
			ids, _ := d.rdb.ZRange(ctx, queue.leased, 0, -1).Result()
			for _, id := range append(ids, "foreign") {
				_ = d.rdb.ZAdd(ctx, queue.leased, redis.Z{Member: id, Score: math.Inf(1)}).Err()
			}
		}
	}
}

// killForNow kills processes, and returns a function that replaces them.
func (d *deployment) killForNow(processes ...*member) (replace func()) {
	d.kill(processes...)
	return func() { d.replace(processes...) }
}

// stage is a part of TestChaos's plan: faults that begin together, and a time without faults after them.
type stage struct {
	faults     []int // indexes of chaosFaults, in the order of their parts
	pick       int
	last, calm time.Duration // how long the faults last, and the time without faults
}

func (s stage) String() string {
	var names []string
	for _, i := range s.faults {
		names = append(names, chaosFaults[i].name)
	}
	return fmt.Sprintf("%s for %v, then calm for %v", strings.Join(names, " and "), s.last, s.calm)
}

// draw draws a plan: one or two faults at a time, each for at most 5 s.
func draw(rng *rand.Rand, total time.Duration) (plan []stage) {
	for planned := time.Duration(0); planned < total; {
		s := stage{
			faults: []int{rng.IntN(len(chaosFaults))}, pick: rng.IntN(1000),
			last: time.Duration(100+rng.IntN(4900)) * time.Millisecond, calm: time.Duration(rng.IntN(3000)) * time.Millisecond,
		}
		if second := rng.IntN(len(chaosFaults)); chaosFaults[second].part != chaosFaults[s.faults[0]].part {
			s.faults = append(s.faults, second)
		}
		slices.SortFunc(s.faults, func(a, b int) int { return int(chaosFaults[a].part - chaosFaults[b].part) })
		plan = append(plan, s)
		planned += s.last + s.calm
	}
	return plan
}

// TestChaos injects random faults under load. Like the fault tests, it checks the invariants, and compares the
// responses that each customer got with the model. So it finds an item that is lost, that is both confirmed and
// cancelled, or that is cancelled twice.
func TestChaos(t *testing.T) {
	t.Parallel()
	if *chaosKeep != 0 && (*chaosKeep < 20*time.Second || domain.keep == "") {
		t.Fatalf("-chaos.keep is %v, want at least 20s, which customers need to see their items, and a service that removes items", *chaosKeep)
	}
	seed := *chaosSeed
	for seed == 0 {
		seed = rand.Uint64()
	}
	needed := 10*time.Minute + *chaosFor
	t.Logf("to repeat this plan: go test ./e2e -timeout %v -run Chaos -chaos.for=%v -chaos.keep=%v -chaos.alone=%v -chaos.seed=%d", needed, *chaosFor, *chaosKeep, *chaosAlone, seed)
	if end, limited := t.Deadline(); limited && time.Until(end) < *chaosFor {
		t.Fatalf("go test ends the tests in %v: run it with -timeout %v", time.Until(end), needed)
	}
	checkBounds(t, func(t *testing.T) excess {
		d, f := injectRandom(t, seed)
		return func(slack int) (exceeded []string) {
			if bound := time.Duration(slack) * 20 * time.Second; f.latest > bound || f.held > d.grace+bound {
				exceeded = append(exceeded, fmt.Sprintf("an item timed out %v late, and one that was held %v, the bounds are %v and %v",
					f.latest, f.held, bound, d.grace+bound))
			}
			return exceeded
		}
	})
}

// injectRandom injects the faults that a seed determines into a deployment under load, and ends its processes.
func injectRandom(t *testing.T, seed uint64) (*deployment, figures) {
	d := deploy(t, needs{
		standby: true, postgres: map[string]string{"wal_retrieve_retry_interval": "100ms"}, // a standby finds a restarted primary at once
		redis: syncAtOnce, network: true, party: chaosParty, keep: *chaosKeep, alone: *chaosAlone,
	})
	defer func() { d.kill(d.running("")...) }()
	testenv.Must(t, d.rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	customers := rand.New(rand.NewPCG(seed, 2))
	load := d.startLoad(customers, 10+customers.IntN(30))
	injected := map[string]int{}
	for i, s := range draw(rand.New(rand.NewPCG(seed, 1)), *chaosFor) {
		t.Logf("stage %d: %v", i, s)
		var ends []func()
		for _, index := range s.faults {
			fault := chaosFaults[index]
			injected[fault.name]++
			ends = append(ends, fault.begin(d, s.pick))
		}
		d.sleep(s.last)
		for _, end := range ends {
			end()
		}
		if domain.resources != nil {
			d.exec(domain.resources.restock)
		}
		d.sleep(s.calm)
	}
	load.waitForCreated(1)
	load.close()
	d.awaitEnd()
	f := load.check()
	if *chaosKeep > 0 {
		removed := d.number(`SELECT count(*) FROM removed_items`)
		t.Logf("%.0f items were removed", removed)
		if removed == 0 && *chaosFor > 3**chaosKeep {
			t.Errorf("no item was removed, although ended items were kept for only %v", *chaosKeep)
		}
	}
	total := 0
	for _, n := range injected {
		total += n
	}
	t.Logf("seed %d: %d faults injected (%d different ones) in %v; %v", seed, total, len(injected), *chaosFor, f)
	return d, f
}

// TestChaosReplays checks that a seed determines the plan.
func TestChaosReplays(t *testing.T) {
	plan := func(seed uint64) []stage { return draw(rand.New(rand.NewPCG(seed, 1)), time.Minute) }
	if !reflect.DeepEqual(plan(7), plan(7)) || reflect.DeepEqual(plan(7), plan(8)) {
		t.Errorf("the plans of the seeds 7, 7 and 8 are %v, %v and %v: want the first two equal and the third different", plan(7), plan(7), plan(8))
	}
}
