package e2e

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// needs describes the servers and processes that a test needs.
type needs struct {
	postgres    map[string]string // a PostgreSQL server of its own with these settings; nil: as testenv.Postgres
	standby     bool              // a PostgreSQL server of its own, and a synchronous standby of it
	pooler      bool              // a PgBouncer in transaction mode in front of PostgreSQL
	redis       []string          // a redis-server of its own with these arguments; nil: as testenv.Redis
	alone       bool              // the processes have no Redis
	network     bool              // proxies in front of both servers
	postgresEnv []string          // the environment of a PostgreSQL server of its own
	redisEnv    []string          // the environment of a redis-server of its own
	processes   []string          // the role of each process; nil: two of each role, and one relay
	env         []string          // additional environment variables of the processes
	keep        time.Duration     // for which ended items are kept; 0: for ever

	// redisPair starts a Redis of its own that fails over. nil: as redis says.
	redisPair func(t testing.TB) *testenv.RedisPair

	// front starts a load balancer in front of the APIs, and returns its URL. nil: customers send requests to the APIs.
	front func(d *deployment) (url string)

	// party starts the second party, as [service.party] does. nil: that of the service.
	party func(d *deployment) (party, []string)
}

// party is a second party that may confirm items, as a payment provider does. Only the tests of the party know more.
type party interface {
	visit(v *visit)                   // runs a plan that only a deployment with the party has
	isIdle() bool                     // reports whether nothing is under way between the service and the party
	check(l *load) (figures []string) // compares the party's records with the service's and with the load
}

// deployment is a whole service: processes of each role, and servers that a test may break.
type deployment struct {
	*site
	times
	service  *service
	t        testing.TB         // the test that uses the deployment now
	owner    testing.TB         // the deployment lasts until this test ends
	loads    int                // the number of loads that have begun
	front    string             // the URL of the load balancer; "": there is none
	plans    []string           // of the visits of a load
	all      string             // selects all items, also those that were removed, with the columns of service.items
	kinds    []string           // of the tasks
	party    party              // nil: none
	keeps    time.Duration      // for which ended items are kept, and removed items are then recorded; 0: for ever
	redis    *devstack.Redis    // nil: shared, or the stand-in
	pair     *testenv.RedisPair // nil without needs.redisPair; its master is redis
	postgres *devstack.Postgres // nil: shared
	standby  *devstack.Postgres // nil without needs.standby
	again    time.Duration      // from the last promotion, or restart of processes, until the service worked

	toRedis, toPostgres *proxy // nil without needs.network

	// The test's own connections, which do not go through the proxies.
	db  *sql.DB
	rdb *redis.Client

	mu        sync.Mutex
	processes []*member
}

// member is a process of a deployment.
type member struct {
	*process
	role string
}

// queueKeys are the keys of one kind's queue in Redis.
type queueKeys struct {
	due, leased, dead, attempts, errors, owners string
	marker                                      string // the restore marker: if it is missing, Redis was wiped
}

// keysOf returns the keys of a kind's queue.
func keysOf(kind string) queueKeys {
	prefix := "delay:{" + kind + ":0}:"
	return queueKeys{
		due: prefix + "due", leased: prefix + "leased", dead: prefix + "dead", attempts: prefix + "attempts", errors: prefix + "errors",
		owners: prefix + "owners", marker: prefix + "marker",
	}
}

// itemTimeout is the timeout of a deployment's items.
const itemTimeout = 3 * time.Second

// deploy starts a deployment that lasts until the test ends.
func (s *service) deploy(t testing.TB, n needs) *deployment {
	t.Helper()
	return s.deployFor(t, t, n)
}

// deployFor starts a deployment for a test. It lasts until its owner ends, which is that test or a parent of it.
func (s *service) deployFor(t, owner testing.TB, n needs) *deployment {
	t.Helper()
	needsProcesses(t)
	d := &deployment{
		service: s, t: lasting{t, owner}, owner: owner, times: times{timeout: itemTimeout}, plans: s.possiblePlans(),
		kinds: []string{s.kind}, all: s.items, keeps: n.keep,
	}
	redisURL, database := d.redisURL(n), d.postgresURL(n)
	ownDatabase, ownRedis := database, redisURL
	if d.standby != nil {
		ownDatabase = d.postgres.URL() // promote connects to the standby
	}
	if d.pair != nil {
		ownRedis = d.redis.URL()
	}
	d.connect(ownDatabase, ownRedis)
	if n.network {
		d.toPostgres, database = proxied(d.t, database)
		d.toRedis, redisURL = proxied(d.t, redisURL)
	}
	if n.alone {
		redisURL = noRedis
	}
	env := append(slices.Clone(n.env), envDatabaseConns+"=8")
	if n.keep > 0 {
		env = append(env, envPrefix+s.keep+"="+n.keep.String())
	}
	if s.bounds != nil {
		env = append(env, s.bounds.env...)
	}
	d.site = s.newSiteAt(database, redisURL, env...)
	if d.postgres != nil {
		d.run(t, s.migrate...)
	}
	if n.keep > 0 {
		d.recordRemoved()
	}
	start := n.party
	if start == nil {
		start = s.party
	}
	if start != nil {
		p, found := start(d) // may change the timeout
		d.party, d.env = p, append(d.env, found...)
	}
	d.env = append(d.env, s.timeoutVariable()+"="+d.timeout.String())
	if n.pooler {
		config, err := os.ReadFile(s.path("internal/postgres/pgbouncer.ini"))
		testenv.Must(t, err)
		d.env = append(d.env, envDatabaseURL+"="+testenv.PgBouncer(d.t, database, string(config))+"&default_query_exec_mode=cache_describe")
	}
	if s.resources != nil {
		d.exec(s.resources.stock)
	}
	processes := n.processes
	if processes == nil {
		processes = []string{"api", "api", "worker", "worker", "relay", "reconciler", "reconciler"}
	}
	for _, role := range processes {
		d.start(role)
	}
	d.use(t)
	if n.front != nil {
		d.front = n.front(d)
	}
	return d
}

// recordRemoved makes the database record items that are removed, so that a load can compare them with what their customers saw.
func (d *deployment) recordRemoved() {
	d.t.Helper()
	d.exec(`CREATE TABLE removed_items AS SELECT * FROM (` + d.service.items + `) AS items WITH NO DATA`)
	d.exec(`CREATE INDEX ON removed_items (id)`)
	d.exec(`CREATE FUNCTION record_item() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO removed_items SELECT * FROM (` + d.service.items + `) AS items WHERE id = OLD.id;
			RETURN OLD;
		END $$;
		CREATE TRIGGER record_item BEFORE DELETE ON ` + d.service.table + ` FOR EACH ROW EXECUTE FUNCTION record_item()`)
	d.all += ` UNION ALL SELECT * FROM removed_items`
}

// lasting is a test that starts what lasts until another test ends, its owner.
type lasting struct {
	testing.TB
	owner testing.TB
}

func (l lasting) Cleanup(f func())         { l.owner.Cleanup(f) }
func (l lasting) TempDir() string          { return l.owner.TempDir() }
func (l lasting) Context() context.Context { return l.owner.Context() }

// use makes the deployment report to a test.
func (d *deployment) use(t testing.TB) {
	d.t, d.again = t, 0
	for _, m := range d.running("") {
		m.t = t
	}
}

func (d *deployment) postgresURL(n needs) string {
	d.t.Helper()
	if n.standby {
		d.postgres, d.standby = testenv.PostgresPair(d.t, n.postgresEnv, n.postgres)
		if n.network {
			return d.postgres.URL() // promote redirects the proxy to the standby
		}
		both, err := url.Parse(d.postgres.URL())
		testenv.Must(d.t, err)
		both.Host += "," + hostOf(d.t, d.standby.URL())
		return both.String()
	}
	if n.postgres == nil && n.postgresEnv == nil {
		return testenv.Postgres(d.t)
	}
	d.postgres = testenv.PostgresServerEnv(d.t, n.postgresEnv, n.postgres)
	return d.postgres.URL()
}

func (d *deployment) redisURL(n needs) string {
	d.t.Helper()
	if n.redisPair != nil {
		d.pair = n.redisPair(d.t)
		d.redis = d.pair.Master
		return d.pair.URL
	}
	if n.redis == nil && n.redisEnv == nil {
		return testenv.Redis(d.t)
	}
	d.redis = testenv.RedisServerEnv(d.t, n.redisEnv, n.redis...)
	return d.redis.URL()
}

// proxied puts a proxy in front of the server of a URL, and returns the URL that leads through the proxy.
func proxied(t testing.TB, server string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	testenv.Must(t, err)
	p := newProxy(t, u.Host)
	u.Host = p.addr()
	return p, u.String()
}

// connect opens the test's own connections.
func (d *deployment) connect(database, redisURL string) {
	d.db = openDatabase(d.t, database)
	d.rdb = redisClient(d.t, redisURL)
	d.t.Cleanup(func() { d.rdb.Close() })
}

// openDatabase returns a pool of connections to a database. It is closed when the test ends. A connection that a restart of the server
// has broken is replaced before its next use.
func openDatabase(t testing.TB, database string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	testenv.Must(t, err)
	always := func(context.Context, stdlib.ShouldPingParams) bool { return true }
	db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(always))
	t.Cleanup(func() { db.Close() })
	return db
}

// promote makes the standby the primary, also for the proxy and for the test's own connections.
func (d *deployment) promote() {
	d.t.Helper()
	testenv.Must(d.t, d.standby.Promote(d.t.Context()))
	d.db.Close()
	d.db = openDatabase(d.t, d.standby.URL())
	if d.toPostgres != nil {
		d.toPostgres.Redirect(hostOf(d.t, d.standby.URL()))
	}
}

// rebuild makes the old primary a synchronous standby of the new one.
func (d *deployment) rebuild() {
	d.t.Helper()
	testenv.Must(d.t, d.postgres.Follow(d.t.Context(), d.standby))
	d.postgres, d.standby = d.standby, d.postgres
	testenv.Must(d.t, d.postgres.AwaitStandby(d.t.Context()))
}

// replicate waits until the standby has all changes, also those that have not waited for it: a commit waits for it. A
// transaction that writes nothing would not wait.
func (d *deployment) replicate() {
	d.t.Helper()
	d.exec(`SELECT pg_logical_emit_message(true, '', '')`)
}

// hostOf returns the host and the port of the server of a URL.
func hostOf(t testing.TB, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	testenv.Must(t, err)
	return u.Host
}

func redisClient(t testing.TB, redisURL string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(redisURL)
	testenv.Must(t, err)
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o)
}

// start starts one more process of a role.
func (d *deployment) start(role string) *member {
	d.t.Helper()
	m := &member{d.serve(lasting{d.t, d.owner}, "--roles="+role), role}
	m.t = d.t
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = append(d.processes, m)
	return m
}

// running returns the processes of a role, or of all roles if role is "".
func (d *deployment) running(role string) []*member {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.processes), func(m *member) bool { return role != "" && m.role != role })
}

// remove removes a process from the deployment: customers send it no more requests.
func (d *deployment) remove(m *member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = slices.DeleteFunc(d.processes, func(other *member) bool { return other == m })
}

// kill ends processes with SIGKILL.
func (d *deployment) kill(processes ...*member) {
	for _, m := range processes {
		_ = m.cmd.Process.Kill()
	}
	for _, m := range processes {
		<-m.ended
		d.remove(m)
	}
}

// replace starts one process for each killed process, with the same role.
func (d *deployment) replace(killed ...*member) {
	d.t.Helper()
	for _, m := range killed {
		d.start(m.role)
	}
}

// sleep waits while a fault lasts and the customers continue.
func (d *deployment) sleep(duration time.Duration) {
	d.t.Helper()
	if !sleep(d.t.Context(), duration) {
		d.t.Fatal("the test ended while a fault lasted")
	}
}

// sleep waits, and reports whether the whole duration passed before ctx ended.
func sleep(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// exec executes a statement.
func (d *deployment) exec(statement string, args ...any) {
	d.t.Helper()
	_, err := d.db.ExecContext(d.t.Context(), statement, args...)
	testenv.Must(d.t, err)
}

// number returns the number that a query selects.
func (d *deployment) number(query string, args ...any) (n float64) {
	d.t.Helper()
	testenv.Must(d.t, d.db.QueryRowContext(d.t.Context(), query, args...).Scan(&n))
	return n
}

// items counts the items for which a condition holds, over the columns of service.items. Items that were removed count, too.
func (d *deployment) items(condition string, args ...any) float64 {
	d.t.Helper()
	return d.number(`SELECT count(*) FROM (`+d.all+`) AS items WHERE `+condition, args...)
}

// leased counts the tasks on which workers have leases.
func (d *deployment) leased() int64 {
	d.t.Helper()
	n, err := d.rdb.ZCard(d.t.Context(), d.service.queue().leased).Result()
	testenv.Must(d.t, err)
	return n
}

// lock executes a statement in a transaction and leaves the transaction open, so that its locks stay. The function
// release, or the end of the test, rolls the transaction back.
func (d *deployment) lock(statement string, args ...any) (tx *sql.Tx, release func()) {
	d.t.Helper()
	tx, err := d.db.BeginTx(context.WithoutCancel(d.t.Context()), nil)
	testenv.Must(d.t, err)
	release = func() { _ = tx.Rollback() }
	d.t.Cleanup(release)
	_, err = tx.ExecContext(d.t.Context(), statement, args...)
	testenv.Must(d.t, err)
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

// suspendPostgres suspends all processes of PostgreSQL. It suspends the postmaster first, because the postmaster starts
// the others.
func (d *deployment) suspendPostgres() (resume func()) {
	d.t.Helper()
	if runtime.GOOS != "linux" {
		d.t.Skip("PostgreSQL's processes are found only on Linux, in /proc")
	}
	resumePostmaster := suspend(d.t, d.postgres.Pid())
	resumeOthers := suspend(d.t, childrenOf(d.t, d.postgres.Pid())...)
	return func() {
		resumeOthers()
		resumePostmaster()
	}
}
