package order

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
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

// freeSQL tells which orders have no product that somebody holds.
const freeSQL = `
	WITH free AS MATERIALIZED (
		SELECT id FROM products
		WHERE id IN (SELECT product_id FROM order_items WHERE order_id = ANY ($1::uuid[]))
		ORDER BY id
		FOR NO KEY UPDATE SKIP LOCKED
	)
	SELECT asked.id FROM unnest($1::uuid[]) AS asked (id)
	WHERE NOT EXISTS (
		SELECT FROM order_items i
		WHERE i.order_id = asked.id AND i.product_id NOT IN (SELECT id FROM free))`

// cancelFree is cancelDue where somebody holds a product for long: its orders must not keep the others from their
// cancellation. It waits for none; the orders that it passes by are blocked.
func (s *Store) cancelFree(ctx context.Context, ids []uuid.UUID, actor Actor) ([]verdict, error) {
	var free []uuid.UUID
	if err := s.db.WithContext(ctx).Raw(freeSQL, ids).Scan(&free).Error; err != nil {
		return nil, fmt.Errorf("look for orders that nobody blocks: %w", err)
	}
	verdicts, err := s.cancelDue(ctx, free, actor)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !slices.Contains(free, id) {
			verdicts = append(verdicts, verdict{ID: id, Outcome: blocked})
		}
	}
	return verdicts, nil
}

// overdueSQL reads the head of the partial index orders_pending_deadline.
const overdueSQL = `
	SELECT id FROM orders
	WHERE status = 'pending' AND expires_at < now() - $1::bigint * interval '1 microsecond'
	ORDER BY expires_at, id
	LIMIT $2`

// overdue returns up to limit orders that are pending longer than grace past their deadlines.
func (s *Store) overdue(ctx context.Context, grace time.Duration, limit int) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	if err := s.db.WithContext(ctx).Raw(overdueSQL, grace.Microseconds(), limit).Scan(&ids).Error; err != nil {
		return nil, fmt.Errorf("look for overdue orders: %w", err)
	}
	return ids, nil
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
	var from Cursor
	var fromAt, within any // NULL: from the start, without end
	if after != "" {
		if from, err = ParseCursor(after); err != nil {
			return nil, nil, "", fmt.Errorf("pending orders after %q: %w", after, err)
		}
		fromAt = from.at
	}
	if ahead >= 0 {
		within = ahead.Microseconds()
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
