package order

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"
)

// cancelDue cancels those of the orders that are due and returns a verdict on each.
func (s *Store) cancelDue(ctx context.Context, ids []uuid.UUID, actor Actor) ([]verdict, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	verdicts := make([]verdict, 0, len(ids))
	err := undeadlocked(func() error {
		return s.db.WithContext(ctx).Raw(cancelDueSQL, ids, actor).Scan(&verdicts).Error
	})
	if err != nil {
		return nil, fmt.Errorf("cancel due orders: %w", err)
	}
	return verdicts, nil
}

// locksSQL tells which orders have a product that another session holds, and of each the first such product.
const locksSQL = `
	WITH free AS MATERIALIZED (
		SELECT id FROM products
		WHERE id IN (SELECT product_id FROM order_items WHERE order_id = ANY ($1::uuid[]))
		ORDER BY id
		FOR NO KEY UPDATE SKIP LOCKED
	)
	SELECT asked.id, (
		SELECT i.product_id FROM order_items i
		WHERE i.order_id = asked.id AND i.product_id NOT IN (SELECT id FROM free)
		ORDER BY i.product_id
		LIMIT 1
	) AS product
	FROM unnest($1::uuid[]) AS asked (id)`

// partByLocks parts orders into those whose products no other session holds right now, and the others by a product that
// one does hold. It waits for none.
func (s *Store) partByLocks(ctx context.Context, ids []uuid.UUID) (free []uuid.UUID, held map[uuid.UUID][]uuid.UUID, err error) {
	var rows []struct {
		ID      uuid.UUID
		Product *uuid.UUID
	}
	if err := s.db.WithContext(ctx).Raw(locksSQL, ids).Scan(&rows).Error; err != nil {
		return nil, nil, fmt.Errorf("look for orders whose products are held: %w", err)
	}
	held = make(map[uuid.UUID][]uuid.UUID)
	for _, row := range rows {
		if row.Product == nil {
			free = append(free, row.ID)
		} else {
			held[*row.Product] = append(held[*row.Product], row.ID)
		}
	}
	return free, held, nil
}

// cancelSoon is cancelDue that waits at most so long for a product that another session holds. It then cancels none of
// the orders, and lockTimedOut reports true of its error.
func (s *Store) cancelSoon(wait time.Duration) canceler {
	setWait := `SET LOCAL lock_timeout = ` + strconv.FormatInt(wait.Milliseconds(), 10)
	return func(ctx context.Context, ids []uuid.UUID, actor Actor) (verdicts []verdict, err error) {
		if len(ids) == 0 {
			return nil, nil
		}
		err = undeadlocked(func() error {
			return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				if err := tx.Exec(setWait).Error; err != nil {
					return err
				}
				return tx.Raw(cancelDueSQL, ids, actor).Scan(&verdicts).Error
			})
		})
		if err != nil {
			return nil, fmt.Errorf("cancel due orders: %w", err)
		}
		return verdicts, nil
	}
}

// pendingSQL reads one page of the partial index orders_pending_deadline and nothing else.
const pendingSQL = `
	SELECT id, expires_at, (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint AS micros
	FROM orders
	WHERE status = 'pending'
	  AND (expires_at, id) > (coalesce($1::timestamptz, '-infinity'), $2::uuid)
	  AND expires_at <= coalesce(now() + $3::bigint * interval '1 microsecond', 'infinity')
	ORDER BY expires_at, id
	LIMIT $4`

// Pending returns one page of the pending orders, by deadline, with the time that is left to each by the
// database's clock, negative if it has passed. Only deadlines up to ahead from now are looked at; a negative
// ahead looks at all. next is the after of the following page, "" on the last; the first page's after
// is "".
func (s *Store) Pending(ctx context.Context, after string, ahead time.Duration, limit int) (ids []string, left []time.Duration, next string, err error) {
	var within any // NULL: without end
	if ahead >= 0 {
		within = ahead.Microseconds()
	}
	return s.pendingPage(ctx, after, within, limit)
}

// Overdue returns a page of the orders that are pending longer than grace past their deadlines, by deadline. after and
// next are those of [Store.Pending].
func (s *Store) Overdue(ctx context.Context, after string, grace time.Duration, limit int) (ids []string, next string, err error) {
	longer := grace.Microseconds() + 1
	ids, _, next, err = s.pendingPage(ctx, after, -longer, limit)
	return ids, next, err
}

// pendingPage returns a page of the pending orders whose deadlines are at most within microseconds from now.
func (s *Store) pendingPage(ctx context.Context, after string, within any, limit int) (ids []string, left []time.Duration, next string, err error) {
	var from Cursor
	var fromAt any // NULL: from the start
	if after != "" {
		if from, err = ParseCursor(after); err != nil {
			return nil, nil, "", fmt.Errorf("pending orders after %q: %w", after, err)
		}
		fromAt = from.at
	}
	var page []struct {
		ID        uuid.UUID
		ExpiresAt time.Time
		Micros    int64
	}
	if err := s.db.WithContext(ctx).Raw(pendingSQL, fromAt, from.id, within, limit).Scan(&page).Error; err != nil {
		return nil, nil, "", fmt.Errorf("read pending orders: %w", err)
	}
	for _, o := range page {
		ids = append(ids, o.ID.String())
		left = append(left, time.Duration(o.Micros)*time.Microsecond)
	}
	if len(page) == limit {
		last := page[limit-1]
		next = Cursor{at: last.ExpiresAt, id: last.ID}.String()
	}
	return ids, left, next, nil
}

// Unknown returns those of the ids that are no order's, in whatever state, nor could be.
func (s *Store) Unknown(ctx context.Context, ids []string) ([]string, error) {
	var unknown []string
	var candidates []uuid.UUID
	for _, id := range ids {
		parsed, err := parseID(id)
		if err != nil || parsed.String() != id {
			unknown = append(unknown, id)
			continue
		}
		candidates = append(candidates, parsed)
	}
	var missing []string
	err := s.db.WithContext(ctx).Raw(`
		SELECT asked.id FROM unnest($1::uuid[]) AS asked (id)
		WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = asked.id)`, candidates).Scan(&missing).Error
	if err != nil {
		return nil, fmt.Errorf("look for unknown orders: %w", err)
	}
	return append(unknown, missing...), nil
}
