package deadline

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// runner runs the statements that time out rows. It returns the errors of PostgreSQL, wrapped, because [Table] sorts them
// by their codes.
type runner struct {
	*Rows
	statements Statements
}

// timeOut is [Table.timeOutRows].
func (r runner) timeOut(ctx context.Context, ids []string, actor Actor, lockWait time.Duration) ([]Verdict, error) {
	uuids, foreign := keyset.ParseIDs(ids)
	verdicts := make([]Verdict, 0, len(ids))
	for _, id := range foreign {
		verdicts = append(verdicts, Verdict{ID: id, State: Gone})
	}
	if len(uuids) == 0 {
		return verdicts, nil
	}
	var rows []struct {
		ID            string
		State         RowState
		LateUs        int64
		LeftUs        int64
		Owner, Reason string
	}
	err := postgres.RetryDeadlock(func() error {
		db := r.db.WithContext(ctx)
		if lockWait == 0 {
			return db.Raw(r.statements.TimeOut, uuids, actor).Scan(&rows).Error
		}
		return db.Transaction(func(tx *gorm.DB) error {
			setLimit := `SET LOCAL lock_timeout = ` + strconv.FormatInt(lockWait.Milliseconds(), 10)
			if err := tx.Exec(setLimit).Error; err != nil {
				return err
			}
			return tx.Raw(r.statements.TimeOut, uuids, actor).Scan(&rows).Error
		})
	})
	if err != nil {
		return nil, fmt.Errorf("time out rows: %w", err)
	}
	for _, row := range rows {
		verdicts = append(verdicts, Verdict{
			ID: row.ID, State: row.State, Late: microseconds(row.LateUs), Left: microseconds(row.LeftUs),
			Owner: row.Owner, Reason: row.Reason,
		})
	}
	return r.confirmGone(ctx, verdicts)
}

// confirmGone looks with [Rows.Unknown] for the rows that the statement has not found. An old primary lacks the newest rows. It
// runs the statement, which changes nothing there, but it never completes Unknown. After an error confirmGone returns the
// verdicts of the other rows.
func (r runner) confirmGone(ctx context.Context, verdicts []Verdict) ([]Verdict, error) {
	var ids []string
	for _, v := range verdicts {
		if v.State == Gone {
			ids = append(ids, v.ID)
		}
	}
	if len(ids) == 0 {
		return verdicts, nil
	}
	unknown, err := r.Unknown(ctx, ids)
	// If the lock timed out, another process looks, and its commit waits for a standby. Then no row is confirmed as gone.
	if err != nil && !postgres.LockTimedOut(err) {
		return slices.DeleteFunc(verdicts, func(v Verdict) bool { return v.State == Gone }), err
	}
	for i, v := range verdicts {
		if v.State == Gone && !slices.Contains(unknown, v.ID) {
			verdicts[i].State = Locked // a later attempt finds its state
		}
	}
	return verdicts, nil
}

// split is [Table.splitRows].
func (r runner) split(ctx context.Context, ids []string) (free []string, locked map[string][]string, err error) {
	uuids, free := keyset.ParseIDs(ids) // foreign ids count as free: they need no shared row
	var rows []struct {
		ID     string
		Locked *string
	}
	if err := r.db.WithContext(ctx).Raw(r.statements.Split, uuids).Scan(&rows).Error; err != nil {
		return nil, nil, fmt.Errorf("find the rows whose shared rows are locked: %w", err)
	}
	locked = make(map[string][]string)
	for _, row := range rows {
		if row.Locked == nil {
			free = append(free, row.ID)
		} else {
			locked[*row.Locked] = append(locked[*row.Locked], row.ID)
		}
	}
	return free, locked, nil
}
