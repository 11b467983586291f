package devstack_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

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
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "devstack-*"))
	testenv.Must(t, err)
	if !slices.Equal(left, want) {
		t.Errorf("directories %q after the next TempDir, want %q", left, want)
	}
}
