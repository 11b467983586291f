package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// Store keeps orders in PostgreSQL.
type Store struct {
	db   *gorm.DB
	gate *postgres.Gate // for statements that may wait for a product's lock
}

// NewStore returns a store in a database that [postgres.Open] connected to.
func NewStore(db *gorm.DB) *Store {
	return &Store{db: db, gate: postgres.NewGate(db)}
}

// selectOrders begins the statements that read whole orders.
const selectOrders = `
	SELECT o.id, o.customer_id, o.status, coalesce(o.cancel_reason, '') AS cancel_reason, o.total_cents, o.currency,
	       o.created_at, o.expires_at, o.due_at, o.hold_until, o.extensions, o.paid_at, o.cancelled_at,
	       coalesce(o.ended_by, '') AS ended_by, clock_timestamp() AS server_time, (
		SELECT json_agg(json_build_object('product_id', i.product_id, 'name', i.name, 'quantity', i.quantity,
		                                  'unit_price_cents', i.unit_price_cents) ORDER BY i.product_id)
		FROM order_items i WHERE i.order_id = o.id
	) AS items
	FROM orders o `

// The statements of [Store.Update].
const (
	lockOrderSQL = `SELECT FROM orders WHERE id = $1 FOR UPDATE`
	readOrderSQL = selectOrders + `WHERE o.id = $1`

	writeOrderSQL = `
		UPDATE orders SET status = $2, cancel_reason = nullif($3, ''), expires_at = $4, hold_until = $5,
			extensions = $6, paid_at = $7, cancelled_at = $8, ended_by = nullif($9, '')
		WHERE id = $1`
	// The products are locked in id order, as in every statement that locks products, so that no two deadlock.
	returnStockSQL = `
		WITH stock AS MATERIALIZED (
			SELECT p.id, i.quantity FROM order_items i JOIN products p ON p.id = i.product_id
			WHERE i.order_id = $1 ORDER BY p.id FOR NO KEY UPDATE OF p
		)
		UPDATE products p SET available = p.available + s.quantity FROM stock s WHERE p.id = s.id`
	writeEventSQL = `
		INSERT INTO order_events (order_id, type, actor, at, deadline, reason)
		VALUES ($1, $2, $3, $4, $5, nullif($6, ''))`
)

// Change is what [Store.Update] has made of an order.
type Change struct {
	Order
	Changed bool           // the order is not as it was before
	task    *delay.Message // the order's task, if it is due earlier than before
}

// Update is the one way to change an order. In a transaction it locks the order, reads it with the database's clock,
// has change decide, and queues the statements that write what change has made of the order: the order, the stock that
// it returns, its events, and the outbox row of its task if the order is due earlier than before. After the commit, the
// caller passes the Change to [Service.Announce].
//
// The reads queue statements of the caller that must follow the lock of the order. They go with the same round trip, so
// that change can use their results.
//
// An error of change is returned as it is. An order that does not exist is the error [rest.NotFound].
func (s *Store) Update(
	ctx context.Context, tx *postgres.Tx, id uuid.UUID, change func(*Order) error, reads ...func(*postgres.Tx),
) (c Change, err error) {
	var read time.Time // on the local clock: the time to the deadline begins here, and not after the commit
	exists := true
	tx.Queue(lockOrderSQL, id)
	for _, read := range reads {
		read(tx)
	}
	tx.Queue(readOrderSQL, id).Query(func(rows pgx.Rows) (err error) {
		read = time.Now()
		c.Order, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByNameLax[Order])
		exists = !errors.Is(err, pgx.ErrNoRows)
		return err
	})
	switch err := tx.Send(ctx); {
	case !exists:
		return Change{}, NotFound(id)
	case err != nil:
		return Change{}, fmt.Errorf("lock and read order %s: %w", id, err)
	}
	before := c.Order
	if err := change(&c.Order); err != nil {
		return Change{}, err
	}
	if c.Status == before.Status && len(c.events) == 0 { // nothing has changed
		return c, nil
	}
	c.Changed = true
	tx.Queue(writeOrderSQL, id, c.Status, c.CancelReason, c.ExpiresAt, c.HoldUntil, c.Extensions, c.PaidAt,
		c.CancelledAt, c.EndedBy)
	if c.Status == Cancelled {
		tx.Queue(returnStockSQL, id)
	}
	for _, e := range c.events {
		tx.Queue(writeEventSQL, id, e.Type, e.Actor, e.At, e.Deadline, e.Reason)
	}
	if c.Status == Pending && c.DueAt.Before(before.DueAt) {
		tx.Queue(delay.OweSQL, CancelKind, id.String(), c.DueAt)
		task := delay.At(id.String(), c.DueAt, c.ServerTime.Add(time.Since(read)))
		c.task = &task
	}
	return c, nil
}

// NotFound returns the error for an order that the customer does not have. It does not disclose whether another
// customer has an order with this id.
func NotFound(id uuid.UUID) error { return rest.NotFound.Errorf("There is no order %s.", id) }
