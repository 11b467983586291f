package faulttest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// Needs describes the servers and processes that a test needs.
type Needs struct {
	Postgres    map[string]string // a PostgreSQL server of its own with these settings; nil: as testenv.Postgres
	Standby     bool              // a PostgreSQL server of its own, and a synchronous standby of it
	Pooler      bool              // a PgBouncer in transaction mode in front of PostgreSQL
	Redis       []string          // a redis-server of its own with these arguments; nil: as testenv.Redis
	Network     bool              // proxies in front of both servers
	PostgresEnv []string          // the environment of a PostgreSQL server of its own
	RedisEnv    []string          // the environment of a redis-server of its own
	Processes   []string          // the role of each process; nil: two of each role, and one relay
	Env         []string          // additional environment variables of the processes

	// RedisPair starts a Redis of its own that fails over. nil: as redis says.
	RedisPair func(t testing.TB) *testenv.RedisPair

	// Party starts the second party, as [Service.Party] does. nil: that of the service.
	Party func(d *Deployment) (Party, []string)
}

// Party is a second party that may confirm rows, as a payment provider does. Only the tests of the party know more.
type Party interface {
	Visit(v *Visit)                   // runs a plan that only a deployment with the party has
	Idle() bool                       // reports whether nothing is under way between the service and the party
	Check(l *Load) (figures []string) // compares the party's records with the service's and with the load
}

// Deployment is a whole service: processes of each role, and servers that a test may break.
type Deployment struct {
	*Site
	times
	T        testing.TB         // the test that uses the deployment now
	owner    testing.TB         // the deployment lasts until this test ends
	cleanups *cleanups          // called when the deployment ends
	loads    int                // the number of loads that have begun
	load     *Load              // the last one
	Plans    []string           // of the visits of a load
	Kinds    []string           // of the tasks
	Party    Party              // nil: none
	redis    *devstack.Redis    // nil: shared, or the stand-in
	pair     *testenv.RedisPair // nil without needs.redisPair; its master is redis
	Postgres *devstack.Postgres // nil: shared
	standby  *devstack.Postgres // nil without needs.standby
	sweepers []*Member          // the reconcilers that stopSweeps has killed
	again    time.Duration      // from the last promotion, or restart of processes, until the service worked

	toRedis, toPostgres *Proxy // nil without needs.network

	// The test's own connections.
	DB  *sql.DB
	RDB *redis.Client

	mu        sync.Mutex
	processes []*Member
}

// Member is a process of a deployment.
type Member struct {
	*Process
	Role string
}

// queueKeys are the keys of one kind's queue in Redis.
type queueKeys struct {
	due, leased, dead, attempts, errors string

	marker string // if it is missing, Redis was wiped
}

// mostShards is the largest number of shards that a deployment has: those in a cluster.
const mostShards = 3

// keysOf returns the keys of a shard of a kind's queue.
func keysOf(kind string, shard int) queueKeys {
	prefix := fmt.Sprintf("delay:{%s:%d}:", kind, shard)
	return queueKeys{
		due: prefix + "due", leased: prefix + "leased", dead: prefix + "dead", attempts: prefix + "attempts",
		errors: prefix + "errors", marker: prefix + "marker",
	}
}

// RowTimeout is the timeout of a deployment's rows, and rowExtension the time by which their customers extend it.
const (
	RowTimeout   = 3 * time.Second
	rowExtension = 500 * time.Millisecond
)

// Deploy starts a deployment that lasts until the test ends.
func (s *Service) Deploy(t testing.TB, n Needs) *Deployment {
	t.Helper()
	return s.deployFor(t, t, n)
}

// deployFor starts a deployment for a test. It lasts until its owner ends, which is that test or a parent of it.
func (s *Service) deployFor(t, owner testing.TB, n Needs) *Deployment {
	t.Helper()
	NeedsProcesses(t)
	owner.TempDir() // so that the directories of the servers are removed after the servers have ended
	ends := new(cleanups)
	owner.Cleanup(ends.run)
	d := &Deployment{
		T: lasting{t, owner, ends}, owner: owner, cleanups: ends,
		times: times{Timeout: RowTimeout}, Plans: s.possiblePlans(),
		Kinds: []string{s.Kind},
	}
	redisURL, database := d.redisURL(n), d.postgresURL(n)
	ownDatabase, ownRedis := database, redisURL
	if d.standby != nil {
		ownDatabase = d.Postgres.URL() // promote connects to the standby
	}
	if d.pair != nil {
		ownRedis = d.redis.URL()
	}
	// The test's own connections do not go through the proxies.
	d.DB, d.RDB = OpenDatabase(d.T, ownDatabase), testenv.RedisClient(d.T, ownRedis)
	d.T.Cleanup(func() { d.RDB.Close() })
	if n.Network {
		d.toPostgres, database = proxied(d.T, database)
		d.toRedis, redisURL = proxied(d.T, redisURL)
	}
	env := append(slices.Clone(n.Env), envDatabaseConns+"=8")
	if s.Bounds != nil {
		env = append(env, s.Bounds.Env...)
	}
	d.Site = s.NewSiteAt(database, redisURL, env...)
	if d.Postgres != nil {
		d.Run(t, s.Migrate...)
		testenv.Must(t, s.removeConstraints(d.T.Context(), d.DB)) // the other databases are copies of one without them
	}
	d.recordEnds()
	if len(s.Extend) > 0 {
		d.Extension = rowExtension
	}
	start := n.Party
	if start == nil {
		start = s.Party
	}
	if start != nil {
		p, found := start(d) // may change the timeout
		d.Party, d.Env = p, append(d.Env, found...)
	}
	d.Env = append(d.Env, s.TimeoutVariable()+"="+d.Timeout.String())
	if len(s.Extend) > 0 {
		d.Env = append(d.Env, EnvPrefix+s.Extend[0]+"="+d.Extension.String(),
			EnvPrefix+s.Extend[1]+"="+strconv.Itoa(MaxExtensions))
	}
	if n.Pooler {
		config, err := os.ReadFile(filepath.Join(s.Module, "internal/postgres/pgbouncer.ini"))
		testenv.Must(t, err)
		d.Env = append(d.Env, EnvDatabaseURL+"="+testenv.PgBouncer(d.T, database, string(config))+
			"&default_query_exec_mode=cache_describe")
	}
	if s.Shared != nil {
		d.Exec(s.Shared.Stock)
	}
	processes := n.Processes
	if processes == nil {
		processes = []string{"api", "api", "worker", "worker", "relay", "reconciler", "reconciler"}
	}
	for _, role := range processes {
		d.Start(role)
	}
	d.use(t)
	if !isBroken() {
		testenv.Must(t, d.check(s))
	}
	return d
}

// lasting is a test that starts what lasts until another test ends, its owner, or until the deployment ends before.
type lasting struct {
	testing.TB
	owner    testing.TB
	cleanups *cleanups
}

// cleanups are functions to call when a deployment ends, the last one first.
type cleanups []func()

func (c *cleanups) run() {
	for len(*c) > 0 {
		last := (*c)[len(*c)-1]
		*c = (*c)[:len(*c)-1]
		last()
	}
}

func (l lasting) Cleanup(f func())         { *l.cleanups = append(*l.cleanups, f) }
func (l lasting) TempDir() string          { return l.owner.TempDir() }
func (l lasting) Context() context.Context { return l.owner.Context() }

// use makes the deployment report to a test.
func (d *Deployment) use(t testing.TB) {
	d.T, d.again = t, 0
	for _, m := range d.Running("") {
		m.t = t
	}
}

func (d *Deployment) postgresURL(n Needs) string {
	d.T.Helper()
	if n.Standby {
		d.Postgres, d.standby = testenv.PostgresPair(d.T, n.Postgres, n.PostgresEnv...)
		if n.Network {
			return d.Postgres.URL() // promote redirects the proxy to the standby
		}
		both, err := url.Parse(d.Postgres.URL())
		testenv.Must(d.T, err)
		both.Host += "," + testenv.HostOf(d.T, d.standby.URL())
		return both.String()
	}
	if n.Postgres == nil && n.PostgresEnv == nil {
		return testenv.Postgres(d.T)
	}
	d.Postgres = testenv.PostgresServer(d.T, n.Postgres, n.PostgresEnv...)
	return d.Postgres.URL()
}

func (d *Deployment) redisURL(n Needs) string {
	d.T.Helper()
	if n.RedisPair != nil {
		d.pair = n.RedisPair(d.T)
		d.redis = d.pair.Master
		return d.pair.URL
	}
	if n.Redis == nil && n.RedisEnv == nil {
		return testenv.Redis(d.T)
	}
	d.redis = testenv.RedisServerEnv(d.T, n.RedisEnv, n.Redis...)
	return d.redis.URL()
}

// proxied puts a proxy in front of the server of a URL, and returns the URL that leads through the proxy.
func proxied(t testing.TB, server string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	testenv.Must(t, err)
	p := NewProxy(t, u.Host)
	u.Host = p.Addr()
	return p, u.String()
}

// OpenDatabase returns a pool of connections to a database. It is closed when the test ends. A connection that a
// restart of the server has broken is replaced before its next use.
func OpenDatabase(t testing.TB, database string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	testenv.Must(t, err)
	always := func(context.Context, stdlib.ShouldPingParams) bool { return true }
	db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(always))
	t.Cleanup(func() { db.Close() })
	return db
}

// Promote makes the standby the primary, also for the proxy and for the test's own connections.
func (d *Deployment) Promote() {
	d.T.Helper()
	testenv.Must(d.T, d.standby.Promote(d.T.Context()))
	d.DB.Close()
	d.mu.Lock()
	d.DB = OpenDatabase(d.T, d.standby.URL())
	d.mu.Unlock()
	if d.toPostgres != nil {
		d.toPostgres.Redirect(testenv.HostOf(d.T, d.standby.URL()))
	}
}

// database returns the test's own connections, for customers who call while a primary is replaced.
func (d *Deployment) database() *sql.DB {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.DB
}

// rebuild makes the old primary a synchronous standby of the new one.
func (d *Deployment) rebuild() {
	d.T.Helper()
	testenv.Must(d.T, d.Postgres.Follow(d.T.Context(), d.standby))
	d.Postgres, d.standby = d.standby, d.Postgres
	testenv.Must(d.T, d.Postgres.AwaitStandby(d.T.Context()))
}

// replicate waits until the standby has all changes, also those that have not waited for it: a commit waits for it. A
// transaction that writes nothing would not wait.
func (d *Deployment) replicate() {
	d.T.Helper()
	d.Exec(`SELECT pg_logical_emit_message(true, '', '')`)
}

// Start starts one more process of a role.
func (d *Deployment) Start(role string) *Member {
	d.T.Helper()
	return d.startAt(d.Site, role)
}

// startAt is [Deployment.Start] for a process that may see another configuration than the others.
func (d *Deployment) startAt(s *Site, role string) *Member {
	d.T.Helper()
	m := &Member{s.Serve(lasting{d.T, d.owner, d.cleanups}, "--roles="+role), role}
	m.t = d.T
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = append(d.processes, m)
	return m
}

// Running returns the processes of a role, or of all roles if role is "".
func (d *Deployment) Running(role string) []*Member {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.processes), func(m *Member) bool { return role != "" && m.Role != role })
}

// Remove removes a process from the deployment: customers send it no more requests.
func (d *Deployment) Remove(m *Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = slices.DeleteFunc(d.processes, func(other *Member) bool { return other == m })
}

// Kill ends processes with SIGKILL.
func (d *Deployment) Kill(processes ...*Member) {
	for _, m := range processes {
		_ = m.Cmd.Process.Kill()
	}
	for _, m := range processes {
		<-m.ended
		d.Remove(m)
	}
}

// Replace starts one process for each killed process, with the same role.
func (d *Deployment) Replace(killed ...*Member) {
	d.T.Helper()
	for _, m := range killed {
		d.Start(m.Role)
	}
}

// stopSweeps kills the reconcilers, and resumeSweeps replaces them.
func (d *Deployment) stopSweeps() {
	d.sweepers = d.Running("reconciler")
	d.Kill(d.sweepers...)
}

func (d *Deployment) resumeSweeps() {
	d.T.Helper()
	d.Replace(d.sweepers...)
	d.sweepers = nil
}

// Sleep waits while a fault lasts and the customers continue.
func (d *Deployment) Sleep(duration time.Duration) {
	d.T.Helper()
	if !Sleep(d.T.Context(), duration) {
		d.T.Fatal("the test ended while a fault lasted")
	}
}

// Sleep waits, and reports whether the whole duration passed before ctx ended.
func Sleep(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Exec executes a statement.
func (d *Deployment) Exec(statement string, args ...any) {
	d.T.Helper()
	_, err := d.DB.ExecContext(d.T.Context(), statement, args...)
	testenv.Must(d.T, err)
}

// Number returns the number that a query selects.
func (d *Deployment) Number(query string, args ...any) (n float64) {
	d.T.Helper()
	testenv.Must(d.T, d.DB.QueryRowContext(d.T.Context(), query, args...).Scan(&n))
	return n
}

// rows counts the rows for which a condition holds, over the columns of service.rows.
func (d *Deployment) rows(condition string, args ...any) float64 {
	d.T.Helper()
	return d.Number(`SELECT count(*) FROM (`+d.Service.rows()+`) AS rows WHERE `+condition, args...)
}

// secret returns what confirms a row.
func (d *Deployment) secret(id string) string {
	d.T.Helper()
	secret, err := d.Service.secret(d.T.Context(), d.DB, id)
	testenv.Must(d.T, err)
	return secret
}

// leased counts the tasks on which workers have leases.
func (d *Deployment) leased() int64 {
	d.T.Helper()
	n, err := d.RDB.ZCard(d.T.Context(), d.Service.queue().leased).Result()
	testenv.Must(d.T, err)
	return n
}

// Lock executes a statement in a transaction and leaves the transaction open, so that its locks stay. The function
// release, or the end of the test, rolls the transaction back.
func (d *Deployment) Lock(statement string, args ...any) (tx *sql.Tx, release func()) {
	d.T.Helper()
	tx, err := d.DB.BeginTx(context.WithoutCancel(d.T.Context()), nil)
	testenv.Must(d.T, err)
	release = func() { _ = tx.Rollback() }
	d.T.Cleanup(release)
	_, err = tx.ExecContext(d.T.Context(), statement, args...)
	testenv.Must(d.T, err)
	return tx, release
}

// signal sends a signal to processes. It ignores processes that have ended.
func signal(t testing.TB, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("signal %v to %d: %v", sig, pid, err)
		}
	}
}

// suspend stops processes with SIGSTOP, which simulates a machine that hangs or a container that is paused. The
// function resume, or the end of the test, lets them continue.
func suspend(t testing.TB, pids ...int) (resume func()) {
	t.Helper()
	resume = sync.OnceFunc(func() { signal(t, syscall.SIGCONT, pids...) })
	t.Cleanup(resume) // a suspended process would ignore the signal to stop
	signal(t, syscall.SIGSTOP, pids...)
	return resume
}

// suspendPostgres suspends all processes of PostgreSQL. It suspends the postmaster first, because the postmaster
// starts the others.
func (d *Deployment) suspendPostgres() (resume func()) {
	d.T.Helper()
	if runtime.GOOS != "linux" {
		d.T.Skip("PostgreSQL's processes are found only on Linux, in /proc")
	}
	resumePostmaster := suspend(d.T, d.Postgres.Pid())
	resumeOthers := suspend(d.T, ChildrenOf(d.T, d.Postgres.Pid())...)
	return func() {
		resumeOthers()
		resumePostmaster()
	}
}
