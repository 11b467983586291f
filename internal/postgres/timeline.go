package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// lineage refuses old primaries. A promotion begins a timeline with a larger number, so a primary with a smaller one than
// another has missed a promotion. A server with another system identifier has the data of another cluster.
//
// This is no fence: an old primary keeps its sessions, and a process that has not seen the new one accepts it.
type lineage struct {
	mu       sync.Mutex
	system   string // the system identifier of the primaries; "": none was seen
	timeline string // the largest one that was seen: eight hexadecimal digits
}

// check returns an error if the server of a session is an old primary, or one of another cluster. It accepts a server that
// does not say which timeline it has, as some managed services.
func (l *lineage) check(ctx context.Context, session *pgconn.PgConn) error {
	results, err := session.Exec(ctx, `
		SELECT system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()`).ReadAll()
	if Rejected(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the server's timeline: %w", err)
	}
	row := results[0].Rows[0]
	system, timeline := string(row[0]), string(row[1])

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.system != "" && system != l.system {
		return fmt.Errorf("the server has the system identifier %s, expected %s: restart this process if the server has replaced the cluster",
			system, l.system)
	}
	if timeline < l.timeline {
		return fmt.Errorf("the server is an old primary: it has the timeline %s, and another one has %s", timeline, l.timeline)
	}
	l.system, l.timeline = system, timeline
	return nil
}
