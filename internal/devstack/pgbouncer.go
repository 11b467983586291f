package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrNoPgBouncer means that the machine does not have PgBouncer.
var ErrNoPgBouncer = errors.New("no pgbouncer in PATH or in /usr/sbin: install it " +
	"(Debian and Ubuntu: apt-get install pgbouncer; macOS: brew install pgbouncer)")

// PgBouncer is a private PgBouncer.
type PgBouncer struct {
	port    int
	process *process
}

// StartPgBouncer runs a PgBouncer. The configuration is the content of pgbouncer.ini, and ends with the section
// [pgbouncer]. It works in dir, an existing directory, and accepts every user without a password. If the machine has no
// PgBouncer, the error is [ErrNoPgBouncer].
func StartPgBouncer(ctx context.Context, dir, config string) (*PgBouncer, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		return nil, ErrNoPgBouncer
	}
	// It may run as another user, who may have no access to the directory of a symbolic link in PATH.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, err
	}
	run, err := newRunner(dir, filepath.Dir(path)) // PgBouncer does not run as root, either
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port int) (*PgBouncer, error) {
		file := filepath.Join(dir, "pgbouncer.ini")
		own := fmt.Sprintf("\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\n", port)
		if err := os.WriteFile(file, []byte(config+own), 0o644); err != nil { //nolint:gosec // PgBouncer runs as another user
			return nil, err
		}
		p, err := start(run(childOf(syscall.SIGKILL), filepath.Base(path), file), filepath.Join(dir, "pgbouncer.log"))
		if err != nil {
			return nil, err
		}
		if err := p.await(ctx, func(context.Context) error { return nil }); err != nil {
			return nil, errors.Join(err, p.kill())
		}
		return &PgBouncer{port: port, process: p}, nil
	})
}

// Addr returns the host:port of PgBouncer.
func (p *PgBouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// Stop ends PgBouncer, and all connections through it.
func (p *PgBouncer) Stop() error { return p.process.kill() }
