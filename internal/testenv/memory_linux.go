package testenv

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	// memory is the directory whose files Linux keeps in memory.
	memory = "/dev/shm"
	// minMemory is how many bytes must be free in it. The tests of all packages need less than 2 GiB.
	minMemory = 4 << 30
)

// useMemory makes the tests keep their temporary files in memory, unless TMPDIR names another directory. PostgreSQL
// then needs half the processor time to create a database, because the disk's file system works long for its hundreds
// of files. The tests also run programs from the directory, which not every machine allows.
func useMemory() {
	var fs unix.Statfs_t
	if os.Getenv("TMPDIR") == "" && unix.Statfs(memory, &fs) == nil && fs.Flags&unix.ST_NOEXEC == 0 &&
		fs.Bavail*uint64(fs.Bsize) >= minMemory {
		_ = os.Setenv("TMPDIR", memory) // otherwise the tests use the disk
	}
}
