package devstack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
)

// StartStandby starts a server that replicates this one, on a copy of its data in its directory. Both have the same
// settings. A call for a second standby returns an error.
func (p *Postgres) StartStandby(ctx context.Context) (*Postgres, error) {
	dir := filepath.Join(p.dir, "standby")
	cmd := p.run(childOf(syscall.SIGKILL), "pg_basebackup", "-D", filepath.Join(dir, "data"), "-h", "127.0.0.1",
		"-p", strconv.Itoa(p.port), "-U", databaseName, "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
	backup, err := start(cmd, filepath.Join(p.dir, "pg_basebackup.log"))
	if err != nil {
		return nil, err
	}
	select {
	case <-backup.ended:
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), backup.kill())
	}
	if !cmd.ProcessState.Success() {
		return nil, fmt.Errorf("pg_basebackup: %s", backup.logTail())
	}
	return onFreePort(func(port int) (*Postgres, error) {
		s := &Postgres{run: p.run, dir: dir, env: p.env, settings: p.settings, port: port}
		return s, s.start(ctx, s.ping)
	})
}

// Promote makes a standby a primary, and waits until it is one.
func (p *Postgres) Promote(ctx context.Context) error {
	return execAt(ctx, p.URL(), `SELECT pg_promote()`)
}

// AwaitStandby makes each later commit wait until a standby has written it to disk too.
func (p *Postgres) AwaitStandby(ctx context.Context) error {
	return p.set(ctx, `synchronous_standby_names = '*'`)
}

// SetReadOnly makes the server reject all changes, in the sessions that exist too, as before a switch-over.
func (p *Postgres) SetReadOnly(ctx context.Context) error {
	return p.set(ctx, `default_transaction_read_only = on`)
}

// set changes a setting of the server, but not of a standby that exists already. A checkpoint shows that the server's
// processes have read the new configuration.
func (p *Postgres) set(ctx context.Context, setting string) error {
	for _, statement := range []string{`ALTER SYSTEM SET ` + setting, `SELECT pg_reload_conf()`, `CHECKPOINT`} {
		if err := execAt(ctx, p.URL(), statement); err != nil {
			return err
		}
	}
	return nil
}
