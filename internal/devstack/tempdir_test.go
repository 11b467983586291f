package devstack_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// TestTempDirRemovesStaleDirectories has directories beside each other that TempDir must remove or keep.
func TestTempDirRemovesStaleDirectories(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	locked, err := devstack.TempDir()
	testenv.Must(t, err)
	mkdir := func(name string) string {
		dir := filepath.Join(os.TempDir(), name)
		testenv.Must(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
		return dir
	}
	unlocked := mkdir("devstack-1")
	testenv.Must(t, os.WriteFile(filepath.Join(unlocked, "lock"), nil, 0o600))
	foreign := mkdir("devstack-notes") // made by another program
	want := []string{locked, foreign}
	if os.Geteuid() == 0 { // only root can make a directory of another user
		const nobody = 65534
		theirs := mkdir("devstack-2")
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
