package e2e

import (
	"database/sql"
	"strconv"
	"testing"
	"time"
)

// slots is the most connections that PostgreSQL takes.
const slots = 60

// TestPostgresFaults: without PostgreSQL nothing is taken and nothing is due. Customers are refused, repeat with
// the same key, and get one order.
func TestPostgresFaults(t *testing.T) {
	own := needs{postgres: map[string]string{"max_connections": strconv.Itoa(slots), "deadlock_timeout": "100ms"}}
	runFaults(t, []fault{
		{name: "restarted", needs: own, bound: bound{late: 8 * time.Second, answer: 5 * time.Second, refused: true}, inject: func(d *deployment) {
			must(d.t, d.postgres.Stop())
			d.hold(2 * time.Second)
			must(d.t, d.postgres.Restart(d.t.Context()))
		}},
		// A statement gives up after 8 s, with its request.
		{name: "hung", needs: own, bound: bound{late: 15 * time.Second, answer: 12 * time.Second, refused: true}, inject: func(d *deployment) {
			thaw := d.freezePostgres()
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

// takeConnections leaves the service none: those that it has are ended until every slot is taken. The service connects
// again at once, so the test does not rest either.
func takeConnections(d *deployment) {
	var taken []*sql.Conn
	for began := time.Now(); len(taken) < slots; {
		conn, err := d.db.Conn(d.t.Context())
		if err == nil {
			taken = append(taken, conn)
			continue
		}
		if time.Since(began) > time.Minute {
			d.t.Fatalf("only %d connections taken: %v", len(taken), err)
		}
		_, err = taken[0].ExecContext(d.t.Context(), `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shop'`)
		must(d.t, err)
	}
	d.hold(3 * time.Second)
	for _, conn := range taken {
		conn.Close()
	}
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
