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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoRedis means that the machine has no redis-server.
var ErrNoRedis = errors.New("no redis-server in PATH: install it (Debian and Ubuntu: apt-get install redis-server; " +
	"macOS: brew install redis), or give the address of a server")

// Redis is a private Redis server. Its methods are for one goroutine at a time.
type Redis struct {
	binary  string
	dir     string
	args    []string
	env     []string
	port    int
	process *process
}

// StartRedis runs a server that keeps nothing on disk, unless args say otherwise, in dir, which must
// exist. It returns once the server answers.
func StartRedis(ctx context.Context, dir string, args ...string) (*Redis, error) {
	return StartRedisEnv(ctx, nil, dir, args...)
}

// StartRedisEnv is StartRedis with more in the server's environment.
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

func redisBinary() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ErrNoRedis
	}
	return path, nil
}

// Addr is the server's host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// URL is the address of the server's database 0.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }

// Pid is the server's process id.
func (r *Redis) Pid() int { return r.process.cmd.Process.Pid }

// Stop ends the server. Stopped again, nothing happens.
func (r *Redis) Stop() error { return r.process.stop(syscall.SIGTERM) }

// Kill ends the server with SIGKILL.
func (r *Redis) Kill() error { return r.process.kill() }

// Restart starts the server again after Stop or Kill, at the same address. Without persistence it is empty.
func (r *Redis) Restart(ctx context.Context) error {
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--dir", r.dir, "--save", "", "--appendonly", "no",
	}, r.args...)
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

// pingRedis accepts any answer of a server that has loaded its data.
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
