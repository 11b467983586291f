package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// timeline refuses old primaries. Each promotion begins a timeline, and numbers it higher than all before. So a primary
// with a lower number than this process has seen is old. A server with another system identifier is of another cluster.
//
// This is no fence: the sessions with an old primary go on, and a process that has not seen the new one accepts it.
type timeline struct {
	system string // the system identifier of the primaries; "": none was seen
	number string // the largest one that was seen: eight hexadecimal digits
}

// check returns an error if the server of a session is an old primary, or belongs to another cluster. It accepts a
// server that does not tell its timeline, such as those of some managed services.
func (t *timeline) check(ctx context.Context, session *pgconn.PgConn) error {
	results, err := session.Exec(ctx, `
		SELECT system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()`).ReadAll()
	if cause := Classify(err); cause == Rejected || cause == Postponed {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the server's timeline: %w", err)
	}
	row := results[0].Rows[0]
	system, number := string(row[0]), string(row[1])
	if t.system != "" && system != t.system {
		return fmt.Errorf("the server has the system identifier %s, expected %s: restart this process if the server has "+
			"replaced the cluster", system, t.system)
	}
	if number < t.number {
		return fmt.Errorf("the server is an old primary: it has the timeline %s, and another one has %s",
			number, t.number)
	}
	t.system, t.number = system, number
	return nil
}
