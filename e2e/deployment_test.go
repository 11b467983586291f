package e2e

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// needs says what a deployment has for itself.
type needs struct {
	postgres    map[string]string // a PostgreSQL server with these settings; nil: a database on the shared one
	redis       []string          // a redis-server with these arguments; nil: a database on the shared one, or its stand-in
	network     bool              // proxies before both servers
	postgresEnv []string
	redisEnv    []string
	processes   []string // roles of each process; nil: two of each, and one relay
	env         []string // of the processes
}

// deployment is a whole shop: processes of each role, with servers that a test may break.
type deployment struct {
	*site
	t        *testing.T
	timeout  time.Duration      // of an order
	redis    *devstack.Redis    // nil: shared, or a stand-in
	postgres *devstack.Postgres // nil: shared

	// The network; nil without proxies.
	toRedis, toPostgres *proxy

	// The test's own ways to the servers, past the network.
	db  *sql.DB
	rdb *redis.Client

	mu        sync.Mutex
	processes []*running
}

// running is a process of a deployment.
type running struct {
	*process
	role string
}

// Where the tasks are in Redis.
const (
	dueKey      = "delay:{order.cancel:0}:due"
	leasedKey   = "delay:{order.cancel:0}:leased"
	deadKey     = "delay:{order.cancel:0}:dead"
	attemptsKey = "delay:{order.cancel:0}:attempts"
	errorsKey   = "delay:{order.cancel:0}:errors"
	sentinelKey = "delay:{order.cancel:0}:sentinel"
)

const (
	orderTimeout = 3 * time.Second
	// supply is more than any load takes, but of the scarce product.
	supply = 1_000_000
)

func deploy(t *testing.T, n needs) *deployment {
	t.Helper()
	needsProcesses(t)
	d := &deployment{t: t, timeout: orderTimeout}
	redisURL, database := d.redisURL(n), d.postgresURL(n)
	d.connect(database, redisURL)
	if n.network {
		d.toPostgres, database = proxied(t, database)
		d.toRedis, redisURL = proxied(t, redisURL)
	}
	d.site = newSiteAt(t, database, redisURL, append(n.env, "SHOP_ORDER_TIMEOUT="+d.timeout.String(), "SHOP_DATABASE_CONNS=8")...)
	d.exec(`UPDATE products SET supply = $1, available = $1 WHERE id <> $2`, supply, course)
	processes := n.processes
	if processes == nil {
		processes = []string{"api", "api", "worker", "worker", "relay", "reconciler", "reconciler"}
	}
	for _, role := range processes {
		d.start(role)
	}
	return d
}

func (d *deployment) postgresURL(n needs) string {
	d.t.Helper()
	if n.postgres == nil && n.postgresEnv == nil {
		return testenv.Postgres(d.t)
	}
	d.postgres = testenv.PostgresServerEnv(d.t, n.postgresEnv, n.postgres)
	return d.postgres.URL()
}

func (d *deployment) redisURL(n needs) string {
	d.t.Helper()
	if n.redis == nil && n.redisEnv == nil {
		return testenv.Redis(d.t)
	}
	d.redis = testenv.RedisServerEnv(d.t, n.redisEnv, n.redis...)
	return d.redis.URL()
}

// proxied puts a proxy before the server of a URL and returns the URL that leads through it.
func proxied(t *testing.T, server string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	must(t, err)
	p := newProxy(t, u.Host)
	u.Host = p.addr()
	return p, u.String()
}

// connect opens the test's own connections.
func (d *deployment) connect(database, redisURL string) {
	var err error
	d.db, err = sql.Open("pgx", database)
	must(d.t, err)
	d.db.SetMaxIdleConns(-1) // none outlives its statement: a server that was restarted is no surprise
	d.rdb = redisClient(d.t, redisURL)
	d.t.Cleanup(func() {
		d.db.Close()
		d.rdb.Close()
	})
}

func redisClient(t testing.TB, redisURL string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(redisURL)
	must(t, err)
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o)
}

func (d *deployment) start(role string) *running {
	d.t.Helper()
	r := &running{d.serve(d.t, "--roles="+role), role}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = append(d.processes, r)
	return r
}

// all returns the processes of a role, all of them if it is "".
func (d *deployment) all(role string) []*running {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.processes), func(r *running) bool { return role != "" && r.role != role })
}

// remove takes a process out of the deployment, and out of the customers' way.
func (d *deployment) remove(r *running) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = slices.DeleteFunc(d.processes, func(other *running) bool { return other == r })
}

// kill ends processes with SIGKILL.
func (d *deployment) kill(processes ...*running) {
	for _, r := range processes {
		_ = r.cmd.Process.Kill()
	}
	for _, r := range processes {
		<-r.ended
		d.remove(r)
	}
}

// replace starts processes of the same roles as those that were killed.
func (d *deployment) replace(killed ...*running) {
	d.t.Helper()
	for _, r := range killed {
		d.start(r.role)
	}
}

// hold lets a fault last, with the customers at work.
func (d *deployment) hold(long time.Duration) {
	d.t.Helper()
	if !pause(d.t.Context(), long) {
		d.t.Fatal("the test ends")
	}
}

// pause waits, and tells whether ctx let it.
func pause(ctx context.Context, long time.Duration) bool {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *deployment) exec(statement string, args ...any) {
	d.t.Helper()
	_, err := d.db.ExecContext(d.t.Context(), statement, args...)
	must(d.t, err)
}

// number asks the database for a number.
func (d *deployment) number(query string, args ...any) (n float64) {
	d.t.Helper()
	must(d.t, d.db.QueryRowContext(d.t.Context(), query, args...).Scan(&n))
	return n
}

func (d *deployment) leased() int64 {
	d.t.Helper()
	n, err := d.rdb.ZCard(d.t.Context(), leasedKey).Result()
	must(d.t, err)
	return n
}

// transaction begins one that the test holds open; it is rolled back with release, or at the test's end.
func (d *deployment) transaction(statement string, args ...any) (tx *sql.Tx, release func()) {
	d.t.Helper()
	tx, err := d.db.BeginTx(context.WithoutCancel(d.t.Context()), nil)
	must(d.t, err)
	release = func() { _ = tx.Rollback() }
	d.t.Cleanup(release)
	_, err = tx.ExecContext(d.t.Context(), statement, args...)
	must(d.t, err)
	return tx, release
}

// signal sends a signal to processes; those that are gone need none.
func signal(t testing.TB, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("signal %v to %d: %v", sig, pid, err)
		}
	}
}

// frozen stops processes with SIGSTOP, as a hung machine or a paused container does, and returns how to let
// them go on.
func frozen(t testing.TB, pids ...int) (thaw func()) {
	t.Helper()
	thaw = sync.OnceFunc(func() { signal(t, syscall.SIGCONT, pids...) })
	t.Cleanup(thaw) // what is stopped does not stop
	signal(t, syscall.SIGSTOP, pids...)
	return thaw
}

// freezePostgres freezes all of PostgreSQL's processes, the one that starts the others first.
func (d *deployment) freezePostgres() (thaw func()) {
	d.t.Helper()
	if runtime.GOOS != "linux" {
		d.t.Skip("only Linux tells what PostgreSQL's processes are")
	}
	thawMain := frozen(d.t, d.postgres.Pid())
	thawOthers := frozen(d.t, childrenOf(d.t, d.postgres.Pid())...)
	return func() {
		thawOthers()
		thawMain()
	}
}
