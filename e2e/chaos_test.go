package e2e

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	chaosFor  = flag.Duration("chaos.for", 20*time.Second, "how long TestChaos breaks things")
	chaosSeed = flag.Uint64("chaos.seed", 0, "replays the plan of an earlier TestChaos; 0: a new one")
)

// trouble is something that the chaos test breaks, in some part of the deployment.
type trouble struct {
	name  string
	part  part
	begin func(d *deployment, pick int) (mend func())
}

// part of a deployment. Only one thing at a time is wrong with each, and they are mended in this order: a
// process starts only with its servers there.
type part int

const (
	postgresServer part = iota
	redisServer
	postgresNetwork
	redisNetwork
	processes
)

var troubles = []trouble{
	{"PostgreSQL restarted", postgresServer, func(d *deployment, _ int) func() {
		must(d.t, d.postgres.Stop())
		return func() { must(d.t, d.postgres.Restart(d.t.Context())) }
	}},
	{"PostgreSQL hung", postgresServer, func(d *deployment, _ int) func() { return d.freezePostgres() }},
	{"products locked", postgresServer, func(d *deployment, _ int) func() {
		_, release := d.transaction(`SELECT FROM products ORDER BY id FOR UPDATE`)
		return release
	}},
	{"orders locked", postgresServer, func(d *deployment, _ int) func() {
		_, release := d.transaction(`SELECT FROM orders WHERE status = 'pending' ORDER BY id FOR UPDATE`)
		return release
	}},
	{"orders that cannot be cancelled", postgresServer, func(d *deployment, pick int) func() {
		d.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
		d.exec(fmt.Sprintf(`CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW
			WHEN (NEW.cancel_reason = 'timeout' AND hashtext(NEW.id::text) %% 4 <> %d) EXECUTE FUNCTION refuse()`, pick%4))
		return func() { d.exec(`DROP FUNCTION refuse() CASCADE`) }
	}},
	{"sessions ended", postgresServer, func(d *deployment, _ int) func() {
		d.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shop'`)
		return func() {}
	}},
	{"Redis restarted empty", redisServer, func(d *deployment, _ int) func() {
		must(d.t, d.redis.Kill())
		return func() { must(d.t, d.redis.Restart(d.t.Context())) }
	}},
	{"Redis hung", redisServer, func(d *deployment, _ int) func() { return frozen(d.t, d.redis.Pid()) }},
	{"Redis wiped", redisServer, func(d *deployment, _ int) func() {
		must(d.t, d.rdb.FlushAll(d.t.Context()).Err())
		return func() {}
	}},
	{"Redis read-only", redisServer, func(d *deployment, _ int) func() {
		must(d.t, d.rdb.ReplicaOf(d.t.Context(), "127.0.0.1", "1").Err())
		return func() { must(d.t, d.rdb.ReplicaOf(d.t.Context(), "NO", "ONE").Err()) }
	}},
	{"Redis out of memory", redisServer, func(d *deployment, _ int) func() {
		must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", "1").Err())
		return func() { must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", "0").Err()) }
	}},
	{"foreign content in Redis", redisServer, func(d *deployment, pick int) func() {
		d.litter(rand.New(rand.NewPCG(uint64(pick), 3)))
		return func() {}
	}},
	{"way to PostgreSQL slow", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.Slow(30 * time.Millisecond); return d.toPostgres.Heal }},
	{"way to PostgreSQL cut", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.Cut(); return d.toPostgres.Heal }},
	{"way to PostgreSQL half-open", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.HalfOpen(); return d.toPostgres.Heal }},
	{"way to Redis slow", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.Slow(60 * time.Millisecond); return d.toRedis.Heal }},
	{"way to Redis cut", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.Cut(); return d.toRedis.Heal }},
	{"way to Redis half-open", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.HalfOpen(); return d.toRedis.Heal }},
	{"a process killed", processes, func(d *deployment, pick int) func() {
		return d.killed(d.all("")[pick%len(d.all(""))])
	}},
	{"half of the processes killed", processes, func(d *deployment, pick int) func() {
		var half []*running
		for i, r := range d.all("") {
			if i%2 == pick%2 {
				half = append(half, r)
			}
		}
		return d.killed(half...)
	}},
	{"all processes killed", processes, func(d *deployment, _ int) func() { return d.killed(d.all("")...) }},
	{"a process hung", processes, func(d *deployment, pick int) func() {
		return frozen(d.t, d.all("")[pick%len(d.all(""))].cmd.Process.Pid)
	}},
}

// litter writes over the queue's keys what the queue never writes: values of other types, scores without end, foreign
// members, numbers that are none.
func (d *deployment) litter(rng *rand.Rand) {
	ctx := d.t.Context()
	sets := []string{dueKey, leasedKey, deadKey}
	keys := slices.Concat(sets, []string{attemptsKey, errorsKey, sentinelKey})
	for range 1 + rng.IntN(4) {
		switch key, set := keys[rng.IntN(len(keys))], sets[rng.IntN(len(sets))]; rng.IntN(6) {
		case 0: // another type
			must(d.t, d.rdb.Del(ctx, key).Err())
			must(d.t, d.rdb.SAdd(ctx, key, "foreign").Err())
		case 1:
			must(d.t, d.rdb.Del(ctx, key).Err())
			must(d.t, d.rdb.Set(ctx, key, "foreign", 0).Err())
		case 2: // may fail on a key that holds another type by now
			_ = d.rdb.ZAdd(ctx, set, redis.Z{Member: "foreign", Score: math.Inf(1 - 2*rng.IntN(2))}, redis.Z{Member: "\x00\xff", Score: 1e300}).Err()
		case 3: // due, but not for 30,000 years
			ids, _ := d.rdb.ZRange(ctx, dueKey, 0, -1).Result()
			for _, id := range ids {
				_ = d.rdb.ZAdd(ctx, dueKey, redis.Z{Member: id, Score: 1e18}).Err()
			}
		case 4:
			ids, _ := d.rdb.ZRange(ctx, dueKey, 0, -1).Result()
			for _, id := range ids {
				_ = d.rdb.HSet(ctx, attemptsKey, id, []string{"x", "-1", "1e300", ""}[rng.IntN(4)]).Err()
			}
		case 5: // leases that never end
			ids, _ := d.rdb.ZRange(ctx, leasedKey, 0, -1).Result()
			for _, id := range append(ids, "foreign") {
				_ = d.rdb.ZAdd(ctx, leasedKey, redis.Z{Member: id, Score: math.Inf(1)}).Err()
			}
		}
	}
}

// killed kills processes and returns how to replace them.
func (d *deployment) killed(processes ...*running) (replace func()) {
	d.kill(processes...)
	return func() { d.replace(processes...) }
}

// step of a plan: troubles that come at once and last, then a calm.
type step struct {
	troubles   []int // places in troubles, by their parts
	pick       int   // which process, where there is a choice
	last, calm time.Duration
}

func (s step) String() string {
	var names []string
	for _, i := range s.troubles {
		names = append(names, troubles[i].name)
	}
	return fmt.Sprintf("%s for %v, then calm for %v", strings.Join(names, " and "), s.last, s.calm)
}

// draw makes the plan of a seed: one or two troubles at a time, none of them longer than 5 s.
func draw(rng *rand.Rand, total time.Duration) (plan []step) {
	for planned := time.Duration(0); planned < total; {
		s := step{
			troubles: []int{rng.IntN(len(troubles))}, pick: rng.IntN(1000),
			last: time.Duration(100+rng.IntN(4900)) * time.Millisecond, calm: time.Duration(rng.IntN(3000)) * time.Millisecond,
		}
		if second := rng.IntN(len(troubles)); troubles[second].part != troubles[s.troubles[0]].part {
			s.troubles = append(s.troubles, second)
		}
		slices.SortFunc(s.troubles, func(a, b int) int { return int(troubles[a].part - troubles[b].part) })
		plan = append(plan, s)
		planned += s.last + s.calm
	}
	return plan
}

// TestChaos breaks things at random while customers are at work. Whatever comes together: no order is lost, paid
// and cancelled, or cancelled twice, all stock comes back, and every customer's answers are those of one order.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := *chaosSeed
	for seed == 0 {
		seed = rand.Uint64()
	}
	plan := draw(rand.New(rand.NewPCG(seed, 1)), *chaosFor)
	customers := rand.New(rand.NewPCG(seed, 2))
	perSecond := 10 + customers.IntN(30)
	t.Logf("replay with: go test ./e2e -timeout %v -run Chaos -chaos.for=%v -chaos.seed=%d", 10*time.Minute+*chaosFor, *chaosFor, seed)
	if end, limited := t.Deadline(); limited && time.Until(end) < *chaosFor {
		t.Fatalf("go test gives the tests %v more: say -timeout %v", time.Until(end), 10*time.Minute+*chaosFor)
	}

	d := deploy(t, needs{postgres: map[string]string{}, redis: []string{}, network: true})
	must(t, d.rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	load := d.open(customers, perSecond)
	injected := map[string]int{}
	for i, s := range plan {
		t.Logf("step %d: %v", i, s)
		var mends []func()
		for _, trouble := range s.troubles {
			injected[troubles[trouble].name]++
			mends = append(mends, troubles[trouble].begin(d, s.pick))
		}
		d.hold(s.last)
		for _, mend := range mends {
			mend()
		}
		d.exec(`UPDATE products SET supply = supply + 5, available = available + 5 WHERE id = $1`, course)
		d.hold(s.calm)
	}
	load.served(1)
	load.close()
	d.settle()
	f := load.check()
	total := 0
	for _, name := range slices.Sorted(maps.Keys(injected)) {
		total += injected[name]
	}
	t.Logf("seed %d: %d faults injected (%d kinds) in %v; %v", seed, total, len(injected), *chaosFor, f)
	if latest := 20 * time.Second; f.latest > latest {
		t.Errorf("cancelled %v late, the bound is %v", f.latest, latest)
	}
}

// TestChaosReplays: a seed is a plan.
func TestChaosReplays(t *testing.T) {
	plan := func(seed uint64) []step { return draw(rand.New(rand.NewPCG(seed, 1)), time.Minute) }
	if !reflect.DeepEqual(plan(7), plan(7)) || reflect.DeepEqual(plan(7), plan(8)) {
		t.Errorf("seeds 7, 7 and 8 are the plans %v, %v and %v", plan(7), plan(7), plan(8))
	}
}
