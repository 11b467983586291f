package devstack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/shop/internal/devstack"
)

// processesBelow lists the processes that work in a directory: both servers do, with all their children.
func processesBelow(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue // it has ended meanwhile, is another user's, or works elsewhere
		}
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "comm"))
		found = append(found, strings.TrimSpace(string(name))+" "+filepath.Base(filepath.Dir(link)))
	}
	return found
}

func wantProcesses(t *testing.T, dir string, names ...string) {
	t.Helper()
	all := strings.Join(processesBelow(t, dir), ", ")
	for _, name := range names {
		if !strings.Contains(all, name) {
			t.Fatalf("no %s among the processes: %s", name, all)
		}
	}
}

func wantNoProcess(t *testing.T, dir string) {
	t.Helper()
	if left := processesBelow(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %s", strings.Join(left, ", "))
	}
}

// awaitNoProcess gives those that have been told to end the time to do so.
func awaitNoProcess(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(processesBelow(t, dir)) > 0 {
		select {
		case <-ctx.Done():
			wantNoProcess(t, dir)
			return
		case <-tick.C:
		}
	}
}

func TestStopLeavesNoProcess(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	postgres, redis := startPostgres(t, data, nil), startRedis(t, data)
	wantProcesses(t, dir, "postgres", "redis-server "+strconv.Itoa(redis.Pid()))
	for range 2 { // the second time there is nothing to do
		stop(t, postgres)
		stop(t, redis)
		wantNoProcess(t, dir)
	}
}

func TestStartThatIsCancelledLeavesNoProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, postgres := devstack.StartPostgres(ctx, t.TempDir(), nil)
	_, redis := devstack.StartRedis(ctx, t.TempDir())
	for _, err := range []error{postgres, redis} {
		if !errors.Is(err, context.Canceled) {
			mustStart(t, err)
			t.Error("started, though cancelled")
		}
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
}

// children are the pids of this process's children, those too that do not work in their directory yet.
func children(t *testing.T) []string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children") // of each thread
	if err != nil {
		t.Fatal(err)
	}
	if len(lists) == 0 {
		t.Skip("this kernel does not list child processes (CONFIG_PROC_CHILDREN)")
	}
	var pids []string
	for _, list := range lists {
		if content, err := os.ReadFile(list); err == nil { // the thread may have ended
			pids = append(pids, strings.Fields(string(content))...)
		}
	}
	return pids
}

func TestServersEndWhenTheirParentIsKilled(t *testing.T) {
	dir := t.TempDir()
	h := startHelper(t, "run", dir, nil)
	h.awaitReady(t)
	wantProcesses(t, dir, "postgres", "redis-server")
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(); err == nil {
		t.Fatal("a killed helper ended well")
	}
	awaitNoProcess(t, dir)

	t.Setenv("TMPDIR", dir)
	mine, err := devstack.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "shop-devstack-*")); len(left) != 1 || left[0] != mine {
		t.Errorf("directories %q after the next TempDir, want only %s", left, mine)
	}
}

// TestOrdinaryUser runs the servers as nobody if the tests run as root, who starts PostgreSQL another way.
func TestOrdinaryUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "ordinary-user-") // below t.TempDir only its own user may go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	h := startHelper(t, "run", dir, func(cmd *exec.Cmd) {
		if os.Geteuid() != 0 {
			return
		}
		const nobody = 65534
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	})
	h.awaitReady(t)
	wantProcesses(t, dir, "postgres", "redis-server")
	if err := h.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(); err != nil {
		t.Fatal(err)
	}
	wantNoProcess(t, dir)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

// TestWithoutPostgres runs in a namespace where the machine's binaries are out of sight: they are looked
// for not only in PATH.
func TestWithoutPostgres(t *testing.T) {
	dir := t.TempDir()
	h := exec.CommandContext(t.Context(), "/proc/self/exe")
	h.Env = append(os.Environ(), helperVariable+"=no postgres", "TMPDIR="+dir, "PATH="+dir)
	h.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	said, err := h.CombinedOutput()
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
		t.Skipf("no user namespaces here: %v", err)
	}
	if strings.Contains(string(said), cannotHide) {
		t.Skip(string(said))
	}
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for _, wayOut := range []string{"initdb", "PATH", "pg_config", "apt-get install postgresql", "brew install postgresql", "address of a server"} {
		if !strings.Contains(string(said), wayOut) {
			t.Errorf("%q does not name %q", said, wayOut)
		}
	}
}

const cannotHide = "cannot hide the PostgreSQL of this machine"

// startHiddenPostgres starts PostgreSQL where there is none to find, and says why that fails.
func startHiddenPostgres() error {
	const installed = "/usr/lib/postgresql"
	if _, err := os.Stat(installed); err == nil {
		if err := syscall.Mount("none", installed, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("%s: %w", cannotHide, err)
		}
	}
	_, err := devstack.StartPostgres(context.Background(), os.TempDir(), nil)
	if !errors.Is(err, devstack.ErrNoPostgres) {
		return fmt.Errorf("got %v, want ErrNoPostgres", err)
	}
	_, err = io.WriteString(os.Stdout, err.Error())
	return err
}
