package postgres

import (
	"context"
	"fmt"
)

// Durability holds the settings that decide whether acknowledged commits survive a crash of the server. The values are
// those that PostgreSQL returns.
type Durability struct {
	Fsync             string
	FullPageWrites    string
	SynchronousCommit string // the default of new sessions; the sessions of [Open] set it to on
}

// ReadDurability reads the settings in a new session. In a session of [Open], synchronous_commit has the value that
// Open sets, and so has pg_settings.reset_val. The server's configuration file does not help either: only superusers
// can read it, and a database or a role may override it.
func ReadDurability(ctx context.Context, databaseURL string) (Durability, error) {
	db, err := Connect(databaseURL)
	if err != nil {
		return Durability{}, err
	}
	defer db.Close()
	var d Durability
	err = db.QueryRowContext(ctx, `
		SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')`).
		Scan(&d.Fsync, &d.FullPageWrites, &d.SynchronousCommit)
	if err != nil {
		return Durability{}, fmt.Errorf("read PostgreSQL's settings: %w", err)
	}
	return d, nil
}
