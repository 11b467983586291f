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

// ErrNoEngine means that the machine has no container engine that answers.
var ErrNoEngine = errors.New("no container engine answers: neither `docker version` nor `podman version` succeeds")

// PostgresImage is the image for a PostgreSQL in a container: docker-compose.yml's, or the value of its variable.
func PostgresImage() string { return cmp.Or(os.Getenv("POSTGRES_IMAGE"), "postgres:17.6-alpine") }

// RedisImage is the image for a Redis in a container: docker-compose.yml's, or the value of its variable.
func RedisImage() string { return cmp.Or(os.Getenv("REDIS_IMAGE"), "redis:7.4.5-alpine") }

// Engine is a container engine, reached by its command line.
type Engine struct {
	command string
}

// FindEngine returns the first engine that answers, or [ErrNoEngine].
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

// String is the name of the engine's command.
func (e Engine) String() string { return e.command }

// Pull fetches an image that the engine does not have. It writes the engine's progress to w.
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

// Container is a server in a container, which is gone when the server ends. Its methods are for one goroutine
// at a time.
type Container struct {
	engine  Engine
	image   string
	dir     string            // for the log
	env     map[string]string // of the server
	args    []string          // the server's command line
	data    string            // the directory of the server's data, kept in memory
	inside  int               // the port that the server listens on, within the container
	port    int               // the same port, on this machine's 127.0.0.1
	address string            // the URL, with %d for the port
	ping    func(ctx context.Context, c *Container) error

	name    string
	stdin   io.Closer
	process *process // the engine's command, which runs as long as the container does
}

// StartPostgres runs a PostgreSQL with a database and a superuser named shop, and keeps its log in dir. It returns
// once the server answers.
func (e Engine) StartPostgres(ctx context.Context, dir string) (*Container, error) {
	password := rand.Text()
	return e.start(ctx, Container{
		image: PostgresImage(), dir: dir, inside: 5432, data: "/var/lib/postgresql/data",
		env: map[string]string{
			"POSTGRES_USER": "shop", "POSTGRES_PASSWORD": password, "POSTGRES_DB": "shop",
			"PGDATA": "/var/lib/postgresql/data/pgdata",
		},
		args:    []string{"postgres"},
		address: "postgres://shop:" + password + "@127.0.0.1:%d/shop?sslmode=disable",
		ping:    func(ctx context.Context, c *Container) error { return pingPostgres(ctx, c.URL()) },
	})
}

// StartRedis runs a Redis that keeps nothing on disk, and keeps its log in dir. It returns once the server answers.
func (e Engine) StartRedis(ctx context.Context, dir string) (*Container, error) {
	return e.start(ctx, Container{
		image: RedisImage(), dir: dir, inside: 6379, data: "/data",
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

// URL is the address of the server.
func (c *Container) URL() string { return fmt.Sprintf(c.address, c.port) }

func (c *Container) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// untilEOF runs the image's server as the container's first process, and ends it when standard input ends. The
// engine closes that when its client is gone, however the client ended, so the container does not outlive us. The
// first process ignores signals for which it has no handler: a server that is still being set up gets the next one.
const untilEOF = `
exec 3<&0
(
	cat <&3 >/dev/null
	while kill -INT 1; do sleep 1; done
) 2>/dev/null &
exec docker-entrypoint.sh "$@" 3<&- </dev/null`

// Restart starts the server again after Stop, at the same address and empty.
func (c *Container) Restart(ctx context.Context) error {
	c.name = containerName()
	args := []string{
		"run", "--rm", "--interactive", "--name", c.name,
		"--publish", fmt.Sprintf("127.0.0.1:%d:%d", c.port, c.inside), "--tmpfs", c.data + ":mode=1777",
	}
	for name := range c.env {
		args = append(args, "--env", name) // the value is not for the list of processes
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
		return fmt.Errorf("start a container: %w", err)
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

// Stop ends the server, and with it the container. Stopped again, nothing happens.
func (c *Container) Stop() error {
	c.stdin.Close()
	select {
	case <-c.process.ended:
		return nil
	case <-time.After(startTimeout): // its setup ends first
	}
	return errors.Join(c.process.kill(), c.engine.remove(context.Background(), c.name))
}

func (e Engine) remove(ctx context.Context, name string) error {
	said, err := exec.CommandContext(ctx, e.command, "rm", "--force", "--volumes", name).CombinedOutput()
	if err != nil && !strings.Contains(strings.ToLower(string(said)), "no such container") {
		return fmt.Errorf("%s rm: %w: %s", e.command, err, said)
	}
	return nil
}

const namePrefix = "devstack-"

// containerName is one for a container of this process.
func containerName() string {
	host, _ := os.Hostname() // "" is as good: the engine's containers are most often all this machine's
	return fmt.Sprintf("%s%d-%s-%s", namePrefix, os.Getpid(), strings.ToLower(rand.Text()[:8]), host)
}

// removeStale removes containers that were created but never started, because their process was killed in between.
// It is a courtesy: an error says nothing about the containers to come.
func (e Engine) removeStale(ctx context.Context) {
	host, _ := os.Hostname()
	names, _ := exec.CommandContext(ctx, e.command, "ps", "--all", "--filter", "status=created", "--filter", "name="+namePrefix,
		"--format", "{{.Names}}").Output()
	for name := range strings.FieldsSeq(string(names)) {
		owner, rest, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "-")
		_, there, _ := strings.Cut(rest, "-")
		if there == host && isGone(owner) {
			_ = e.remove(ctx, name)
		}
	}
}
