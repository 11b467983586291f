package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// demo starts `shop demo`. Its files go to a directory that any user may write to.
func demo(t *testing.T, change func(*exec.Cmd), args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && len(at) > 1; at = filepath.Dir(at) {
		must(t, os.Chmod(at, 0o777))
	}
	cmd := command(t, []string{"TMPDIR=" + dir, "HOME=" + dir},
		append([]string{"demo", "--http-addr", "127.0.0.1:0"}, args...)...)
	if change != nil {
		change(cmd)
	}
	return start(t, cmd)
}

func TestDemo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := demo(t, nil, "--order-timeout", "2s")
	t.Logf("up after %v, the build included", time.Since(began)) // no machine is like another: measured only
	mainJob(t, p)
}

// TestDemoFaults breaks the demo as its page does, each fault twice.
func TestDemoFaults(t *testing.T) {
	t.Parallel()
	p := demo(t, nil, "--order-timeout", "3s")
	c, ops := p.signUp(), p.operator()
	fault := func(name string) {
		t.Helper()
		for range 2 {
			ops.post(http.StatusNoContent, "/ops/api/faults/"+name)
		}
	}
	fault("redis-wipe")
	wiped := c.place()
	fault("redis-wipe")
	c.cancelledOnTime(wiped.ID)

	fault("redis-stop")
	stopped := c.place()
	c.cancelledOnTime(stopped.ID) // by the reconciler
	fault("redis-start")

	fault("worker-pause")
	paused := c.place()
	c.cancelledOnTime(paused.ID)
	fault("worker-resume")
	c.cancelledOnTime(c.place().ID)
	ops.post(http.StatusNotFound, "/ops/api/faults/no-such-fault")
	c.post(http.StatusUnauthorized, "/ops/api/faults/redis-stop")
}

func TestDemoWithoutRedisServer(t *testing.T) {
	t.Parallel()
	p := demo(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "PATH="+t.TempDir()) }, "--order-timeout", "1s")
	eventually(t, "the stand-in for Redis announced", func() bool { return strings.Contains(p.text(), "stand-in") })
	c := p.signUp()
	c.cancelledOnTime(c.place().ID)
}

func TestDemoAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	p := demo(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
	}, "--order-timeout", "1s")
	c := p.signUp()
	c.cancelledOnTime(c.place().ID)
}

// TestDemoLeavesNothing ends the demo as Ctrl-C does and as kill -9 does. Without redis-server its Redis is not a
// process of its own.
func TestDemoLeavesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends the children of a killed parent")
	}
	servers := []string{"postgres"}
	if _, err := exec.LookPath("redis-server"); err == nil {
		servers = append(servers, "redis-server")
	}
	for name, end := range map[string]func(*process){
		"Ctrl-C":  func(p *process) { t.Logf("stopped in %v", p.interrupt()) },
		"kill -9": (*process).kill,
	} {
		t.Run(name, func(t *testing.T) {
			p := demo(t, nil)
			children := childrenOf(t, p.cmd.Process.Pid)
			var names []string
			for _, pid := range children {
				names = append(names, nameOf(pid))
			}
			slices.Sort(names)
			if !slices.Equal(names, servers) {
				t.Fatalf("the demo has the children %q, want %q", names, servers)
			}
			end(p)
			eventually(t, "all children gone", func() bool { return !slices.ContainsFunc(children, alive) })
		})
	}
}

// TestDemoEndsWithGoRun kills `go run`, which cannot tell its child: here a shell of that name stands in for it.
func TestDemoEndsWithGoRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells who the parent is")
	}
	shell, err := os.ReadFile("/bin/sh")
	must(t, err)
	goRun := filepath.Join(t.TempDir(), "go")
	must(t, os.WriteFile(goRun, shell, 0o700))
	p := demo(t, func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"go", "-c", `"$0" "$@" & wait`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = goRun
	})
	children := childrenOf(t, p.cmd.Process.Pid)
	if len(children) != 1 {
		t.Fatalf("the shell has the children %v, want the demo", children)
	}
	must(t, p.cmd.Process.Kill())
	eventually(t, "the demo gone", func() bool { return !alive(children[0]) })
}

// childrenOf lists the processes that a process started.
func childrenOf(t *testing.T, parent int) (children []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		must(t, err)
		if fields := statOf(pid); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}
	return children
}

// statOf is a process's state, parent and what follows in /proc/PID/stat; nil if it is gone.
func statOf(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// nameOf is the name of a process's program; "" if it is gone.
func nameOf(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(name))
}

// alive tells whether a process runs; a zombie does not, it waits for its new parent to look.
func alive(pid int) bool {
	fields := statOf(pid)
	return fields != nil && fields[0] != "Z"
}

// hidePostgres has a command run where PostgreSQL's binaries are out of sight, and of the programs in PATH only the
// named one is there.
func hidePostgres(t *testing.T, cmd *exec.Cmd, program string) {
	t.Helper()
	path, err := exec.LookPath(program)
	must(t, err)
	only := t.TempDir()
	must(t, os.Symlink(path, filepath.Join(only, program)))
	const installed = "/usr/lib/postgresql" // is looked at wherever PATH leads
	mount := "true"
	if _, err := os.Stat(installed); err == nil {
		mount = "mount -t tmpfs none " + installed
	}
	unshare := []string{"unshare", "--mount"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "sh", "-c", mount)...).CombinedOutput(); err != nil {
		t.Skipf("cannot hide the PostgreSQL of this machine: %v: %s", err, out)
	}
	script := mount + ` && PATH="$0" && export PATH && exec "$@"`
	cmd.Args = slices.Concat(unshare, []string{"sh", "-c", script, only, cmd.Path}, cmd.Args[1:])
	cmd.Path, err = exec.LookPath(unshare[0])
	must(t, err)
}

// TestContainerDemo runs the demo where there is no PostgreSQL but a container engine, breaks and mends its Redis, and
// ends it as Ctrl-C does and as kill -9 does: no container is left.
func TestContainerDemo(t *testing.T) {
	t.Parallel()
	needsProcesses(t)
	engine, err := devstack.FindEngine(t.Context())
	for _, image := range []string{devstack.PostgresImage(), devstack.RedisImage()} {
		if err == nil {
			err = engine.Pull(t.Context(), image, io.Discard)
		}
	}
	if err != nil {
		testenv.Skip(t, "containers", fmt.Sprintf("%v (Debian and Ubuntu: apt-get install docker.io)", err))
	}
	for name, end := range map[string]func(*process){
		"Ctrl-C":  func(p *process) { t.Logf("stopped in %v", p.interrupt()) },
		"kill -9": (*process).kill,
	} {
		t.Run(name, func(t *testing.T) {
			p := demo(t, func(cmd *exec.Cmd) { hidePostgres(t, cmd, engine.String()) }, "--order-timeout", "3s")
			eventually(t, "both servers listed", func() bool { return strings.Contains(p.text(), "a container of "+devstack.RedisImage()) })
			contains(t, p.text(), "this machine has no PostgreSQL", "a container of "+devstack.PostgresImage())
			containers := func() []string {
				out, err := exec.Command(engine.String(), "ps", "--all", "--format", "{{.Names}}",
					"--filter", fmt.Sprintf("name=devstack-%d-", p.cmd.Process.Pid)).Output()
				must(t, err)
				return strings.Fields(string(out))
			}
			if names := containers(); len(names) != 2 {
				t.Errorf("the demo's containers are %q, want two", names)
			}
			c, ops := p.signUp(), p.operator()
			ops.post(http.StatusNoContent, "/ops/api/faults/redis-stop")
			if names := containers(); len(names) != 1 {
				t.Errorf("with Redis stopped the demo's containers are %q, want one", names)
			}
			o := c.place()
			ops.post(http.StatusNoContent, "/ops/api/faults/redis-start")
			c.cancelledOnTime(o.ID)
			c.cancelledOnTime(c.place().ID)
			end(p)
			eventually(t, "all containers gone", func() bool { return len(containers()) == 0 })
		})
	}
}

// TestDemoWithoutServers: there is neither PostgreSQL nor a container engine. One line names both ways out.
func TestDemoWithoutServers(t *testing.T) {
	t.Parallel()
	cmd := command(t, nil, "demo")
	hidePostgres(t, cmd, "true")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	contains(t, lines[len(lines)-1], "shop: no PostgreSQL server binaries", "apt-get install postgresql", "shop serve", "start a container engine", "docker version")
}
