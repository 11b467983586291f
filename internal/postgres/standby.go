package postgres

import (
	"context"
	"database/sql"
	"fmt"
)

// CommitsWait reports whether commits wait for a synchronous standby, because no such standby is connected, or because
// a commit has waited for one for a second. Only a superuser, or a member of pg_monitor, sees which standbys are
// synchronous and the commits of all roles. For any other role each standby counts as synchronous, and only the commits
// of that role count.
func CommitsWait(ctx context.Context, db *sql.DB) (waits bool, err error) {
	err = db.QueryRowContext(ctx, `
		SELECT current_setting('synchronous_standby_names') <> '' AND NOT EXISTS (
			SELECT FROM pg_stat_replication WHERE coalesce(sync_state, 'sync') IN ('sync', 'quorum'))
		OR EXISTS (
			SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '1 s')`).
		Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("look for commits that wait for a standby: %w", err)
	}
	return waits, nil
}
