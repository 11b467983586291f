package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// dirPrefix begins the names of the directories of this package.
	dirPrefix = "devstack-"
	// lockName is a file in each directory. The process that made the directory has locked the file. The kernel
	// releases the lock when the process ends for any reason. A process id would not show whether the process runs,
	// because another process, or one in another container that shares the directory for temporary files, may have it.
	lockName = "lock"
)

// TempDir makes a directory for the servers of this process. The caller removes it after its servers have stopped.
// TempDir also removes the directories that killed processes of this user have left.
func TempDir() (string, error) {
	removeStale()
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return "", fmt.Errorf("make a directory for the servers: %w", err)
	}
	if err := lock(dir); err != nil {
		return "", errors.Join(fmt.Errorf("lock the directory for the servers: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}

// lock locks a directory until this process ends. It locks the lock file before it gives the file its final name, so
// that no other process finds the file unlocked. It opens the file without [os.File], because the garbage collector
// closes the descriptor of an unused os.File.
func lock(dir string) error {
	path := filepath.Join(dir, lockName)
	fd, err := syscall.Open(path+".new", syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path + ".new", Err: err}
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(&os.PathError{Op: "flock", Path: path + ".new", Err: err}, syscall.Close(fd))
	}
	return os.Rename(path+".new", path)
}

// removeStale removes this user's directories of processes that have ended. It ignores errors: a server may still be
// stopping in a directory, and the next call removes the directory.
func removeStale() {
	entries, _ := os.ReadDir(os.TempDir())
	for _, entry := range entries {
		dir := filepath.Join(os.TempDir(), entry.Name())
		if strings.HasPrefix(entry.Name(), dirPrefix) && isOurs(dir) && isStale(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

// isOurs reports whether dir is a directory of this process's user. A directory of another user must not be examined: a
// named pipe in place of its lock file would block this process for ever.
func isOurs(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// isStale reports whether the process that made the directory has ended. If it was killed before it locked the
// directory, the directory, which is empty, stays.
func isStale(dir string) bool {
	file, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return false
	}
	defer file.Close()
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
