package devstack

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver that connects to the server
)

// ErrNoPostgres means that the machine does not have PostgreSQL's server binaries.
var ErrNoPostgres = errors.New("no PostgreSQL server binaries (initdb, postgres) in PATH, in `pg_config --bindir` " +
	"or in /usr/lib/postgresql: install them (Debian and Ubuntu: apt-get install postgresql; " +
	"macOS: brew install postgresql), or give the address of a server")

// databaseName is the name of the server's database and of its superuser. initdb makes a database with this name.
const databaseName = "postgres"

// Postgres is a private PostgreSQL server with a database and a superuser that are both named postgres. The methods
// must not be called concurrently.
type Postgres struct {
	run      runner
	dir      string            // the directory of the cluster and of the log
	env      []string          // additional environment variables of the server
	settings map[string]string // server parameters
	port     int
	process  *process
}

// StartPostgres makes a database cluster in dir, an existing directory, and runs a server on it. The settings are
// server parameters, such as max_connections, and env are additional environment variables, each NAME=VALUE.
// StartPostgres waits until the server answers. If the machine has no PostgreSQL, the error is [ErrNoPostgres].
func StartPostgres(ctx context.Context, dir string, settings map[string]string, env ...string) (*Postgres, error) {
	run, err := initCluster(ctx, dir)
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port int) (*Postgres, error) {
		p := &Postgres{run: run, dir: dir, env: env, settings: settings, port: port}
		if err := p.start(ctx); err != nil {
			return nil, err
		}
		return p, nil
	})
}

// start runs the server and waits until it is ready.
func (p *Postgres) start(ctx context.Context) error {
	args := []string{
		"-D", filepath.Join(p.dir, "data"), "-p", strconv.Itoa(p.port),
		// No Unix socket: the path of a temporary directory can be longer than a socket's path may be.
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
	}
	for _, name := range slices.Sorted(maps.Keys(p.settings)) {
		args = append(args, "-c", name+"="+p.settings[name])
	}
	// SIGQUIT is an immediate shutdown. Unlike SIGKILL it releases the shared memory.
	cmd := p.run(childOf(syscall.SIGQUIT), "postgres", args...)
	cmd.Env = append(os.Environ(), p.env...)
	server, err := start(cmd, filepath.Join(p.dir, "postgres.log"))
	if err != nil {
		return err
	}
	p.process = server
	if err := server.await(ctx, func(ctx context.Context) error { return execAt(ctx, p.URL(), `SELECT`) }); err != nil {
		return errors.Join(err, server.kill())
	}
	return nil
}

// Restart starts the server again after [Postgres.Stop]. It has the same address and the same data.
func (p *Postgres) Restart(ctx context.Context) error { return p.start(ctx) }

// Pid returns the id of the server's main process.
func (p *Postgres) Pid() int { return p.process.cmd.Process.Pid }

// Log returns the server's log since its last start.
func (p *Postgres) Log() (string, error) {
	log, err := os.ReadFile(p.process.logPath)
	return string(log), err
}

// URL returns the address of the server's database.
func (p *Postgres) URL() string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", databaseName, p.port, databaseName)
}

// Stop stops the server and ends its sessions immediately. It skips the checkpoint of a clean shutdown, because most
// callers then delete the data. A restarted server recovers as after a crash. A second call has no effect.
func (p *Postgres) Stop() error { return p.process.stop(syscall.SIGQUIT) }

// execAt executes a statement in a session of its own.
func execAt(ctx context.Context, url, statement string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// postgresBin returns the directory of the server's binaries. It looks in PATH, then in pg_config's directory, then in
// those of Debian's packages, the newest version first.
func postgresBin(ctx context.Context) (string, error) {
	candidates := []string{}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // a directory of links may lack pg_basebackup
			candidates = append(candidates, filepath.Dir(path))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(debian, func(a, b string) int { return cmp.Compare(majorVersion(b), majorVersion(a)) })
	for _, dir := range append(candidates, debian...) {
		_, noServer := os.Stat(filepath.Join(dir, "postgres"))
		_, noInit := os.Stat(filepath.Join(dir, "initdb"))
		if noServer == nil && noInit == nil {
			return dir, nil
		}
	}
	return "", ErrNoPostgres
}

// majorVersion returns the version in the name of a directory like /usr/lib/postgresql/17/bin, or 0.
func majorVersion(bin string) int {
	v, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return v
}

// runner returns a command that runs one of the server's binaries, as a user that PostgreSQL accepts.
type runner func(attr *syscall.SysProcAttr, name string, args ...string) *exec.Cmd

// initCluster makes the database cluster in dir/data, and returns a runner for the server. PostgreSQL does not run as
// root. For root the runner uses the user nobody.
func initCluster(ctx context.Context, dir string) (runner, error) {
	bin, err := postgresBin(ctx)
	if err != nil {
		return nil, err
	}
	run, err := newRunner(dir, bin)
	if err != nil {
		return nil, err
	}
	initdb := run(childOf(syscall.SIGKILL), "initdb", "-D", filepath.Join(dir, "data"), "-U", databaseName,
		"-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	return run, finish(ctx, initdb, filepath.Join(dir, "initdb.log"))
}

// newRunner returns a runner of the programs in the directory bin. They work in dir. For root it runs them as the user
// nobody, makes that user the owner of dir, and opens the directories above dir.
func newRunner(dir, bin string) (runner, error) {
	var credential *syscall.Credential
	if os.Geteuid() == 0 {
		var err error
		if credential, err = nobodyOwns(dir); err != nil {
			return nil, err
		}
	}
	return func(attr *syscall.SysProcAttr, name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, attr
		cmd.SysProcAttr.Credential = credential
		return cmd
	}, nil
}

// nobodyOwns makes the user nobody the owner of dir, and opens the directories above it.
func nobodyOwns(dir string) (*syscall.Credential, error) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("find a user for PostgreSQL: %w", err)
	}
	uid, uidErr := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(nobody.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("find a user for PostgreSQL: %w", err)
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, fmt.Errorf("make the user nobody the owner of PostgreSQL's directory: %w", err)
	}
	if err := openParents(dir); err != nil {
		return nil, fmt.Errorf("let the user nobody enter PostgreSQL's directory: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// openParents lets every user pass through the directories above dir. It changes only directories within [os.TempDir].
// If another directory is closed to other users, it returns an error.
func openParents(dir string) error {
	temporary := filepath.Clean(os.TempDir()) + string(filepath.Separator)
	for at := filepath.Dir(dir); at != filepath.Dir(at); at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 != 0 {
			continue
		}
		if !strings.HasPrefix(at, temporary) {
			return fmt.Errorf("%s is closed to other users: set TMPDIR to a directory that other users may enter", at)
		}
		if err := os.Chmod(at, info.Mode()|0o001); err != nil {
			return err
		}
	}
	return nil
}
