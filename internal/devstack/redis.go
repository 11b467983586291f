package devstack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoRedis means that the machine does not have redis-server.
var ErrNoRedis = errors.New("no redis-server in PATH: install it (Debian and Ubuntu: apt-get install redis-server; " +
	"macOS: brew install redis), or give the address of a server")

// Redis is a private Redis server, or a Sentinel. The methods must not be called concurrently.
type Redis struct {
	binary  string
	first   []string // the arguments that the binary expects before all others
	dir     string
	args    []string
	env     []string
	port    int
	process *process
}

// StartRedis runs a server that saves nothing to disk. The server works in dir, an existing directory. The arguments
// are added to its command line, and override the defaults. StartRedis waits until the server answers. If the machine
// has no redis-server, the error is [ErrNoRedis].
func StartRedis(ctx context.Context, dir string, args ...string) (*Redis, error) {
	return StartRedisEnv(ctx, nil, dir, args...)
}

// StartRedisEnv is [StartRedis] with additional environment variables, each NAME=VALUE, for the server.
func StartRedisEnv(ctx context.Context, env []string, dir string, args ...string) (*Redis, error) {
	binary, err := redisBinary()
	if err != nil {
		return nil, err
	}
	return onFreePort(func(port int) (*Redis, error) {
		r := &Redis{binary: binary, dir: dir, args: args, env: env, port: port}
		return r, r.Restart(ctx)
	})
}

// StartSentinel runs a Sentinel that monitors no master yet. It keeps its state in dir, an existing directory.
func StartSentinel(ctx context.Context, dir string) (*Redis, error) {
	binary, err := redisBinary()
	if err != nil {
		return nil, err
	}
	state := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(state, nil, 0o600); err != nil {
		return nil, fmt.Errorf("create the Sentinel's state: %w", err)
	}
	return onFreePort(func(port int) (*Redis, error) {
		r := &Redis{binary: binary, first: []string{state, "--sentinel"}, dir: dir, port: port}
		return r, r.Restart(ctx)
	})
}

func redisBinary() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ErrNoRedis
	}
	return path, nil
}

// Addr returns the server's host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// URL returns the address of the server's database 0.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }

// Pid returns the server's process id.
func (r *Redis) Pid() int { return r.process.cmd.Process.Pid }

// Stop stops the server. A second call has no effect.
func (r *Redis) Stop() error { return r.process.stop(syscall.SIGTERM) }

// Kill kills the server (SIGKILL). A second call has no effect.
func (r *Redis) Kill() error { return r.process.kill() }

// Restart starts the server again after [Redis.Stop] or [Redis.Kill]. It has the same address, and no data unless the
// arguments of [StartRedis] enable persistence.
func (r *Redis) Restart(ctx context.Context) error {
	args := slices.Concat(r.first, []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--dir", r.dir, "--save", "", "--appendonly", "no",
	}, r.args)
	cmd := exec.Command(r.binary, args...)
	cmd.SysProcAttr = childOf(syscall.SIGKILL)
	cmd.Env = append(os.Environ(), r.env...)
	p, err := start(cmd, filepath.Join(r.dir, "redis-"+strconv.Itoa(r.port)+".log"))
	if err != nil {
		return err
	}
	r.process = p
	if err := p.await(ctx, func(ctx context.Context) error { return pingRedis(ctx, r.Addr()) }); err != nil {
		return errors.Join(err, p.kill())
	}
	return nil
}

// pingRedis sends a PING. It accepts any answer except LOADING, even an error: the server may require a password.
func pingRedis(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(answer, "-LOADING") {
		return fmt.Errorf("redis: %s", strings.TrimSpace(answer))
	}
	return nil
}
