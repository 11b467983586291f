package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/bench/contender"
)

// products is the number of products that the orders are spread over.
const products = 50

// empty removes all orders, and adds products with stock. Their ids are those of [pgbench.ID].
func (s *servers) empty(ctx context.Context) error {
	return s.exec(ctx,
		`TRUNCATE orders, products, outbox CASCADE`,
		fmt.Sprintf(`INSERT INTO products (id, name, price_cents, currency, supply, available)
			SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'product ' || n, 100, 'EUR',
				1000000000, 1000000000
			FROM generate_series(1, %d) AS n`, products),
		`VACUUM ANALYZE`)
}

// vacuum brings the shop's tables into the same state before each measurement: statistics are up to date, dead rows are
// removed, and no checkpoint is under way. It leaves the tables that a contender adds to autovacuum. Statistics of a
// queue that is empty now would have the planner expect that it stays empty, which made River's bursts three times as
// slow.
func (s *servers) vacuum(ctx context.Context) error {
	return s.exec(ctx, `VACUUM (ANALYZE) orders, order_items, products, outbox`, `CHECKPOINT`)
}

func (s *servers) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%.60s: %w", statement, err)
		}
	}
	return nil
}

// placeSQL places orders of one item each, without the shop's decisions about stock and limits. It leaves out orders
// that exist. Each order has a customer of its own, because the planner would expect as many orders of a new customer
// as the others have.
const placeSQL = `
	WITH placed AS (
		INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
		SELECT id, id, 100, 'EUR', now() - interval '1 hour', to_timestamp(due / 1e6)
		FROM unnest($1::uuid[], $2::bigint[]) AS o (id, due)
		ON CONFLICT (id) DO NOTHING
		RETURNING id
	), items AS (
		INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name)
		SELECT o.id, p.id, 1, 100, p.name
		FROM (SELECT id, row_number() OVER () % $3 AS n FROM placed) o
		JOIN (SELECT id, name, row_number() OVER () - 1 AS n FROM products) p USING (n)
		RETURNING product_id
	)
	UPDATE products SET available = available - sold.n
	FROM (SELECT product_id, count(*) AS n FROM items GROUP BY product_id) sold
	WHERE id = product_id`

// place inserts an order for each of the due times.
func (s *servers) place(ctx context.Context, due []time.Time) ([]scheduled, error) {
	orders := make([]scheduled, len(due))
	for i := range due {
		orders[i] = scheduled{ID: uuid.Must(uuid.NewV7()).String(), Due: due[i].Truncate(time.Microsecond).UnixNano()}
	}
	const most = 50_000 // in one statement
	for some := range slices.Chunk(orders, most) {
		ids, dues := columns(some)
		if _, err := s.db.ExecContext(ctx, placeSQL, ids, dues, products); err != nil {
			return nil, fmt.Errorf("insert orders: %w", err)
		}
	}
	return orders, nil
}

// columns returns the ids and the due times of orders. The due times are microseconds since 1970.
func columns(orders []scheduled) (ids []string, dues []int64) {
	for _, o := range orders {
		ids, dues = append(ids, o.ID), append(dues, o.Due/1000)
	}
	return ids, dues
}

// move gives those of the orders that are still pending new due times.
func (s *servers) move(ctx context.Context, orders []scheduled) error {
	ids, dues := columns(orders)
	_, err := s.db.ExecContext(ctx, `
		UPDATE orders SET expires_at = to_timestamp(due / 1e6) FROM unnest($1::uuid[], $2::bigint[]) AS o (order_id, due)
		WHERE id = order_id AND status = 'pending'`, ids, dues)
	return err
}

// postpone gives the orders that a contender has left a deadline far away, so that the next contender does not find
// them due.
func (s *servers) postpone(ctx context.Context) error {
	return s.exec(ctx, `
		UPDATE orders SET expires_at = now() + interval '2 hours'
		WHERE status = 'pending' AND due_at < now() + interval '5 minutes'`)
}

// lateness is when the orders of a measurement were cancelled: the time of the commit, by PostgreSQL's clock.
type lateness struct {
	Cancelled, Pending   int
	P50, P99, P999, Max  float64 // seconds from the deadline to the commit
	FirstCommit, LastEnd float64 // seconds from the earliest deadline to the first and to the last commit
}

const latenessSQL = `
	WITH ended AS (
		SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - due_at)::float8 AS late, due_at,
		       pg_xact_commit_timestamp(xmin) AS committed
		FROM orders WHERE status = 'cancelled' AND due_at BETWEEN $1 AND $2
	)
	SELECT count(*), (SELECT count(*) FROM orders WHERE status = 'pending' AND due_at BETWEEN $1 AND $2),
	       coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY late), 0),
	       coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY late), 0),
	       coalesce(percentile_disc(0.999) WITHIN GROUP (ORDER BY late), 0),
	       coalesce(max(late), 0),
	       coalesce(extract(epoch FROM min(committed) - $1::timestamptz), 0)::float8,
	       coalesce(extract(epoch FROM max(committed) - $1::timestamptz), 0)::float8
	FROM ended`

// lateness reads the lateness of the orders whose deadlines are from the first time to the last.
func (s *servers) lateness(ctx context.Context, first, last time.Time) (l lateness, err error) {
	err = s.db.QueryRowContext(ctx, latenessSQL, first.Truncate(time.Microsecond), last).
		Scan(&l.Cancelled, &l.Pending, &l.P50, &l.P99, &l.P999, &l.Max, &l.FirstCommit, &l.LastEnd)
	if err != nil {
		return l, fmt.Errorf("read the lateness: %w", err)
	}
	return l, nil
}

// pending returns the number of pending orders whose deadlines are at most last, except those with certain ids.
func (s *servers) pending(ctx context.Context, last time.Time, except ...string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `
		SELECT count(*) FROM orders
		WHERE status = 'pending' AND due_at <= $1 AND id <> ALL (coalesce($2::uuid[], '{}'))`, last, except).Scan(&n)
	return n, err
}

// await waits until last, and then until no order with a deadline up to last is pending, except those with certain ids.
// It gives up when ctx ends, or when none was cancelled for the time patience.
func (s *servers) await(ctx context.Context, last time.Time, patience time.Duration, except ...string) error {
	contender.Sleep(ctx, time.Until(last))
	left, progress := -1, time.Now()
	for {
		n, err := s.pending(ctx, last, except...)
		if err != nil || n == 0 {
			return err
		}
		if n != left {
			left, progress = n, time.Now()
		}
		if time.Since(progress) > patience {
			return nil
		}
		contender.Sleep(ctx, 100*time.Millisecond)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// rate returns how many orders were cancelled in a second, from the earliest deadline to the last commit.
func (l lateness) rate() float64 {
	if l.Cancelled == 0 {
		return 0
	}
	return float64(l.Cancelled) / l.LastEnd
}

// values returns the figures of the lateness for the report. prefix comes before their names. If no order was
// cancelled, there is no lateness.
func (l lateness) values(prefix string) map[string]float64 {
	values := map[string]float64{prefix + "pending": float64(l.Pending)}
	if l.Cancelled > 0 {
		values[prefix+"p50"], values[prefix+"p99"] = l.P50, l.P99
		values[prefix+"p999"], values[prefix+"max"] = l.P999, l.Max
	}
	return values
}

// violations returns an error if an invariant of the shop is violated. Orders may be pending for any time.
func (s *servers) violations(ctx context.Context) error {
	found, err := s.store.Invariants(ctx, 24*time.Hour, false)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("%d violations of the shop's invariants, the first: %+v", len(found), found[0])
	}
	return err
}
