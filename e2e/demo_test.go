package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// demo starts the demo.
func demo(t *testing.T, change func(*exec.Cmd), args ...string) *faulttest.Process {
	t.Helper()
	return shoptest.Demo(t, orders, change, args...)
}

// TestDemo starts the demo, as a newcomer does. An order is cancelled on time, also while each of the demo's faults
// lasts. The requests of the faults are idempotent, so it sends each twice. It ends the demo as Ctrl-C does, and
// nothing may be left.
func TestDemo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := demo(t, nil, timeoutFlag, "2s")
	// no bound: the time depends on the machine
	t.Logf("the demo served after %v, including the build", time.Since(began))
	servers := serversOf(t, p.Cmd.Process.Pid)

	c, ops := p.SignUp(), p.Operator()
	fault := func(name string) {
		t.Helper()
		for range 2 {
			ops.Post(http.StatusNoContent, "/ops/api/faults/"+name)
		}
	}
	active := func(redisStopped, workerPaused bool) {
		t.Helper()
		type faults struct {
			RedisStopped bool `json:"redis_stopped"`
			WorkerPaused bool `json:"worker_paused"`
		}
		want := faults{redisStopped, workerPaused}
		if got := faulttest.Decode[faults](t, ops.Get("/ops/api/faults")); got != want {
			t.Errorf("active faults: %+v, want %+v", got, want)
		}
	}
	active(false, false)
	fault("redis-wipe")
	wiped := c.Create()
	fault("redis-wipe")
	c.WaitForTimeout(wiped.ID)

	fault("redis-stop")
	active(true, false)
	c.WaitForTimeout(c.Create().ID) // by the reconciler
	fault("redis-start")

	fault("worker-pause")
	active(false, true)
	c.WaitForTimeout(c.Create().ID) // by the reconciler
	fault("worker-resume")
	active(false, false)
	t.Logf("the last order was cancelled %v after its deadline", c.WaitForTimeout(c.Create().ID))
	ops.Post(http.StatusNotFound, "/ops/api/faults/no-such-fault")
	c.Post(http.StatusUnauthorized, "/ops/api/faults/redis-stop")
	noViolations(t, p)

	faulttest.Contains(t, p.Text(), "starting a private PostgreSQL and Redis",
		"An order that is not paid within 2s is cancelled.")
	if strings.Contains(p.Text(), "pay orders at once") {
		t.Errorf("the demo warns of what it has set itself:\n%s", p.Text())
	}
	t.Logf("stopped in %v", p.Interrupt())
	faulttest.Eventually(t, "all servers ended", func() bool { return !slices.ContainsFunc(servers, alive) })
}

// serversOf returns the ids of the servers that a demo has started. Without redis-server, the demo has no process for
// Redis. On other systems than Linux, which have no /proc, it returns none.
func serversOf(t *testing.T, demo int) (children []int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	want := []string{"postgres"}
	if _, err := exec.LookPath("redis-server"); err == nil {
		want = append(want, "redis-server")
	}
	children = faulttest.ChildrenOf(t, demo)
	var names []string
	for _, pid := range children {
		names = append(names, nameOf(pid))
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Fatalf("the demo has the children %q, want %q", names, want)
	}
	return children
}

// TestDemoElsewhere runs the demo where it finds less than on a developer's machine, and ends it in other ways than
// Ctrl-C.
func TestDemoElsewhere(t *testing.T) {
	testenv.Slow(t, "starts several demos")
	faulttest.NeedsProcesses(t)
	t.Parallel()
	t.Run("an ordinary user kills it", testDemoKilled)
	t.Run("without redis-server, by go run", testDemoOfGoRun)
	t.Run("in containers", testDemoInContainers)
	t.Run("without any servers", testDemoWithoutServers)
	t.Run("at an address that is in use", testDemoAtAnAddressInUse)
	t.Run("its terminal is closed", func(t *testing.T) {
		if signal.Ignored(syscall.SIGHUP) {
			t.Skip("this process ignores SIGHUP, as under nohup, so its children do, too")
		}
		testDemoStops(t, "Ctrl-C stops it", func(p *os.Process, _ *os.File, _ string) {
			testenv.Must(t, p.Signal(syscall.SIGHUP))
			_ = p.Signal(syscall.SIGHUP) // some shells send it beside the kernel
		})
	})
	t.Run("nobody reads its output", func(t *testing.T) {
		testDemoStops(t, "the hub listens to Redis", func(_ *os.Process, output *os.File, printed string) {
			output.Close()
			url := regexp.MustCompile(`shop +(http://\S+)`).FindStringSubmatch(printed)[1]
			if answer, err := http.Get(url + "/api/products"); err == nil { // its log line is the next output, or there was one
				answer.Body.Close()
			}
		})
	})
	t.Run("interrupted while it starts", func(t *testing.T) {
		testDemoStops(t, "starting",
			func(p *os.Process, _ *os.File, _ string) { testenv.Must(t, p.Signal(os.Interrupt)) })
	})
}

// testDemoKilled runs the demo as a user without privileges, in a directory that the user cannot write to, and ends it
// as kill -9 does. Its servers must end, too.
func testDemoKilled(t *testing.T) {
	p := demo(t, func(cmd *exec.Cmd) {
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		cmd.Dir = "/"
	}, timeoutFlag, "1s")
	servers := serversOf(t, p.Cmd.Process.Pid)
	c := p.SignUp()
	c.WaitForTimeout(c.Create().ID)
	p.Kill()
	faulttest.Eventually(t, "all servers ended", func() bool { return !slices.ContainsFunc(servers, alive) })
}

// testDemoOfGoRun runs the demo with a PATH without redis-server, so that it uses a stand-in for Redis. Then it kills
// the demo's parent process, as a user kills go run, which cannot stop its child then. A shell under the name go takes
// the place of go run.
func testDemoOfGoRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the parent process is found only on Linux, in /proc")
	}
	shell, err := os.ReadFile("/bin/sh")
	testenv.Must(t, err)
	goRun := filepath.Join(t.TempDir(), "go")
	testenv.Must(t, os.WriteFile(goRun, shell, 0o700))
	p := demo(t, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "PATH="+t.TempDir())
		cmd.Args = append([]string{"go", "-c", `"$0" "$@" & wait`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = goRun
	}, timeoutFlag, "1s")
	faulttest.Eventually(t, "the demo prints that it uses a stand-in for Redis",
		func() bool { return strings.Contains(p.Text(), "stand-in") })
	c := p.SignUp()
	c.WaitForTimeout(c.Create().ID)
	children := faulttest.ChildrenOf(t, p.Cmd.Process.Pid)
	if len(children) != 1 {
		t.Fatalf("the shell has the children %v, want only the demo", children)
	}
	servers := faulttest.ChildrenOf(t, children[0])
	testenv.Must(t, p.Cmd.Process.Kill())
	faulttest.Eventually(t, "the demo and its server have ended",
		func() bool { return !slices.ContainsFunc(append(servers, children[0]), alive) })
}

// hidePostgres changes a command so that it finds no binaries of PostgreSQL, and only the named program in PATH.
func hidePostgres(t *testing.T, cmd *exec.Cmd, program string) {
	t.Helper()
	path, err := exec.LookPath(program)
	testenv.Must(t, err)
	only := t.TempDir()
	testenv.Must(t, os.Symlink(path, filepath.Join(only, program)))
	const installed = "/usr/lib/postgresql" // the demo looks there too, not only in PATH
	mount := "true"
	if _, err := os.Stat(installed); err == nil {
		mount = "mount -t tmpfs none " + installed
	}
	unshare := []string{"unshare", "--mount"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "sh", "-c", mount)...).CombinedOutput(); err != nil {
		t.Skipf("cannot hide this machine's PostgreSQL in a mount namespace: %v: %s", err, out)
	}
	script := mount + ` && PATH="$0" && export PATH && exec "$@"`
	cmd.Args = slices.Concat(unshare, []string{"sh", "-c", script, only, cmd.Path}, cmd.Args[1:])
	cmd.Path, err = exec.LookPath(unshare[0])
	testenv.Must(t, err)
}

// testDemoInContainers runs the demo on a machine with a container engine but without PostgreSQL. It stops and starts
// the demo's Redis, and ends the demo as Ctrl-C does. Then it kills another demo. No container may be left.
func testDemoInContainers(t *testing.T) {
	engine, err := devstack.FindEngine(t.Context())
	for _, image := range []string{devstack.PostgresImage(), devstack.RedisImage()} {
		if err == nil {
			err = engine.Pull(t.Context(), image, io.Discard)
		}
	}
	if err != nil {
		testenv.Skip(t, "containers", fmt.Sprintf("%v (Debian and Ubuntu: apt-get install docker.io)", err))
	}
	begin := func() *faulttest.Process {
		t.Helper()
		p := demo(t, func(cmd *exec.Cmd) { hidePostgres(t, cmd, engine.String()) }, timeoutFlag, "3s")
		faulttest.Eventually(t, "the demo lists both servers",
			func() bool { return strings.Contains(p.Text(), "a container of "+devstack.RedisImage()) })
		faulttest.Contains(t, p.Text(), "this machine has no PostgreSQL", "a container of "+devstack.PostgresImage())
		return p
	}
	containers := func(p *faulttest.Process) []string {
		t.Helper()
		out, err := exec.Command(engine.String(), "ps", "--all", "--format", "{{.Names}}",
			"--filter", fmt.Sprintf("name=devstack-%d-", p.Cmd.Process.Pid)).Output()
		testenv.Must(t, err)
		return strings.Fields(string(out))
	}

	p := begin()
	if names := containers(p); len(names) != 2 {
		t.Errorf("the demo's containers are %q, want two", names)
	}
	c, ops := p.SignUp(), p.Operator()
	ops.Post(http.StatusNoContent, "/ops/api/faults/redis-stop")
	if names := containers(p); len(names) != 1 {
		t.Errorf("with Redis stopped the demo's containers are %q, want one", names)
	}
	created := c.Create()
	ops.Post(http.StatusNoContent, "/ops/api/faults/redis-start")
	c.WaitForTimeout(created.ID)
	c.WaitForTimeout(c.Create().ID)
	t.Logf("stopped in %v", p.Interrupt())
	faulttest.Eventually(t, "all containers removed", func() bool { return len(containers(p)) == 0 })

	killed := begin()
	killed.Kill()
	faulttest.Eventually(t, "all containers removed", func() bool { return len(containers(killed)) == 0 })
}

// testDemoWithoutServers runs the demo without PostgreSQL and without a container engine. The last line of the output
// names both remedies.
func testDemoWithoutServers(t *testing.T) {
	cmd := orders.Command(t, nil, "demo")
	hidePostgres(t, cmd, "true")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the demo ended with %v, want exit code 1", err)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	faulttest.Contains(t, lines[len(lines)-1], orders.Program+": no PostgreSQL server binaries",
		"apt-get install postgresql", "the command serve", "start a container engine", "docker version")
}

// nameOf returns the name of a process's program, or "" if the process has ended.
func nameOf(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(name))
}

// alive reports whether a process runs. A zombie has ended, but its parent has not read its status yet.
func alive(pid int) bool {
	fields := faulttest.StatOf(pid)
	return fields != nil && fields[0] != "Z"
}

// testDemoAtAnAddressInUse names an address at which the test listens. The demo must say so before it starts servers.
func testDemoAtAnAddressInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	defer ln.Close()
	out, err := orders.Command(t, nil, "demo", "--http-addr", ln.Addr().String()).CombinedOutput()
	if err == nil || strings.Contains(string(out), "starting") {
		t.Errorf("the demo ended with %v and printed %q, want an error before it starts servers", err, out)
	}
	faulttest.Contains(t, string(out), "SHOP_HTTP_ADDR (--http-addr)", ln.Addr().String(), "already in use")
}

// testDemoStops stops a demo when it has printed a text. It must leave no files, and must not print the error of a
// context.
func testDemoStops(t *testing.T, after string, stop func(p *os.Process, output *os.File, printed string)) {
	dir := t.TempDir()
	cmd := orders.Command(t, []string{"TMPDIR=" + dir}, "demo", "--http-addr", "127.0.0.1:0")
	output, written, err := os.Pipe()
	testenv.Must(t, err)
	defer output.Close()
	cmd.Stdout, cmd.Stderr = written, written
	testenv.Must(t, cmd.Start())
	limit := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	testenv.Must(t, written.Close())
	lines := bufio.NewScanner(output)
	var printed strings.Builder
	for !strings.Contains(printed.String(), after) && lines.Scan() {
		fmt.Fprintln(&printed, lines.Text())
	}
	stop(cmd.Process, output, printed.String())
	for lines.Scan() {
		fmt.Fprintln(&printed, lines.Text())
	}
	_ = cmd.Wait() // a demo that was interrupted while it started has the exit code 1
	if !limit.Stop() {
		t.Errorf("the demo did not stop, and printed:\n%s", &printed)
	}
	left, err := os.ReadDir(dir)
	testenv.Must(t, err)
	if len(left) > 0 || strings.Contains(printed.String(), "context canceled") {
		t.Errorf("the demo left %v and printed:\n%s", left, &printed)
	}
}

// TestFirstCommands runs what a newcomer may try first.
func TestFirstCommands(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args string
		code int
		want string
	}{
		"help":                     {"help", 0, "Run the service"},
		"help for a command":       {"help demo", 0, "Usage: shop demo"},
		"the version":              {"--version", 0, "shop "},
		"no command":               {"", 2, "missing a command"},
		"a port that cannot exist": {"demo --http-addr=127.0.0.1:99999", 2, "invalid port"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := orders.Command(t, nil, strings.Fields(test.args)...)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("shop %s exits with %d and prints %q, want %d and %q", test.args, code, out, test.code,
					test.want)
			}
		})
	}
}
