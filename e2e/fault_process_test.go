package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestProcessFaults kills and stops the service's own processes at their worst moments.
func TestProcessFaults(t *testing.T) {
	soon := bound{late: 8 * time.Second, answer: 3 * time.Second, refused: true}
	own := needs{redis: []string{}}
	runFaults(t, []fault{
		{name: "API killed between commit and ZADD", needs: own, bound: soon, inject: func(d *deployment) {
			thaw := frozen(d.t, d.redis.Pid()) // a publish takes 100 ms now
			eventually(d.t, "an order that Redis does not have", func() bool { return d.number(`SELECT count(*) FROM outbox`) > 0 })
			apis := d.all("api")
			d.kill(apis...)
			if d.number(`SELECT count(*) FROM outbox`) == 0 {
				d.t.Error("Redis has every order")
			}
			thaw()
			d.replace(apis...)
		}},
		{name: "worker killed with leases", bound: soon, inject: func(d *deployment) {
			release := d.workersBusy()
			workers := d.all("worker")
			d.freezeWithLeases(workers)
			d.kill(workers...)
			// Their statements, too: else PostgreSQL would bring them to their ends.
			d.exec(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE ` + cancelling)
			release()
			if d.leased() == 0 {
				d.t.Error("the workers held no lease")
			}
			d.replace(workers...)
		}},
		{name: "worker slower than its lease", bound: soon, inject: func(d *deployment) {
			release := d.workersBusy()
			slow := d.all("worker")
			thaw := d.freezeWithLeases(slow)
			release()
			d.start("worker")
			d.hold(11 * time.Second) // the lease is 10 s
			thaw()
			eventually(d.t, "a worker that finds its lease gone", func() bool {
				return strings.Contains(slow[0].text()+slow[1].text(), "leases ran out")
			})
		}},
		{name: "relay killed in mid-batch", needs: own, bound: soon, inject: func(d *deployment) {
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
		{name: "everything killed at once", needs: needs{postgres: map[string]string{}, redis: []string{}}, bound: soon, inject: func(d *deployment) {
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
			d.start("worker") // which has nothing left to do
		}},
		{name: "rolling restart to a newer schema", bound: bound{late: 3 * time.Second, answer: 3 * time.Second}, needs: needs{env: []string{"SHOP_DRAIN=1s"}}, inject: rollOut},
		{name: "handler that always fails", bound: bound{late: time.Minute, answer: 3 * time.Second}, inject: failCancellation},
	})
}

func pids(processes []*running) (pids []int) {
	for _, r := range processes {
		pids = append(pids, r.cmd.Process.Pid)
	}
	return pids
}

// cancelling are the sessions that wait to cancel what is due.
const cancelling = `datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%SKIP LOCKED%'`

// workersBusy waits until workers hold leases, and keeps them at it until released.
func (d *deployment) workersBusy() (release func()) {
	d.t.Helper()
	eventually(d.t, "orders that time out", func() bool {
		return d.number(`SELECT count(*) FROM orders WHERE cancel_reason = 'timeout'`) > 0
	})
	_, release = d.transaction(`SELECT FROM products FOR UPDATE`)
	eventually(d.t, "leases, and a statement that waits", func() bool {
		return d.leased() > 0 && d.number(`SELECT count(*) FROM pg_stat_activity WHERE `+cancelling) > 0
	})
	return release
}

// freezeWithLeases freezes workers while they hold leases: they give tasks back whose product stays locked.
func (d *deployment) freezeWithLeases(workers []*running) (thaw func()) {
	d.t.Helper()
	eventually(d.t, "workers that hold leases", func() bool {
		thaw = frozen(d.t, pids(workers)...)
		if d.leased() > 0 {
			return true
		}
		thaw()
		return false
	})
	return thaw
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

// newer is a later version of the service, which has one migration more.
var newer = sync.OnceValues(func() (string, error) {
	dir, err := testenv.TempDir()
	if err != nil {
		return "", err
	}
	migration := filepath.Join(dir, "90000_note.sql")
	err = os.WriteFile(migration, []byte(`-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE orders ADD COLUMN note text;
CREATE INDEX CONCURRENTLY orders_note ON orders (note) WHERE note IS NOT NULL;
`), 0o600)
	if err != nil {
		return "", err
	}
	added, err := filepath.Abs("../migrations/90000_note.sql")
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {added: migration}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "shop-newer")
	out, err := exec.Command("go", "build", "-ldflags=-w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "../cmd/shop").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build a newer shop: %w: %s", err, out)
	}
	return path, nil
})

// rollOut migrates the database under the running processes, then replaces one after the other.
func rollOut(d *deployment) {
	path, err := newer()
	must(d.t, err)
	d.binary = path
	contains(d.t, d.run(d.t, "migrate"), "90000_note.sql")
	for _, old := range d.all("") {
		d.start(old.role)
		d.remove(old) // as a load balancer does during the drain: requests on their way to it are still served
		d.t.Logf("%s stopped in %v", old.role, old.interrupt())
	}
}
