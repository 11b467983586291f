package devstack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// StartStandby starts a server that replicates this one, on a copy of its data in its directory. Both have the same
// settings. A call for a second standby returns an error.
func (p *Postgres) StartStandby(ctx context.Context) (*Postgres, error) {
	s := &Postgres{run: p.run, dir: filepath.Join(p.dir, "standby"), env: p.env, settings: p.settings}
	if err := s.copy(ctx, p); err != nil {
		return nil, err
	}
	return onFreePort(func(port int) (*Postgres, error) {
		s.port = port
		return s, s.start(ctx)
	})
}

// Follow makes the server, such as an old primary that comes back, a standby of another one. It stops the server,
// replaces its data by a copy, and starts it at the same address. It does not use pg_rewind, which needs settings that
// the old primary must have had before, because a copy is always possible.
func (p *Postgres) Follow(ctx context.Context, primary *Postgres) error {
	if err := p.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(p.dir, "data")); err != nil {
		return fmt.Errorf("remove the data of the old primary: %w", err)
	}
	if err := p.copy(ctx, primary); err != nil {
		return err
	}
	return p.Restart(ctx)
}

// copy copies the data of a primary, and makes the server, which does not run, a standby of it.
func (p *Postgres) copy(ctx context.Context, primary *Postgres) error {
	cmd := p.run(childOf(syscall.SIGKILL), "pg_basebackup", "-D", filepath.Join(p.dir, "data"), "-h", "127.0.0.1",
		"-p", strconv.Itoa(primary.port), "-U", databaseName, "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
	return finish(ctx, cmd, filepath.Join(primary.dir, "pg_basebackup.log"))
}

// Promote makes a standby a primary, and waits until it is one.
func (p *Postgres) Promote(ctx context.Context) error {
	return execAt(ctx, p.URL(), `SELECT pg_promote()`)
}

// AwaitStandby makes each later commit wait until a standby has written it to disk too.
func (p *Postgres) AwaitStandby(ctx context.Context) error {
	return p.Set(ctx, `synchronous_standby_names = '*'`)
}

// SetReadOnly makes the server reject all changes, also in sessions that exist already, as before a switch-over.
func (p *Postgres) SetReadOnly(ctx context.Context) error {
	return p.Set(ctx, `default_transaction_read_only = on`)
}

// Set changes a setting of the server, but not of a standby that exists already. A checkpoint shows that the server's
// processes have read the new configuration.
func (p *Postgres) Set(ctx context.Context, setting string) error {
	for _, statement := range []string{`ALTER SYSTEM SET ` + setting, `SELECT pg_reload_conf()`, `CHECKPOINT`} {
		if err := execAt(ctx, p.URL(), statement); err != nil {
			return err
		}
	}
	return nil
}
