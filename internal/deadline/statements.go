package deadline

import (
	"context"
	"fmt"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// timeOutRows runs [Statements.TimeOut]. The error of PostgreSQL is wrapped, because its code decides what happens next.
func (t *Table) timeOutRows(ctx context.Context, ids []string, actor Actor) ([]Verdict, error) {
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
		return t.db.WithContext(ctx).Raw(t.statements.TimeOut, uuids, actor).Scan(&rows).Error
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

// freeRows runs [Statements.Free].
func (t *Table) freeRows(ctx context.Context, ids []string) (free []string, err error) {
	if t.statements.Free == "" {
		return nil, nil
	}
	uuids, _ := keyset.ParseIDs(ids)
	if err := t.db.WithContext(ctx).Raw(t.statements.Free, uuids).Scan(&free).Error; err != nil {
		return nil, fmt.Errorf("find the rows whose shared rows are free: %w", err)
	}
	return free, nil
}
