package faulttest

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
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
	chaosFor  = flag.Duration("chaos.for", 20*time.Second, "how long the chaos test injects faults")
	chaosSeed = flag.Uint64("chaos.seed", 0,
		"the seed of the chaos test's plan, to repeat an earlier one; 0: a random one")
)

// ChaosFault is a fault that the chaos test injects into one part of a deployment.
type ChaosFault struct {
	Name   string
	Target Target
	Begin  Begin
}

// Begin begins a fault, and returns a function that ends it. If the fault affects one of several processes or rows,
// pick selects which one.
type Begin func(d *Deployment, pick int) (end func())

// during returns the injection of a fault that lasts for a while.
func during(while time.Duration, begin Begin) func(d *Deployment) {
	return func(d *Deployment) {
		end := begin(d, 0)
		d.Sleep(while)
		end()
	}
}

// Target is a part of a deployment. At most one fault affects a part at a time. Faults end in the order of their parts,
// because a process that replaces a killed one starts only if it can connect to PostgreSQL.
type Target int

// The parts that each deployment has.
const (
	PostgresServer Target = iota
	RedisServer
	PostgresNetwork
	RedisNetwork
	Processes
)

// KilledProcess is the fault of chaos that kills a process for a while.
var KilledProcess = ChaosFault{"a process killed", Processes, func(d *Deployment, pick int) func() {
	all := d.Running("")
	return d.killForNow(all[pick%len(all)])
}}

// chaosFaults returns the faults that each service can have.
func (s *Service) chaosFaults() []ChaosFault {
	faults := slices.Concat(postgresChaos, redisChaos, networkChaos, processChaos)
	if s.Shared != nil {
		faults = append(faults, ChaosFault{"one shared row locked", PostgresServer, func(d *Deployment, _ int) func() {
			_, release := d.lockShared(s.Bodies[0])
			return release
		}}, ChaosFault{"all shared rows locked", PostgresServer, func(d *Deployment, _ int) func() {
			_, release := d.Lock(s.Shared.Lock, slices.Collect(maps.Keys(d.supplies())))
			return release
		}})
	}
	return faults
}

var postgresChaos = []ChaosFault{
	{"PostgreSQL restarted", PostgresServer, postgresRestarted},
	{"PostgreSQL failed over", PostgresServer, func(d *Deployment, pick int) func() {
		// After a crash of the primary, customers also see changes that have not waited for the standby, and that a
		// promotion loses.
		d.replicate()
		mend := func() {}
		if pick%2 == 0 {
			testenv.Must(d.T, d.Postgres.Stop())
		} else {
			mend = d.suspendPostgres()
		}
		return func() {
			d.Promote()
			mend()
			d.rebuild()
		}
	}},
	{"PostgreSQL hung", PostgresServer, postgresHung},
	{"timeouts blocked by locks", PostgresServer, func(d *Deployment, _ int) func() { return d.blockTimeouts() }},
	{"pending rows locked", PostgresServer, pendingLocked},
	{"most timeouts rejected", PostgresServer, func(d *Deployment, pick int) func() {
		return d.rejectTimeouts(fmt.Sprintf(`hashtext(id::text) %% 4 <> %d`, pick%4))
	}},
	{"sessions terminated", PostgresServer, func(d *Deployment, _ int) func() {
		d.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = '` + d.Service.Program + `'`)
		return func() {}
	}},
}

var redisChaos = []ChaosFault{
	{"Redis restarted empty", RedisServer, redisRestarted},
	{"Redis failed over", RedisServer, func(d *Deployment, pick int) func() {
		replica, rdb := d.redisReplica()
		switch pick % 3 {
		case 0:
			testenv.Must(d.T, d.redis.Kill())
		case 1:
			suspend(d.T, d.redis.Pid())
		case 2: // the replica gets no more writes, so its promotion loses those that the master acknowledges meanwhile
			testenv.Must(d.T, rdb.ReplicaOf(d.T.Context(), "NO", "ONE").Err())
		}
		return func() { d.promoteRedis(replica, rdb) }
	}},
	{"Redis hung", RedisServer, redisHung},
	{"Redis wiped", RedisServer, func(d *Deployment, _ int) func() {
		testenv.Must(d.T, d.RDB.FlushAll(d.T.Context()).Err())
		return func() {}
	}},
	{"Redis read-only", RedisServer, redisReadOnly},
	{"Redis out of memory", RedisServer, redisOutOfMemory},
	{"foreign content in Redis", RedisServer, func(d *Deployment, pick int) func() {
		d.corrupt(rand.New(rand.NewPCG(uint64(pick), 3)))
		return d.deleteForeignKeys
	}},
}

var networkChaos = []ChaosFault{
	{"network to PostgreSQL slow", PostgresNetwork, toPostgres(slow(30 * time.Millisecond))},
	{"network to PostgreSQL cut", PostgresNetwork, toPostgres((*Proxy).Cut)},
	{"network to PostgreSQL half-open", PostgresNetwork, toPostgres((*Proxy).HalfOpen)},
	{"network to Redis slow", RedisNetwork, toRedis(slow(60 * time.Millisecond))},
	{"network to Redis cut", RedisNetwork, toRedis((*Proxy).Cut)},
	{"network to Redis half-open", RedisNetwork, toRedis((*Proxy).HalfOpen)},
}

var processChaos = []ChaosFault{
	KilledProcess,
	{"half of the processes killed", Processes, func(d *Deployment, pick int) func() {
		var half []*Member
		for i, m := range d.Running("") {
			if i%2 == pick%2 {
				half = append(half, m)
			}
		}
		return d.killForNow(half...)
	}},
	{"all processes killed", Processes, func(d *Deployment, _ int) func() { return d.killForNow(d.Running("")...) }},
	{"a process hung", Processes, func(d *Deployment, pick int) func() {
		all := d.Running("")
		return suspend(d.T, all[pick%len(all)].Cmd.Process.Pid)
	}},
}

// The ids that corrupt adds to sets.
const foreignID, foreignBytes = "foreign", "\x00\xff"

// corrupt writes values into the keys of a kind's queue that the queue itself never writes: values of other types,
// infinite scores, foreign members, and attempts that are not numbers.
func (d *Deployment) corrupt(rng *rand.Rand) {
	ctx := d.T.Context()
	queue := keysOf(d.Kinds[rng.IntN(len(d.Kinds))], 0)
	sets := []string{queue.due, queue.leased, queue.dead}
	keys := slices.Concat(sets, []string{queue.attempts, queue.errors, queue.marker})
	for range 1 + rng.IntN(4) {
		switch key, set := keys[rng.IntN(len(keys))], sets[rng.IntN(len(sets))]; rng.IntN(6) {
		case 0: // another type; in one transaction, because the service may write the key after it was deleted
			_, err := d.RDB.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, key)
				p.SAdd(ctx, key, "foreign")
				return nil
			})
			testenv.Must(d.T, err)
		case 1: // a third type
			testenv.Must(d.T, d.RDB.Set(ctx, key, "foreign", 0).Err())
		case 2: // ZADD fails if another call has given the key another type
			_ = d.RDB.ZAdd(ctx, set, redis.Z{Member: foreignID, Score: math.Inf(1 - 2*rng.IntN(2))},
				redis.Z{Member: foreignBytes, Score: 1e300}).Err()
		case 3: // due in 30,000 years
			ids, _ := d.RDB.ZRange(ctx, queue.due, 0, -1).Result()
			for _, id := range ids {
				_ = d.RDB.ZAdd(ctx, queue.due, redis.Z{Member: id, Score: 1e18}).Err()
			}
		case 4:
			ids, _ := d.RDB.ZRange(ctx, queue.due, 0, -1).Result()
			for _, id := range ids {
				_ = d.RDB.HSet(ctx, queue.attempts, id, []string{"x", "-1", "1e300", ""}[rng.IntN(4)]).Err()
			}
		case 5: // leases that never expire
			ids, _ := d.RDB.ZRange(ctx, queue.leased, 0, -1).Result()
			for _, id := range append(ids, foreignID) {
				_ = d.RDB.ZAdd(ctx, queue.leased, redis.Z{Member: id, Score: math.Inf(1)}).Err()
			}
		}
	}
}

// deleteForeignKeys deletes the keys of the queues whose values have a wrong type, and the dead letters that no
// worker has written, as an operator does whom `shop doctor` tells about them.
func (d *Deployment) deleteForeignKeys() {
	ctx := d.T.Context()
	for _, kind := range d.Kinds {
		queue := keysOf(kind, 0)
		for key, want := range map[string]string{
			queue.due: "zset", queue.leased: "zset", queue.dead: "zset",
			queue.attempts: "hash", queue.errors: "hash", queue.marker: "string",
		} {
			if is, err := d.RDB.Type(ctx, key).Result(); err == nil && is != want {
				testenv.Must(d.T, d.RDB.Del(ctx, key).Err())
			}
		}
		_ = d.RDB.ZRem(ctx, queue.dead, foreignID, foreignBytes).Err()
	}
}

// killForNow kills processes, and returns a function that replaces them.
func (d *Deployment) killForNow(processes ...*Member) (replace func()) {
	d.Kill(processes...)
	return func() { d.Replace(processes...) }
}

// stage is a part of a plan: faults that begin together, and a time without faults after them.
type stage struct {
	faults     []ChaosFault // in the order of their parts
	pick       int
	last, calm time.Duration // how long the faults last, and the time without faults
}

func (s stage) String() string {
	var names []string
	for _, f := range s.faults {
		names = append(names, f.Name)
	}
	return fmt.Sprintf("%s (pick %d) for %v, then calm for %v", strings.Join(names, " and "), s.pick, s.last, s.calm)
}

// draw draws a plan: one or two faults at a time, each for at most 5 s.
func draw(rng *rand.Rand, faults []ChaosFault, total time.Duration) (plan []stage) {
	for planned := time.Duration(0); planned < total; {
		s := stage{
			faults: []ChaosFault{faults[rng.IntN(len(faults))]}, pick: rng.IntN(1000),
			last: time.Duration(100+rng.IntN(4900)) * time.Millisecond,
			calm: time.Duration(rng.IntN(3000)) * time.Millisecond,
		}
		if second := faults[rng.IntN(len(faults))]; second.Target != s.faults[0].Target {
			s.faults = append(s.faults, second)
		}
		slices.SortFunc(s.faults, func(a, b ChaosFault) int { return int(a.Target - b.Target) })
		plan = append(plan, s)
		planned += s.last + s.calm
	}
	return plan
}

// Chaos injects random faults under load: those that each service can have, and the given ones. Like the other
// faults, it checks the invariants, and compares the responses that each customer got with the model. So it finds a
// row that is lost, that is both confirmed and cancelled, or that is cancelled twice. It logs the command that
// repeats its plan. If it fails, it writes the faults and all answers to a file.
func Chaos(t *testing.T, s *Service, more ...ChaosFault) {
	testenv.Slow(t, "random faults under load")
	NeedsProcesses(t)
	t.Parallel()
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
			if bound := time.Duration(slack) * chaosLate; f.latest > bound || f.held > d.Grace+bound {
				exceeded = append(exceeded, fmt.Sprintf(
					"a row timed out %v late, and one that was held %v, the bounds are %v and %v",
					f.latest, f.held, bound, d.Grace+bound))
			}
			return append(exceeded, f.near.tooFew(slack)...)
		}
	})
}

// chaosLate is the longest time from a deadline to the timeout of a row that is not held.
const chaosLate = 20 * time.Second

// chaosLimit is the limit of go test that a chaos test needs, if a busy machine makes it measure twice.
func chaosLimit() time.Duration { return 10*time.Minute + 2**chaosFor }

// chaosRun is a chaos test: the seed determines which of the faults it injects, and when.
type chaosRun struct {
	service *Service
	faults  []ChaosFault
	seed    uint64
}

// command returns the command that repeats the plan, in the directory of the test.
func (r chaosRun) command(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/") // without that of a repeated measurement
	return fmt.Sprintf("TEST_ALL=1 go test -timeout %v -run '^%s$' -chaos.for=%v -chaos.seed=%d",
		chaosLimit(), name, *chaosFor, r.seed)
}

// inject injects the faults into a deployment under load, and ends its processes.
func (r chaosRun) inject(t *testing.T) (*Deployment, figures) {
	d := r.service.Deploy(t, Needs{
		// a standby finds a restarted primary at once
		Standby: true, Postgres: map[string]string{"wal_retrieve_retry_interval": "100ms"},
		Redis: syncAtOnce, Network: true,
	})
	defer func() { d.Kill(d.Running("")...) }()
	customers := rand.New(rand.NewPCG(r.seed, 2))
	load := d.startLoad(customers, usualRate+customers.IntN(usualRate*3/2))
	var injected []string // a line for each stage
	t.Cleanup(func() {
		if t.Failed() {
			r.keepHistory(t, load, injected)
		}
	})
	counts := map[string]int{}
	for i, s := range draw(rand.New(rand.NewPCG(r.seed, 1)), r.faults, *chaosFor) {
		t.Logf("stage %d: %v", i, s)
		injected = append(injected, fmt.Sprintf("%.3f stage %d: %v", time.Since(load.Began).Seconds(), i, s))
		var ends []func()
		for _, fault := range s.faults {
			counts[fault.Name]++
			ends = append(ends, fault.Begin(d, s.pick))
		}
		d.Sleep(s.last)
		for _, end := range ends {
			end()
		}
		d.Sleep(s.calm)
	}
	load.waitForCreated(1)
	load.finish(chaosLate + d.Grace)
	f := load.check()
	total := 0
	for _, n := range counts {
		total += n
	}
	t.Logf("seed %d: %d faults injected (%d different ones) in %v; %v", r.seed, total, len(counts), *chaosFor, f)
	return d, f
}

// keepHistory writes the command that repeats the plan, the injected faults, and the calls and answers of each visit
// to a file. CHAOS_HISTORY names the directory; the default is that of temporary files.
func (r chaosRun) keepHistory(t *testing.T, l *Load, injected []string) {
	l.stop()
	l.running.Wait()
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\nThe faults, by the seconds since the load began:\n%s\n\nThe calls of each visit:\n",
		r.command(t), strings.Join(injected, "\n"))
	for _, v := range l.Visits {
		fmt.Fprintf(&text, "%s (%s) %s\n", v.Key, v.Plan, v.body)
		for _, e := range v.History {
			fmt.Fprintf(&text, "\t%v\n", e)
		}
	}
	dir := cmp.Or(os.Getenv("CHAOS_HISTORY"), os.TempDir())
	testenv.Must(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, fmt.Sprintf("%s-%d.txt", strings.ReplaceAll(t.Name(), "/", "-"), r.seed))
	testenv.Must(t, os.WriteFile(path, []byte(text.String()), 0o644))
	t.Logf("the faults and answers are in %s", path)
}
