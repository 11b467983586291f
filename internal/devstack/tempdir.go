package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	dirPrefix = "shop-devstack-"
	// lockName is a file in such a directory that its process has locked. The kernel releases the lock when the process
	// ends, however it ends. A process id alone would not do: it may be another process's by now, or one of another
	// container that has the same directory for temporary files.
	lockName = "lock"
)

// TempDir makes a directory for this process's servers, readable by them, and removes those that killed
// processes left behind. The caller removes it.
func TempDir() (string, error) {
	removeStale()
	dir, err := os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", fmt.Errorf("make a directory for the servers: %w", err)
	}
	if err := lock(dir); err != nil {
		return "", errors.Join(fmt.Errorf("lock the directory for the servers: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}

// lock locks a directory until this process ends. The file gets its name when it is locked, so that no other process
// can find it unlocked before. Its descriptor stays open, unlike that of an [os.File] that nothing refers to.
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

// removeStale removes this user's directories of processes that are gone. What cannot be removed, because a server is
// still ending in it, the next call removes.
func removeStale() {
	entries, _ := os.ReadDir(os.TempDir())
	for _, entry := range entries {
		dir := filepath.Join(os.TempDir(), entry.Name())
		if strings.HasPrefix(entry.Name(), dirPrefix) && isOurs(dir) && isStale(dir) {
			_ = os.RemoveAll(dir)
		}
	}
}

// isOurs reports whether a path is a directory of this process's user. Another user's is not looked into: a named pipe
// in place of the lock would block this process for ever.
func isOurs(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// isStale reports whether the process of a directory is gone. A process that was killed before it had the lock is known
// by its id alone.
func isStale(dir string) bool {
	file, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, os.ErrNotExist) {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		return isGone(owner)
	}
	if err != nil {
		return false
	}
	defer file.Close()
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// isGone reports whether a text is the id of a process that does not exist any more.
func isGone(text string) bool {
	pid, err := strconv.Atoi(text)
	return err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
