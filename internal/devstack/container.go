package devstack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrNoEngine means that no container engine answers on this machine.
var ErrNoEngine = errors.New("no container engine answers: neither `docker version` nor `podman version` succeeds")

// PostgresImage returns the image for PostgreSQL in a container: the value of POSTGRES_IMAGE or, without it, a default.
func PostgresImage() string { return cmp.Or(os.Getenv("POSTGRES_IMAGE"), "postgres:17.6-alpine") }

// FindEngine returns the command of a container engine: docker or, if Docker does not answer, podman. If neither
// answers within 10 seconds, the error is [ErrNoEngine].
func FindEngine(ctx context.Context) (engine string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, engine := range []string{"docker", "podman"} {
		if exec.CommandContext(ctx, engine, "version").Run() == nil {
			return engine, nil
		}
	}
	return "", ErrNoEngine
}

// PullPostgres pulls the image of PostgreSQL, unless the engine has it. It writes the engine's output to w.
func PullPostgres(ctx context.Context, engine string, w io.Writer) error {
	image := PostgresImage()
	if exec.CommandContext(ctx, engine, "image", "inspect", image).Run() == nil {
		return nil
	}
	pull := exec.CommandContext(ctx, engine, "pull", image)
	pull.Stdout, pull.Stderr = w, w
	if err := pull.Run(); err != nil {
		return fmt.Errorf("%s pull %s: %w", engine, image, err)
	}
	return nil
}

// container is a PostgreSQL server in a container, with a database and a superuser that are both named postgres. The
// engine removes the container when the server ends.
type container struct {
	engine, name string
	url          string
	stdin        io.Closer
	process      *process // the engine's command; it runs as long as the container
}

// untilEOF runs the image's server as process 1 of the container, and stops the server when standard input ends. The
// engine closes standard input when its client, the command in [container], ends for any reason. So the container does
// not outlive this process. The kernel drops a signal to process 1 if the process has no handler for it, so the
// script repeats the signal until the server has installed its handler.
const untilEOF = `
exec 3<&0
(
	cat <&3 >/dev/null
	while kill -INT 1; do sleep 1; done
) 2>/dev/null &
exec docker-entrypoint.sh postgres 3<&- </dev/null`

// startContainer runs the server and waits until it answers. The server's log is in dir.
func startContainer(ctx context.Context, engine, dir string) (*container, error) {
	return onFreePort(func(port int) (*container, error) {
		password := rand.Text()
		c := &container{
			engine: engine,
			name:   fmt.Sprintf("devstack-%d-%s", os.Getpid(), strings.ToLower(rand.Text()[:8])),
			url:    fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/%[1]s?sslmode=disable", databaseName, password, port),
		}
		const data = "/var/lib/postgresql/data"
		cmd := exec.Command(engine, "run", "--rm", "--interactive", "--name", c.name,
			"--publish", fmt.Sprintf("127.0.0.1:%d:5432", port), "--tmpfs", data+":mode=1777",
			"--env", "POSTGRES_USER="+databaseName, "--env", "PGDATA="+data+"/pgdata",
			// The password is no argument, because other users can see the command line, but not the environment.
			"--env", "POSTGRES_PASSWORD", "--entrypoint", "sh", PostgresImage(), "-c", untilEOF)
		cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD="+password)
		cmd.SysProcAttr = childOf(syscall.SIGKILL)
		var err error
		if c.stdin, err = cmd.StdinPipe(); err != nil {
			return nil, fmt.Errorf("start the container: %w", err)
		}
		if c.process, err = start(cmd, filepath.Join(dir, c.name+".log")); err != nil {
			return nil, err
		}
		err = c.process.await(ctx, func(ctx context.Context) error { return execAt(ctx, c.url, `SELECT`) })
		if err != nil {
			return nil, errors.Join(err, c.Stop())
		}
		return c, nil
	})
}

// URL returns the address of the server.
func (c *container) URL() string { return c.url }

// Stop stops the server. The engine then removes the container. A second call has no effect.
func (c *container) Stop() error {
	c.stdin.Close()
	select {
	case <-c.process.ended:
		return nil
	case <-time.After(startTimeout): // an image that still sets up its server stops only after that
	}
	killed := c.process.kill()
	output, err := exec.Command(c.engine, "rm", "--force", "--volumes", c.name).CombinedOutput()
	if err != nil && !strings.Contains(strings.ToLower(string(output)), "no such container") {
		return fmt.Errorf("%s rm %s: %w: %s", c.engine, c.name, err, output)
	}
	return killed
}
