// Package pending reads the pending orders from the table, for the contenders that need no other store or that fill
// theirs from the table.
package pending

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"example.com/shop/bench/contender"
)

// Cannot is the [contender.Info] Cannot of the contenders that need no other store.
var Cannot = map[string]string{contender.Memory: "no store besides the table"}

// loadPage is the size of a page of all pending orders. Reading is all that happens to such a page, so it is larger
// than [contender.Batch].
const loadPage = 5000

// All calls f with pages of all pending orders, sorted by due time, until f returns an error.
func All(ctx context.Context, db *sql.DB, f func(page []contender.Order) error) error {
	return pages(ctx, db, false, loadPage, f)
}

// Due calls f with pages of at most [contender.Batch] of the orders that are due, sorted by due time, until f returns
// an error. An order that f leaves pending is not on a later page.
func Due(ctx context.Context, db *sql.DB, f func(page []contender.Order) error) error {
	return pages(ctx, db, true, contender.Batch, f)
}

// CancelDue cancels the orders that are due, a page in each transaction. It returns those that must be tried again.
func CancelDue(ctx context.Context, env contender.Env) (again []contender.Order, err error) {
	err = Due(ctx, env.DB, func(page []contender.Order) error {
		ids := make([]string, len(page))
		for i, order := range page {
			ids[i] = order.ID
		}
		early, err := env.Cancel(ctx, ids...)
		again = append(again, early...)
		return err
	})
	return again, err
}

// cursor is the place of an order in the index on (due_at, id). Its zero value is before all orders.
type cursor struct {
	dueAt time.Time
	id    string
}

func pages(ctx context.Context, db *sql.DB, onlyDue bool, size int, f func(page []contender.Order) error) error {
	after := cursor{id: "00000000-0000-0000-0000-000000000000"}
	for {
		page, last, err := readPage(ctx, db, after, onlyDue, size)
		if err != nil {
			return fmt.Errorf("read pending orders: %w", err)
		}
		if len(page) > 0 {
			if err := f(page); err != nil {
				return err
			}
		}
		if len(page) < size {
			return nil
		}
		after = last
	}
}

func readPage(
	ctx context.Context, db *sql.DB, after cursor, onlyDue bool, size int,
) (page []contender.Order, last cursor, err error) {
	// The bound on due_at is one expression, so that the index scan ends at it in a generic plan, too.
	rows, err := db.QueryContext(ctx, `
		SELECT id, due_at, (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint
		FROM orders
		WHERE status = 'pending' AND (due_at, id) > ($1::timestamptz, $2::uuid)
		  AND due_at <= CASE WHEN $3::boolean THEN now() ELSE 'infinity'::timestamptz END
		ORDER BY due_at, id
		LIMIT $4`, after.dueAt, after.id, onlyDue, size)
	if err != nil {
		return nil, last, err
	}
	defer rows.Close()
	for rows.Next() {
		var micros int64
		if err := rows.Scan(&last.id, &last.dueAt, &micros); err != nil {
			return nil, last, err
		}
		due := time.Now().Add(time.Duration(micros) * time.Microsecond)
		page = append(page, contender.Order{ID: last.id, Due: due})
	}
	return page, last, rows.Err()
}
