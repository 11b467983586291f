package devstack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoEngine means that no container engine answers on this machine.
var ErrNoEngine = errors.New("no container engine answers: neither `docker version` nor `podman version` succeeds")

// PostgresImage returns the image for PostgreSQL in a container: the value of POSTGRES_IMAGE or, without it, a default.
func PostgresImage() string { return cmp.Or(os.Getenv("POSTGRES_IMAGE"), "postgres:17.6-alpine") }

// RedisImage returns the image for Redis in a container: the value of REDIS_IMAGE or, without it, a default.
func RedisImage() string { return cmp.Or(os.Getenv("REDIS_IMAGE"), "redis:7.4.5-alpine") }

// Engine is a container engine, Docker or Podman. This package calls the engine's command.
type Engine struct {
	command string
}

// FindEngine returns Docker or, if Docker does not answer, Podman. If neither answers within 10 seconds, the error is
// [ErrNoEngine].
func FindEngine(ctx context.Context) (Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, command := range []string{"docker", "podman"} {
		if exec.CommandContext(ctx, command, "version").Run() == nil {
			return Engine{command}, nil
		}
	}
	return Engine{}, ErrNoEngine
}

// String returns the name of the engine's command.
func (e Engine) String() string { return e.command }

// Pull pulls an image, unless the engine has it. It writes the engine's output to w.
func (e Engine) Pull(ctx context.Context, image string, w io.Writer) error {
	if exec.CommandContext(ctx, e.command, "image", "inspect", image).Run() == nil {
		return nil
	}
	pull := exec.CommandContext(ctx, e.command, "pull", image)
	pull.Stdout, pull.Stderr = w, w
	if err := pull.Run(); err != nil {
		return fmt.Errorf("%s pull %s: %w", e.command, image, err)
	}
	return nil
}

// Container is a server in a container. The engine removes the container when the server ends. The methods must not be
// called concurrently.
type Container struct {
	engine     Engine
	image      string
	dir        string            // the directory for the log
	env        map[string]string // the server's environment
	args       []string          // the server's command line
	data       string            // the directory in the container for the server's data, a tmpfs
	serverPort int               // the server's port in the container
	port       int               // the port of 127.0.0.1 that the engine forwards to the server's port
	address    string            // the server's URL, with %d for the port
	ping       func(ctx context.Context, c *Container) error

	name    string
	stdin   io.Closer
	process *process // the engine's command; it runs as long as the container
}

// StartPostgres runs a PostgreSQL server with a database and a superuser that are both named postgres, and waits until
// the server answers. The server's log is in dir.
func (e Engine) StartPostgres(ctx context.Context, dir string) (*Container, error) {
	password := rand.Text()
	return e.start(ctx, Container{
		image: PostgresImage(), dir: dir, serverPort: 5432, data: "/var/lib/postgresql/data",
		env: map[string]string{
			"POSTGRES_USER": databaseName, "POSTGRES_PASSWORD": password, "POSTGRES_DB": databaseName,
			"PGDATA": "/var/lib/postgresql/data/pgdata",
		},
		args:    []string{"postgres"},
		address: "postgres://" + databaseName + ":" + password + "@127.0.0.1:%d/" + databaseName + "?sslmode=disable",
		ping:    func(ctx context.Context, c *Container) error { return pingPostgres(ctx, c.URL()) },
	})
}

// StartRedis runs a Redis server that saves nothing to disk, and waits until the server answers. The server's log is in
// dir.
func (e Engine) StartRedis(ctx context.Context, dir string) (*Container, error) {
	return e.start(ctx, Container{
		image: RedisImage(), dir: dir, serverPort: 6379, data: "/data",
		args:    []string{"redis-server", "--save", "", "--appendonly", "no"},
		address: "redis://127.0.0.1:%d/0",
		ping:    func(ctx context.Context, c *Container) error { return pingRedis(ctx, c.addr()) },
	})
}

func (e Engine) start(ctx context.Context, c Container) (*Container, error) {
	e.removeStale(ctx)
	return onFreePort(func(port int) (*Container, error) {
		started := c
		started.engine, started.port = e, port
		return &started, started.Restart(ctx)
	})
}

// URL returns the address of the server.
func (c *Container) URL() string { return fmt.Sprintf(c.address, c.port) }

func (c *Container) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// untilEOF runs the image's server as process 1 of the container, and stops the server when standard input ends. The
// engine closes standard input when its client, the command in [Container], ends for any reason. So the container does
// not outlive this process. The kernel drops a signal to process 1 if the process has no handler for it, so the
// script repeats the signal until the server has installed its handler.
const untilEOF = `
exec 3<&0
(
	cat <&3 >/dev/null
	while kill -INT 1; do sleep 1; done
) 2>/dev/null &
exec docker-entrypoint.sh "$@" 3<&- </dev/null`

// Restart starts the server again after [Container.Stop]. It has the same address and no data.
func (c *Container) Restart(ctx context.Context) error {
	c.name = containerName()
	args := []string{
		"run", "--rm", "--interactive", "--name", c.name,
		"--publish", fmt.Sprintf("127.0.0.1:%d:%d", c.port, c.serverPort), "--tmpfs", c.data + ":mode=1777",
	}
	for name := range c.env {
		// The value is not an argument, because other users can see the command line, but not the environment.
		args = append(args, "--env", name)
	}
	args = append(args, "--entrypoint", "sh", c.image, "-c", untilEOF, "sh")
	cmd := exec.Command(c.engine.command, append(args, c.args...)...)
	cmd.Env = os.Environ()
	for name, value := range c.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = childOf(syscall.SIGKILL)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start the container: %w", err)
	}
	p, err := start(cmd, filepath.Join(c.dir, c.name+".log"))
	if err != nil {
		return err
	}
	c.process, c.stdin = p, stdin
	if err := p.await(ctx, func(ctx context.Context) error { return c.ping(ctx, c) }); err != nil {
		return errors.Join(err, c.Stop())
	}
	return nil
}

// Stop stops the server. The engine then removes the container. A second call has no effect.
func (c *Container) Stop() error {
	c.stdin.Close()
	select {
	case <-c.process.ended:
		return nil
	case <-time.After(startTimeout): // an image that still sets up its server stops only after that
	}
	return errors.Join(c.process.kill(), c.engine.remove(context.Background(), c.name))
}

// remove removes a container. It returns nil if the container does not exist.
func (e Engine) remove(ctx context.Context, name string) error {
	output, err := exec.CommandContext(ctx, e.command, "rm", "--force", "--volumes", name).CombinedOutput()
	if err != nil && !strings.Contains(strings.ToLower(string(output)), "no such container") {
		return fmt.Errorf("%s rm %s: %w: %s", e.command, name, err, output)
	}
	return nil
}

// namePrefix begins the names of the containers of this package.
const namePrefix = "devstack-"

// containerName returns a name for a container of this process: the prefix, the process id, random letters and the
// host.
func containerName() string {
	host, _ := os.Hostname() // without a name, assume that only this machine uses the engine
	return fmt.Sprintf("%s%d-%s-%s", namePrefix, os.Getpid(), strings.ToLower(rand.Text()[:8]), host)
}

// removeStale removes the containers that killed processes of this machine have created and not started. It ignores
// errors, because the next container starts also if a stale one remains.
func (e Engine) removeStale(ctx context.Context) {
	host, _ := os.Hostname()
	names, _ := exec.CommandContext(ctx, e.command, "ps", "--all", "--filter", "status=created",
		"--filter", "name="+namePrefix, "--format", "{{.Names}}").Output()
	for name := range strings.FieldsSeq(string(names)) {
		pid, rest, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "-")
		_, origin, _ := strings.Cut(rest, "-")
		if origin == host && isGone(pid) {
			_ = e.remove(ctx, name)
		}
	}
}
