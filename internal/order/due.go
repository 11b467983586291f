package order

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// The statements for the worker and the reconciler, besides cancelDueSQL.
var (
	//go:embed split_by_locks.sql
	splitByLocksSQL string
	//go:embed pending.sql
	pendingSQL string
	//go:embed unknown.sql
	unknownSQL string
)

// dueResult is a row of cancel_due.sql.
type dueResult struct {
	ID         uuid.UUID
	CustomerID uuid.UUID
	State      delay.RowState
	Reason     string // of a cancellation
	LateUs     int64
	LeftUs     int64
}

func (r dueResult) verdict() delay.Verdict {
	return delay.Verdict{
		ID: r.ID.String(), State: r.State, Owner: r.CustomerID.String(), Reason: r.Reason,
		Late: time.Duration(r.LateUs) * time.Microsecond, Left: time.Duration(r.LeftUs) * time.Microsecond,
	}
}

// cancelDue is the TimeOut of [delay.TimeoutTable]: it cancels those of the orders that are due, in one transaction, and
// returns a verdict on each order. It waits at most lockWait for the lock of a product; 0 means the session's
// lock_timeout.
func (s *Store) cancelDue(
	ctx context.Context, ids []string, by delay.Actor, lockWait time.Duration,
) ([]delay.Verdict, error) {
	orders, foreign := keyset.ParseIDs(ids)
	verdicts := make([]delay.Verdict, 0, len(ids))
	for _, id := range foreign {
		verdicts = append(verdicts, delay.Verdict{ID: id, State: delay.Gone})
	}
	if len(orders) == 0 {
		return verdicts, nil
	}
	var results []dueResult
	err := postgres.RetryDeadlock(func() error {
		db := s.db.WithContext(ctx)
		if lockWait == 0 {
			return db.Raw(cancelDueSQL, orders, by).Scan(&results).Error
		}
		return db.Transaction(func(tx *gorm.DB) error {
			setLimit := `SET LOCAL lock_timeout = ` + strconv.FormatInt(lockWait.Milliseconds(), 10)
			if err := tx.Exec(setLimit).Error; err != nil {
				return err
			}
			return tx.Raw(cancelDueSQL, orders, by).Scan(&results).Error
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cancel due orders: %w", err)
	}
	for _, r := range results {
		verdicts = append(verdicts, r.verdict())
	}
	return verdicts, nil
}

// splitByLocks is the Split of [delay.TimeoutTable]: it separates the orders whose products are free from those with a
// product that another session holds right now. It groups the latter by the id of such a product. It waits for no lock.
func (s *Store) splitByLocks(ctx context.Context, ids []string) (free []string, held map[string][]string, err error) {
	orders, free := keyset.ParseIDs(ids) // cancelDue returns the verdicts on foreign ids
	var rows []struct {
		ID      uuid.UUID
		Product *uuid.UUID
	}
	if err := s.db.WithContext(ctx).Raw(splitByLocksSQL, orders).Scan(&rows).Error; err != nil {
		return nil, nil, fmt.Errorf("find the orders whose products are locked: %w", err)
	}
	held = make(map[string][]string)
	for _, row := range rows {
		if row.Product == nil {
			free = append(free, row.ID.String())
		} else {
			held[row.Product.String()] = append(held[row.Product.String()], row.ID.String())
		}
	}
	return free, held, nil
}

// PendingPage returns a page of rows that are sorted by due time, as [Service.Pending] describes it. The statement has the
// parameters and the columns of pending.sql.
func PendingPage(
	ctx context.Context, db *gorm.DB, statement, after string, within time.Duration, limit int,
) (page []delay.Message, next string, err error) {
	var from keyset.Cursor
	var fromAt, limitMicros any // nil fromAt: the first page; nil limitMicros: due at any time
	if after != "" {
		if from, err = keyset.ParseCursor(after); err != nil {
			return nil, "", fmt.Errorf("pending rows after %q: %w", after, err)
		}
		fromAt = from.At
	}
	if within < math.MaxInt64 {
		limitMicros = within.Microseconds()
	}
	var rows []struct {
		ID     uuid.UUID
		DueAt  time.Time
		Micros int64
	}
	err = db.WithContext(ctx).Raw(statement, fromAt, from.ID, limitMicros, limit).Scan(&rows).Error
	if err != nil {
		return nil, "", fmt.Errorf("read pending rows: %w", err)
	}
	for _, row := range rows {
		page = append(page, delay.In(row.ID.String(), time.Duration(row.Micros)*time.Microsecond))
	}
	if len(rows) == limit {
		last := rows[limit-1]
		next = keyset.Cursor{At: last.DueAt, ID: last.ID}.String()
	}
	return page, next, nil
}

// unknown returns those of the ids for which there is no order of any status.
func (s *Store) unknown(ctx context.Context, ids []string) ([]string, error) {
	orders, unknown := keyset.ParseIDs(ids)
	var missing []string
	if err := s.db.WithContext(ctx).Raw(unknownSQL, orders).Scan(&missing).Error; err != nil {
		return nil, fmt.Errorf("look for unknown orders: %w", err)
	}
	return append(unknown, missing...), nil
}
