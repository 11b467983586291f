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
	"strings"
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
// kills another one. No server may be left.
func TestDemo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := demo(t, nil, timeoutFlag, "2s")
	// no bound: the time depends on the machine
	t.Logf("the demo served after %v, including the build", time.Since(began))
	servers := serversOf(t, p)

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
	killed := demo(t, nil)
	servers = append(servers, serversOf(t, killed)...)
	killed.Kill()
	faulttest.Eventually(t, "all servers ended", func() bool { return !slices.ContainsFunc(servers, alive) })
}

// serversOf returns the ids of the servers that a demo has started, PostgreSQL and, if the machine has it, redis-server.
// On other systems than Linux, which have no /proc, it returns none.
func serversOf(t *testing.T, p *faulttest.Process) []int {
	t.Helper()
	servers := faulttest.ChildrenOf(t, p.Cmd.Process.Pid)
	if runtime.GOOS == "linux" && len(servers) == 0 {
		t.Fatal("the demo has no children, want its servers")
	}
	return servers
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

// TestDemoInContainer runs the demo on a machine with a container engine but without PostgreSQL. It ends the demo as
// Ctrl-C does, and kills another one. No container may be left.
func TestDemoInContainer(t *testing.T) {
	testenv.Slow(t, "starts demos in containers")
	faulttest.NeedsProcesses(t)
	t.Parallel()
	engine, err := devstack.FindEngine(t.Context())
	if err == nil {
		err = devstack.PullPostgres(t.Context(), engine, io.Discard)
	}
	if err != nil {
		testenv.Skip(t, "containers", fmt.Sprintf("%v (Debian and Ubuntu: apt-get install docker.io)", err))
	}
	for name, end := range map[string]func(p *faulttest.Process){
		"interrupted": func(p *faulttest.Process) { p.Interrupt() },
		"killed":      (*faulttest.Process).Kill,
	} {
		p := demo(t, func(cmd *exec.Cmd) { hidePostgres(t, cmd, engine) }, timeoutFlag, "3s")
		containers := func() []string {
			out, err := exec.Command(engine, "ps", "--all", "--format", "{{.Names}}",
				"--filter", fmt.Sprintf("name=devstack-%d-", p.Cmd.Process.Pid)).Output()
			testenv.Must(t, err)
			return strings.Fields(string(out))
		}
		if found := containers(); len(found) != 1 {
			t.Errorf("the demo's containers are %q, want one", found)
		}
		c := p.SignUp()
		c.WaitForTimeout(c.Create().ID)
		faulttest.Contains(t, p.Text(), "this machine has no PostgreSQL", "a container of "+devstack.PostgresImage())
		end(p)
		faulttest.Eventually(t, "the container of a demo that was "+name+" is removed",
			func() bool { return len(containers()) == 0 })
	}
}

// alive reports whether a process runs. A zombie has ended, but its parent has not read its status yet.
func alive(pid int) bool {
	fields := faulttest.StatOf(pid)
	return fields != nil && fields[0] != "Z"
}
