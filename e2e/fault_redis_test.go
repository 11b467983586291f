package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

// TestRedisFaults: without Redis orders are taken as ever, none is refused, and what is due is cancelled by
// the reconciler within its interval, 2 s here, and the grace of 2 s. The bounds leave a loaded machine as much again.
func TestRedisFaults(t *testing.T) {
	by := bound{late: 8 * time.Second, answer: 2 * time.Second}
	runFaults(t, []fault{
		{name: "none", bound: bound{late: 2 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.hold(2 * time.Second)
		}},
		{name: "restarted empty", bound: by, inject: func(d *deployment) {
			must(d.t, d.redis.Kill())
			d.hold(4 * time.Second)
			must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "restarted with its AOF", bound: by, needs: needs{redis: []string{"--appendonly", "yes"}}, inject: func(d *deployment) {
			must(d.t, d.redis.Kill())
			d.hold(time.Second)
			must(d.t, d.redis.Restart(d.t.Context()))
		}},
		{name: "wiped", bound: by, inject: func(d *deployment) {
			for range 3 {
				must(d.t, d.rdb.FlushAll(d.t.Context()).Err())
				d.hold(time.Second)
			}
		}},
		{name: "hung", bound: by, inject: func(d *deployment) {
			thaw := frozen(d.t, d.redis.Pid())
			d.hold(10 * time.Second)
			thaw()
		}},
		{name: "read-only", bound: by, inject: func(d *deployment) {
			must(d.t, d.rdb.SlaveOf(d.t.Context(), "127.0.0.1", "1").Err()) // a master that is not there
			d.hold(4 * time.Second)
			must(d.t, d.rdb.SlaveOf(d.t.Context(), "NO", "ONE").Err())
		}},
		{name: "out of memory", bound: by, inject: func(d *deployment) {
			limit := func(bytes string) { must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory", bytes).Err()) }
			must(d.t, d.rdb.ConfigSet(d.t.Context(), "maxmemory-policy", "noeviction").Err())
			limit("1")
			d.hold(4 * time.Second)
			limit("0")
		}},
		{name: "failover that loses writes", bound: by, needs: needs{network: true}, inject: failOver},
	})
}

// failOver promotes a replica that was cut off a while ago: what the master acknowledged since is lost.
func failOver(d *deployment) {
	host, port, _ := strings.Cut(d.redis.Addr(), ":")
	heir := testenv.RedisServer(d.t, "--replicaof", host+" "+port)
	rdb := redisClient(heir.Addr())
	defer rdb.Close()
	eventually(d.t, "a replica in step", func() bool {
		info, err := rdb.Info(d.t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	must(d.t, rdb.SlaveOf(d.t.Context(), "NO", "ONE").Err())
	d.hold(2 * time.Second)
	if had, has := size(d, d.rdb), size(d, rdb); had == has {
		d.t.Logf("both have %d tasks", had)
	}
	d.toRedis.Redirect(heir.Addr())
	d.rdb.Close()
	d.rdb = redisClient(heir.Addr())
	d.hold(2 * time.Second)
}

func size(d *deployment, rdb *redis.Client) int64 {
	d.t.Helper()
	n, err := rdb.ZCard(d.t.Context(), dueKey).Result()
	must(d.t, err)
	return n
}

// TestPostgresFaults: without PostgreSQL nothing is taken and nothing is due. Customers are refused, repeat with
// the same key, and get one order.
func TestPostgresFaults(t *testing.T) {
	own := needs{postgres: map[string]string{"max_connections": "60", "deadlock_timeout": "100ms"}}
	runFaults(t, []fault{
		{name: "restarted", needs: own, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, refused: true}, inject: func(d *deployment) {
			must(d.t, d.postgres.Stop())
			d.hold(2 * time.Second)
			must(d.t, d.postgres.Restart(d.t.Context()))
		}},
		// A statement gives up after 8 s, with its request.
		{name: "hung", needs: own, bound: bound{late: 15 * time.Second, answer: 12 * time.Second, refused: true}, inject: func(d *deployment) {
			thaw := frozen(d.t, append(childrenOf(d.t, d.postgres.Pid()), d.postgres.Pid())...)
			d.hold(6 * time.Second)
			thaw()
		}},
		{name: "out of connections", needs: own, bound: bound{late: 10 * time.Second, answer: 10 * time.Second, refused: true}, inject: takeConnections},
		// Who waits for a lock gives up after 3 s; the worker's batch is tried again within 1.5 s.
		{name: "product locked", bound: bound{late: 15 * time.Second, answer: 8 * time.Second, refused: true}, inject: func(d *deployment) {
			_, release := d.transaction(`SELECT FROM products WHERE id = $1 FOR UPDATE`, beans)
			d.hold(5 * time.Second)
			release()
		}},
		{name: "orders locked", bound: bound{late: 8 * time.Second, answer: 6 * time.Second, refused: true}, inject: func(d *deployment) {
			_, release := d.transaction(`SELECT FROM orders WHERE status = 'pending' FOR UPDATE`)
			d.hold(5 * time.Second)
			release()
		}},
		{name: "deadlocks", needs: own, bound: bound{late: 8 * time.Second, answer: 6 * time.Second, refused: true}, inject: deadlock},
	})
}

// takeConnections leaves the service none: those that it has are ended, and every slot is taken.
func takeConnections(d *deployment) {
	taken := 0
	for range 100 {
		conn, err := d.db.Conn(d.t.Context())
		if err == nil {
			defer conn.Close()
			taken++
			continue
		}
		if !strings.Contains(err.Error(), "53300") { // too_many_connections
			d.t.Fatal(err)
		}
		if taken == 60 {
			break
		}
	}
	d.hold(3 * time.Second)
}

// deadlock locks products in the wrong order, again and again.
func deadlock(d *deployment) {
	began := time.Now()
	for time.Since(began) < 4*time.Second {
		tx, release := d.transaction(`SELECT FROM products WHERE id = $1 FOR UPDATE`, grinder)
		d.hold(20 * time.Millisecond)
		_, _ = tx.ExecContext(d.t.Context(), `SELECT FROM products WHERE id = $1 FOR UPDATE`, beans) // one of the two is rolled back
		release()
	}
	if n := d.number(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n == 0 {
		d.t.Error("no deadlocks")
	}
}

// TestNetworkFaults: the ways to Redis and to PostgreSQL are slow, cut, or half-open.
func TestNetworkFaults(t *testing.T) {
	between := needs{network: true}
	runFaults(t, []fault{
		{name: "Redis slow", needs: between, bound: bound{late: 8 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.Slow(60 * time.Millisecond) // a round trip is longer than the budget to publish
			d.hold(5 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "Redis cut off", needs: between, bound: bound{late: 8 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.Cut()
			d.hold(4 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "Redis half-open", needs: between, bound: bound{late: 10 * time.Second, answer: 2 * time.Second}, inject: func(d *deployment) {
			d.toRedis.HalfOpen()
			d.hold(4 * time.Second)
			d.toRedis.Heal()
		}},
		{name: "PostgreSQL slow", needs: between, bound: bound{late: 8 * time.Second, answer: 5 * time.Second}, inject: func(d *deployment) {
			d.toPostgres.Slow(30 * time.Millisecond)
			d.hold(5 * time.Second)
			d.toPostgres.Heal()
		}},
		{name: "PostgreSQL cut off", needs: between, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, refused: true}, inject: func(d *deployment) {
			d.toPostgres.Cut()
			d.hold(3 * time.Second)
			d.toPostgres.Heal()
		}},
		{name: "PostgreSQL half-open", needs: between, bound: bound{late: 20 * time.Second, answer: 12 * time.Second, refused: true}, inject: func(d *deployment) {
			d.toPostgres.HalfOpen()
			d.hold(5 * time.Second)
			d.toPostgres.Heal()
		}},
	})
}

// TestProcessFaults kills and stops the service's own processes at their worst moments.
func TestProcessFaults(t *testing.T) {
	soon := bound{late: 8 * time.Second, answer: 3 * time.Second, refused: true}
	runFaults(t, []fault{
		{name: "API killed between commit and ZADD", bound: soon, inject: func(d *deployment) {
			thaw := frozen(d.t, d.redis.Pid()) // a publish takes 100 ms now
			eventually(d.t, "an order that Redis does not have", func() bool { return d.number(`SELECT count(*) FROM outbox`) > 0 })
			d.restart(d.all("api"))
			thaw()
		}},
		{name: "worker killed with leases", bound: soon, inject: func(d *deployment) {
			release := d.workersBusy()
			workers := d.all("worker")
			d.kill(workers...)
			release()
			if d.leased() == 0 {
				d.t.Error("the workers held no lease")
			}
			d.replace(workers...)
		}},
		{name: "worker slower than its lease", bound: soon, inject: func(d *deployment) {
			release := d.workersBusy()
			slow := d.all("worker")
			thaw := frozen(d.t, pids(slow)...)
			release()
			d.start("worker")
			d.hold(11 * time.Second) // the lease is 10 s
			thaw()
			eventually(d.t, "a worker that finds its lease gone", func() bool {
				return strings.Contains(slow[0].text()+slow[1].text(), "leases ran out")
			})
		}},
		{name: "relay killed in mid-batch", bound: soon, inject: func(d *deployment) {
			thaw := frozen(d.t, d.redis.Pid())
			eventually(d.t, "a relay that waits for Redis, with rows in hand", func() bool {
				return d.number(`SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND state = 'idle in transaction' AND query LIKE '%DELETE FROM outbox%'`) > 0
			})
			relays := d.all("relay")
			d.kill(relays...)
			thaw()
			d.replace(relays...)
		}},
		{name: "everything killed at once", needs: needs{postgres: map[string]string{}}, bound: soon, inject: func(d *deployment) {
			all := d.all("")
			d.kill(all...)
			must(d.t, d.redis.Kill())
			must(d.t, d.postgres.Stop())
			must(d.t, d.postgres.Restart(d.t.Context()))
			must(d.t, d.redis.Restart(d.t.Context()))
			d.replace(all...)
		}},
		{name: "two reconcilers alone", bound: soon, needs: needs{processes: []string{"api", "relay", "reconciler", "reconciler"}}, inject: func(d *deployment) {
			d.hold(4 * time.Second)
		}},
		{name: "handler that always fails", bound: bound{late: time.Minute, answer: 3 * time.Second}, inject: failCancellation},
	})
}

func pids(processes []*running) (pids []int) {
	for _, r := range processes {
		pids = append(pids, r.cmd.Process.Pid)
	}
	return pids
}

// restart kills processes and starts others in their place.
func (d *deployment) restart(processes []*running) {
	d.t.Helper()
	d.kill(processes...)
	d.replace(processes...)
}

// workersBusy waits until workers hold leases, and keeps them at it until released.
func (d *deployment) workersBusy() (release func()) {
	d.t.Helper()
	eventually(d.t, "orders that time out", func() bool {
		return d.number(`SELECT count(*) FROM orders WHERE cancel_reason = 'timeout'`) > 0
	})
	_, release = d.transaction(`SELECT FROM products FOR UPDATE`)
	eventually(d.t, "leases", func() bool { return d.leased() > 0 })
	return release
}

// failCancellation has the database refuse one order's cancellation. The others are not kept from theirs; the
// task becomes a dead letter, which is seen, and redriven once the cause is mended.
func failCancellation(d *deployment) {
	c, ops := d.all("api")[0].signUp(), d.all("api")[0].operator()
	poison := c.place().ID
	d.exec(`UPDATE orders SET idempotency_key = 'poison', fingerprint = '' WHERE id = $1`, poison)
	d.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	d.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW WHEN (NEW.id = '` + poison + `') EXECUTE FUNCTION refuse()`)
	// Ten attempts take minutes: nine are behind it.
	must(d.t, d.rdb.HSet(d.t.Context(), attemptsKey, poison, strconv.Itoa(9)).Err())
	eventually(d.t, "a dead letter", func() bool {
		letters := into[struct{ Items []struct{ ID, Error string } }](d.t, ops.get("/ops/api/dead-letters")).Items
		return len(letters) == 1 && letters[0].ID == poison && strings.Contains(letters[0].Error, "refused")
	})
	d.hold(2 * time.Second)
	d.exec(`DROP TRIGGER refuse ON orders`)
	ops.post(204, "/ops/api/dead-letters/order.cancel/"+poison+"/redrive")
	eventually(d.t, "its order cancelled", func() bool { return c.order(poison).Status == "cancelled" })
	if n := d.number(`SELECT count(*) FROM orders WHERE id <> $1 AND cancelled_at > expires_at + interval '5 s'`, poison); n > 0 {
		d.t.Errorf("%v other orders had to wait for it", n)
	}
}
