package order

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Durability is what a PostgreSQL server's settings say about commits that it has answered, if it crashes. The values
// are PostgreSQL's.
type Durability struct {
	Fsync             string
	FullPageWrites    string
	SynchronousCommit string // of sessions that do not set it; those of [Open] do
}

// ReadDurability reads the settings in a session of its own: one of [Open]'s would have synchronous_commit as Open sets
// it, in pg_settings.reset_val too. The server's configuration file is for superusers, and is not the last word: a
// database or a role may have another default.
func ReadDurability(ctx context.Context, databaseURL string) (Durability, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return Durability{}, fmt.Errorf("connect to read PostgreSQL's settings: %w", err) // pgx has blanked the password out
	}
	defer func() { _ = conn.Close(ctx) }()
	var d Durability
	err = conn.QueryRow(ctx, `
		SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')`).
		Scan(&d.Fsync, &d.FullPageWrites, &d.SynchronousCommit)
	if err != nil {
		return Durability{}, fmt.Errorf("read PostgreSQL's settings: %w", err)
	}
	return d, nil
}
