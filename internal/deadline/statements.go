package deadline

import (
	"context"
	"fmt"
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
