package devstack_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// missingErrors holds the error for each server that a machine may lack, by the server's name in TEST_REQUIRE.
var missingErrors = map[string]error{"postgres": devstack.ErrNoPostgres, "redis": devstack.ErrNoRedis}

// mustStart skips the test if err says that the machine lacks the server, and fails it for any other error.
func mustStart(t *testing.T, err error) {
	t.Helper()
	for feature, missingErr := range missingErrors {
		if errors.Is(err, missingErr) {
			testenv.Skip(t, feature, err.Error())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func stop(t *testing.T, server interface{ Stop() error }) {
	t.Helper()
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}

// processesOf returns the ids of a server's process and of its children. It finds the server by its directory:
// PostgreSQL has it on its command line, and Redis has it as its working directory.
func processesOf(t *testing.T, name, dir string) (pids []int) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]int{}
	for _, process := range processes {
		pid, _ := strconv.Atoi(filepath.Base(process))
		program, _ := os.ReadFile(filepath.Join(process, "comm")) // empty if the process has ended
		command, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		// workDir is empty for another user's process: in some containers even root may not read the link.
		workDir, _ := os.Readlink(filepath.Join(process, "cwd"))
		inDir := strings.Contains(string(command), dir) || strings.HasPrefix(workDir, dir)
		if strings.TrimSpace(string(program)) == name && inDir {
			pids = append(pids, pid)
		}
		if fields := statOf(pid); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	for _, pid := range slices.Clone(pids) {
		pids = append(pids, children[pid]...)
	}
	if len(pids) == 0 {
		t.Fatalf("found no process %s in %s", name, dir)
	}
	return pids
}

// statOf returns the fields of /proc/PID/stat from the process's state on, or nil if there is no such process.
func statOf(pid int) []string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// runs reports whether a process runs. A zombie has ended, but its parent has not read its status yet.
func runs(pid int) bool {
	fields := statOf(pid)
	return fields != nil && fields[0] != "Z"
}

func wantGone(t *testing.T, pids []int) {
	t.Helper()
	if left := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return !runs(pid) }); len(left) > 0 {
		t.Errorf("processes %d still run, want none", left)
	}
}

// eachServer runs a test for each kind of server, in a subtest with the name of the server's process.
func eachServer(t *testing.T, test func(t *testing.T, name string)) {
	for _, name := range []string{"postgres", "redis-server"} {
		t.Run(name, func(t *testing.T) { test(t, name) })
	}
}

// TestServersLeaveNoProcess stops a server, and kills the parent of another one. The next TempDir then removes the
// directory of the killed parent.
func TestServersLeaveNoProcess(t *testing.T) {
	eachServer(t, func(t *testing.T, name string) {
		dir := t.TempDir()
		server, err := startServer(t.Context(), name, dir)
		mustStart(t, err)
		defer stop(t, server)
		pids := processesOf(t, name, dir)
		for range 2 { // the second call must have no effect
			stop(t, server)
			wantGone(t, pids)
		}

		dir = t.TempDir()
		parent := startHelper(t, name, dir)
		pids = processesOf(t, name, dir)
		testenv.Must(t, parent.Process.Kill())
		if err := parent.Wait(); err == nil {
			t.Fatal("a killed helper ended with status 0")
		}
		testenv.Eventually(t, "no process runs", func() bool { return !slices.ContainsFunc(pids, runs) })
		t.Setenv("TMPDIR", dir)
		mine, err := devstack.TempDir()
		testenv.Must(t, err)
		if left := tempDirs(t, dir); !slices.Equal(left, []string{mine}) {
			t.Errorf("directories %q after the next TempDir, want only %s", left, mine)
		}
	})
}

// tempDirs returns the directories that TempDir has made in dir.
func tempDirs(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "devstack-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestTempDirRemovesStaleDirectories has directories beside each other that TempDir must remove or keep. If a
// directory has a lock file, only the lock counts: the process id in the name may be in use again, or be one of
// another container.
func TestTempDirRemovesStaleDirectories(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const unusedPid = 1<<31 - 1 // above the largest pid of any kernel
	lockedByUs, err := devstack.TempDir()
	testenv.Must(t, err)
	locked := filepath.Join(os.TempDir(), fmt.Sprintf("devstack-%d-1", unusedPid))
	testenv.Must(t, os.Rename(lockedByUs, locked))
	mkdir := func(name string) string {
		dir := filepath.Join(os.TempDir(), name)
		testenv.Must(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
		return dir
	}
	mkdir(fmt.Sprintf("devstack-%d-2", unusedPid)) // its process was killed before it locked the directory
	unlocked := mkdir(fmt.Sprintf("devstack-%d-1", os.Getppid()))
	testenv.Must(t, os.WriteFile(filepath.Join(unlocked, "lock"), nil, 0o600))
	running := mkdir(fmt.Sprintf("devstack-%d-2", os.Getppid()))
	foreign := mkdir("devstack-notes-1") // made by another program
	want := []string{locked, running, foreign}
	if os.Geteuid() == 0 { // only root can make a directory of another user
		const nobody = 65534
		theirs := mkdir(fmt.Sprintf("devstack-%d-3", unusedPid))
		pipe := filepath.Join(theirs, "lock") // opening it blocks until another process writes to it
		testenv.Must(t, syscall.Mkfifo(pipe, 0o600))
		testenv.Must(t, os.Chown(pipe, nobody, nobody))
		testenv.Must(t, os.Chown(theirs, nobody, nobody))
		want = append(want, theirs)
	}

	mine, err := devstack.TempDir()
	testenv.Must(t, err)
	want = append(want, mine)
	slices.Sort(want)
	if left := tempDirs(t, os.TempDir()); !slices.Equal(left, want) {
		t.Errorf("directories %q after the next TempDir, want %q", left, want)
	}
}
