package e2e

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

var (
	chaosFor     = flag.Duration("chaos.for", 20*time.Second, "how long the chaos test injects faults")
	chaosAlone   = flag.Bool("chaos.alone", false, "the service of the chaos test has no Redis")
	chaosKeep    = flag.Duration("chaos.keep", 0, "the time for which the service of the chaos test keeps ended items, at least 20s; 0: for ever")
	chaosSeed    = flag.Uint64("chaos.seed", 0, "the seed of the chaos test's plan, to repeat an earlier one; 0: a random one")
	chaosHistory = flag.String("chaos.history", "", "the directory in which a failed chaos test leaves its faults and answers; default: that of temporary files")
)

// chaosFault is a fault that the chaos test injects into one part of a deployment. The function begin begins the fault and
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

// killedProcess is a chaosFault of a process.
var killedProcess = chaosFault{"a process killed", processes, func(d *deployment, pick int) func() {
	all := d.running("")
	return d.killForNow(all[pick%len(all)])
}}

// chaosFaults returns the faults that each service can have.
func (s *service) chaosFaults() []chaosFault {
	faults := slices.Concat(postgresChaos, redisChaos, networkChaos, processChaos)
	if s.resources != nil {
		faults = append(faults, chaosFault{"one resource locked", postgresServer, func(d *deployment, _ int) func() {
			_, release := d.lock(s.resources.lockFirst)
			return release
		}})
	}
	return faults
}

var postgresChaos = []chaosFault{
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
		_, release := d.lock(d.service.blockTimeouts)
		return release
	}},
	{"pending items locked", postgresServer, func(d *deployment, _ int) func() {
		_, release := d.lock(d.service.lockPending())
		return release
	}},
	{"most timeouts rejected", postgresServer, func(d *deployment, pick int) func() {
		d.exec(d.service.rejectTimeouts(fmt.Sprintf(`hashtext(NEW.id::text) %% 4 <> %d`, pick%4)))
		return func() { d.exec(acceptTimeouts) }
	}},
	{"sessions terminated", postgresServer, func(d *deployment, _ int) func() {
		d.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '` + d.service.program + `'`)
		return func() {}
	}},
}

var redisChaos = []chaosFault{
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
}

var networkChaos = []chaosFault{
	{"network to PostgreSQL slow", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.Slow(30 * time.Millisecond); return d.toPostgres.Heal }},
	{"network to PostgreSQL cut", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.Cut(); return d.toPostgres.Heal }},
	{"network to PostgreSQL half-open", postgresNetwork, func(d *deployment, _ int) func() { d.toPostgres.HalfOpen(); return d.toPostgres.Heal }},
	{"network to Redis slow", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.Slow(60 * time.Millisecond); return d.toRedis.Heal }},
	{"network to Redis cut", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.Cut(); return d.toRedis.Heal }},
	{"network to Redis half-open", redisNetwork, func(d *deployment, _ int) func() { d.toRedis.HalfOpen(); return d.toRedis.Heal }},
}

var processChaos = []chaosFault{
	killedProcess,
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

// stage is a part of a plan: faults that begin together, and a time without faults after them.
type stage struct {
	faults     []chaosFault // in the order of their parts
	pick       int
	last, calm time.Duration // how long the faults last, and the time without faults
}

func (s stage) String() string {
	var names []string
	for _, f := range s.faults {
		names = append(names, f.name)
	}
	return fmt.Sprintf("%s for %v, then calm for %v", strings.Join(names, " and "), s.last, s.calm)
}

// draw draws a plan: one or two faults at a time, each for at most 5 s.
func draw(rng *rand.Rand, faults []chaosFault, total time.Duration) (plan []stage) {
	for planned := time.Duration(0); planned < total; {
		s := stage{
			faults: []chaosFault{faults[rng.IntN(len(faults))]}, pick: rng.IntN(1000),
			last: time.Duration(100+rng.IntN(4900)) * time.Millisecond, calm: time.Duration(rng.IntN(3000)) * time.Millisecond,
		}
		if second := faults[rng.IntN(len(faults))]; second.part != s.faults[0].part {
			s.faults = append(s.faults, second)
		}
		slices.SortFunc(s.faults, func(a, b chaosFault) int { return int(a.part - b.part) })
		plan = append(plan, s)
		planned += s.last + s.calm
	}
	return plan
}

// chaos injects random faults under load: those that each service can have, and the given ones. Like the other faults, it
// checks the invariants, and compares the responses that each customer got with the model. So it finds an item that is lost,
// that is both confirmed and cancelled, or that is cancelled twice. It logs the command that repeats its plan. If it fails, it
// writes the faults and all answers to a file.
func chaos(t *testing.T, s *service, more ...chaosFault) {
	t.Parallel()
	if *chaosKeep != 0 && (*chaosKeep < 20*time.Second || s.keep == "") {
		t.Fatalf("-chaos.keep is %v, want at least 20s, which customers need to see their items, and a service that removes items", *chaosKeep)
	}
	run := chaosRun{service: s, faults: append(s.chaosFaults(), more...), seed: *chaosSeed}
	for run.seed == 0 {
		run.seed = rand.Uint64()
	}
	t.Logf("to repeat this plan: %s", run.command(t))
	if end, limited := t.Deadline(); limited && time.Until(end) < *chaosFor {
		t.Fatalf("go test ends the tests in %v: run it with -timeout %v", time.Until(end), chaosLimit())
	}
	checkBounds(t, func(t *testing.T) excess {
		d, f := run.inject(t)
		return func(slack int) (exceeded []string) {
			if bound := time.Duration(slack) * 20 * time.Second; f.latest > bound || f.held > d.grace+bound {
				exceeded = append(exceeded, fmt.Sprintf("an item timed out %v late, and one that was held %v, the bounds are %v and %v",
					f.latest, f.held, bound, d.grace+bound))
			}
			return exceeded
		}
	})
}

// chaosLimit is the limit of go test that a chaos test needs.
func chaosLimit() time.Duration { return 10*time.Minute + *chaosFor }

// chaosRun is a chaos test: the seed determines which of the faults it injects, and when.
type chaosRun struct {
	service *service
	faults  []chaosFault
	seed    uint64
}

// command returns the command that repeats the plan, from the directory of the module.
func (r chaosRun) command(t *testing.T) string {
	module, err := filepath.Abs(r.service.module)
	testenv.Must(t, err)
	here, err := os.Getwd()
	testenv.Must(t, err)
	tests, err := filepath.Rel(module, here)
	testenv.Must(t, err)
	return fmt.Sprintf("TEST_ALL=1 go test ./%s -timeout %v -run '^%s$' -chaos.for=%v -chaos.keep=%v -chaos.alone=%v -chaos.seed=%d",
		tests, chaosLimit(), t.Name(), *chaosFor, *chaosKeep, *chaosAlone, r.seed)
}

// inject injects the faults into a deployment under load, and ends its processes.
func (r chaosRun) inject(t *testing.T) (*deployment, figures) {
	d := r.service.deploy(t, needs{
		standby: true, postgres: map[string]string{"wal_retrieve_retry_interval": "100ms"}, // a standby finds a restarted primary at once
		redis: syncAtOnce, network: true, keep: *chaosKeep, alone: *chaosAlone,
	})
	defer func() { d.kill(d.running("")...) }()
	testenv.Must(t, d.rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	customers := rand.New(rand.NewPCG(r.seed, 2))
	load := d.startLoad(customers, 10+customers.IntN(30))
	var injected []string // a line for each stage
	t.Cleanup(func() {
		if t.Failed() {
			r.keepHistory(t, load, injected)
		}
	})
	counts := map[string]int{}
	for i, s := range draw(rand.New(rand.NewPCG(r.seed, 1)), r.faults, *chaosFor) {
		t.Logf("stage %d: %v", i, s)
		injected = append(injected, fmt.Sprintf("%.3f stage %d: %v", time.Since(load.began).Seconds(), i, s))
		var ends []func()
		for _, fault := range s.faults {
			counts[fault.name]++
			ends = append(ends, fault.begin(d, s.pick))
		}
		d.sleep(s.last)
		for _, end := range ends {
			end()
		}
		if r.service.resources != nil {
			d.exec(r.service.resources.restock)
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
	for _, n := range counts {
		total += n
	}
	t.Logf("seed %d: %d faults injected (%d different ones) in %v; %v", r.seed, total, len(counts), *chaosFor, f)
	return d, f
}

// keepHistory writes the command that repeats the plan, the injected faults, and the calls and answers of each visit to a new file.
func (r chaosRun) keepHistory(t *testing.T, l *load, injected []string) {
	l.stop()
	l.running.Wait()
	dir := cmp.Or(*chaosHistory, os.TempDir())
	testenv.Must(t, os.MkdirAll(dir, 0o755))
	file, err := os.CreateTemp(dir, fmt.Sprintf("chaos-%d-*.txt", r.seed))
	testenv.Must(t, err)
	defer file.Close()
	fmt.Fprintf(file, "%s\n\nThe faults, by the seconds since the load began:\n%s\n\nThe calls of each visit:\n", r.command(t), strings.Join(injected, "\n"))
	for _, v := range l.visits {
		fmt.Fprintf(file, "%s (%s) %s\n", v.key, v.plan, v.body)
		for _, e := range v.history {
			fmt.Fprintf(file, "\t%v\n", e)
		}
	}
	t.Logf("the faults and answers are in %s", file.Name())
}
