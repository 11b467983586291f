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

	_ "github.com/jackc/pgx/v5/stdlib" // the driver that asks whether the server is ready
)

// ErrNoPostgres means that the machine has no PostgreSQL server to run.
var ErrNoPostgres = errors.New("no PostgreSQL server binaries (initdb, postgres) in PATH, in `pg_config --bindir` " +
	"or in /usr/lib/postgresql: install them (Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql), " +
	"or give the address of a server")

// Postgres is a private PostgreSQL server with a database and a superuser named shop. Its methods are for
// one goroutine at a time.
type Postgres struct {
	run      runner
	dir      string
	env      []string
	settings map[string]string
	port     int
	process  *process
}

// StartPostgres makes a database cluster in dir, which must exist, and runs it with the given settings.
// It returns once the server answers: after about a second.
func StartPostgres(ctx context.Context, dir string, settings map[string]string) (*Postgres, error) {
	return StartPostgresEnv(ctx, nil, dir, settings)
}

// StartPostgresEnv is StartPostgres with more in the server's environment.
func StartPostgresEnv(ctx context.Context, env []string, dir string, settings map[string]string) (*Postgres, error) {
	run, err := initCluster(ctx, dir)
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port int) (*Postgres, error) {
		p := &Postgres{run: run, dir: dir, env: env, settings: settings, port: port}
		if err := p.start(ctx, p.createDatabase); err != nil {
			return nil, err
		}
		return p, nil
	})
}

// start runs the server and waits until it is ready.
func (p *Postgres) start(ctx context.Context, ready func(context.Context) error) error {
	args := []string{
		"-D", filepath.Join(p.dir, "data"), "-p", strconv.Itoa(p.port),
		// No socket: its path would have to be shorter than a temporary directory may be.
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
	}
	for _, name := range slices.Sorted(maps.Keys(p.settings)) {
		args = append(args, "-c", name+"="+p.settings[name])
	}
	// SIGQUIT: an immediate shutdown, which unlike SIGKILL releases the shared memory.
	cmd := p.run(childOf(syscall.SIGQUIT), "postgres", args...)
	cmd.Env = append(os.Environ(), p.env...)
	server, err := start(cmd, filepath.Join(p.dir, "postgres.log"))
	if err != nil {
		return err
	}
	p.process = server
	if err := server.await(ctx, ready); err != nil {
		return errors.Join(err, server.kill())
	}
	return nil
}

// Restart starts the server again after Stop, at the same address and with its data.
func (p *Postgres) Restart(ctx context.Context) error { return p.start(ctx, p.ping) }

// Pid is the server's process id.
func (p *Postgres) Pid() int { return p.process.cmd.Process.Pid }

// Log is what the server has logged since its last start.
func (p *Postgres) Log() (string, error) {
	log, err := os.ReadFile(p.process.logPath)
	return string(log), err
}

// URL is the address of the server's database.
func (p *Postgres) URL() string { return p.url("shop") }

func (p *Postgres) url(database string) string {
	return fmt.Sprintf("postgres://shop@127.0.0.1:%d/%s?sslmode=disable", p.port, database)
}

// Stop ends the server, and the sessions that it has, at once: a clean shutdown would write a checkpoint
// of data that are thrown away. Restarted, the server recovers as after a crash.
func (p *Postgres) Stop() error { return p.process.stop(syscall.SIGQUIT) }

func (p *Postgres) createDatabase(ctx context.Context) error {
	db, err := sql.Open("pgx", p.url("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE DATABASE shop")
	return err
}

func (p *Postgres) ping(ctx context.Context) error { return pingPostgres(ctx, p.URL()) }

func pingPostgres(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(ctx)
}

// postgresBin finds the directory of the server's binaries, the newest of several.
func postgresBin(ctx context.Context) (string, error) {
	candidates := []string{}
	if path, err := exec.LookPath("postgres"); err == nil {
		candidates = append(candidates, filepath.Dir(path))
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

// majorVersion of a directory like /usr/lib/postgresql/17/bin.
func majorVersion(bin string) int {
	v, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return v
}

// runner makes a command of the server's user.
type runner func(attr *syscall.SysProcAttr, name string, args ...string) *exec.Cmd

// initCluster makes the database cluster and returns how to run the server on it: as whoever we are, or
// for root, as someone that PostgreSQL accepts.
func initCluster(ctx context.Context, dir string) (runner, error) {
	bin, err := postgresBin(ctx)
	if err != nil {
		return nil, err
	}
	plain := func(attr *syscall.SysProcAttr, name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, attr
		return cmd
	}
	if os.Geteuid() != 0 {
		return plain, initdb(ctx, plain, dir)
	}
	inNamespace := func(attr *syscall.SysProcAttr, name string, args ...string) *exec.Cmd {
		return plain(asNobody(attr), name, args...)
	}
	refused := initdb(ctx, inNamespace, dir)
	if refused == nil {
		return inNamespace, nil
	}
	asUser, err := userRunner(plain, dir)
	if err != nil {
		return nil, errors.Join(refused, err)
	}
	if err := initdb(ctx, asUser, dir); err != nil {
		return nil, errors.Join(refused, err)
	}
	return asUser, nil
}

// userRunner runs commands as nobody, where user namespaces are refused: in a container, for example. Nobody must own
// dir for that, and be able to reach it.
func userRunner(plain runner, dir string) (runner, error) {
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
		return nil, fmt.Errorf("give PostgreSQL's directory to nobody: %w", err)
	}
	if err := openWay(dir); err != nil {
		return nil, fmt.Errorf("let nobody reach PostgreSQL's directory: %w", err)
	}
	return func(attr *syscall.SysProcAttr, name string, args ...string) *exec.Cmd {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return plain(attr, name, args...)
	}, nil
}

// openWay lets every user pass through the directories above dir. It changes those below the machine's directory for
// temporary files; the others must be open already.
func openWay(dir string) error {
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
			return fmt.Errorf("other users may not enter %s: set TMPDIR to a directory that they may", at)
		}
		if err := os.Chmod(at, info.Mode()|0o001); err != nil {
			return err
		}
	}
	return nil
}

func initdb(ctx context.Context, run runner, dir string) error {
	data := filepath.Join(dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("clear %s: %w", data, err)
	}
	cmd := run(childOf(syscall.SIGKILL), "initdb", "-D", data, "-U", "shop", "-A", "trust",
		"-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	p, err := start(cmd, filepath.Join(dir, "initdb.log"))
	if err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.kill())
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("initdb: %s", p.logTail())
	}
	return nil
}
