package devstack

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// initdbArgs are the arguments of initdb, except for the directory.
var initdbArgs = []string{"-U", databaseName, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"}

// newCluster makes a database cluster in dir/data, with the database. It first removes the files of an earlier
// attempt.
//
// initdb needs a second of processor time, which is most of a server's start. So the first cluster of each version is
// kept as an archive in the user's directory for caches, and later clusters are copies of it. If the archive cannot be
// read completely, or this user has no such directory, initdb runs. The archive may be deleted at any time.
func newCluster(ctx context.Context, run runner, dir string) error {
	cmd := run(childOf(syscall.SIGKILL), "postgres", "--version")
	version, err := finish(ctx, cmd, filepath.Join(dir, "version.log"))
	if err != nil {
		return err
	}
	data, archive := filepath.Join(dir, "data"), archivePath(cmd.Path, version)
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("remove %s: %w", data, err)
	}
	if archive != "" && unpack(archive, data, cmd.SysProcAttr.Credential) == nil {
		return nil
	}
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("remove %s: %w", data, err)
	}
	if err := initdb(ctx, run, dir, data); err != nil {
		return err
	}
	if archive != "" {
		_ = pack(data, archive) // after an error the next cluster needs initdb, too
	}
	return nil
}

// archivePath returns the path of the archive of a cluster that the version's initdb has made, or "" if this process
// has no directory for caches. The path of the binary is part of the key, because two builds of a version may differ
// in the size of a page.
func archivePath(server, version string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	key := strings.Join(append([]string{runtime.GOARCH, server, version}, initdbArgs...), "\n")
	return filepath.Join(dir, "devstack", fmt.Sprintf("postgres-%x.tar.gz", sha256.Sum256([]byte(key))))
}

// initdb makes a cluster by the server's own means. A server in single-user mode creates the database.
func initdb(ctx context.Context, run runner, dir, data string) error {
	init := run(childOf(syscall.SIGKILL), "initdb", append([]string{"-D", data}, initdbArgs...)...)
	if _, err := finish(ctx, init, filepath.Join(dir, "initdb.log")); err != nil {
		return err
	}
	create := run(childOf(syscall.SIGKILL), "postgres", "--single", "-F", "-c", "exit_on_error=on",
		"-D", data, "postgres")
	create.Stdin = strings.NewReader("CREATE DATABASE " + databaseName + "\n")
	_, err := finish(ctx, create, filepath.Join(dir, "createdb.log"))
	return err
}

// finish runs a command until it ends, and returns its output, which is also in the log file.
func finish(ctx context.Context, cmd *exec.Cmd, logPath string) (string, error) {
	p, err := start(cmd, logPath)
	if err != nil {
		return "", err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), p.kill())
	}
	if !cmd.ProcessState.Success() {
		return "", fmt.Errorf("%s: %s", filepath.Base(cmd.Path), p.logTail())
	}
	output, err := os.ReadFile(logPath)
	return string(output), err
}

// pack writes the files of a cluster whose server does not run to an archive. Other processes may do the same: each
// writes a file of its own, which then takes the archive's name, so that an archive is complete or does not exist.
func pack(data, archive string) error {
	if err := os.MkdirAll(filepath.Dir(archive), 0o700); err != nil {
		return err
	}
	removeUnfinished(filepath.Dir(archive))
	file, err := os.CreateTemp(filepath.Dir(archive), unfinished)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // has no effect after the rename
	// The format has a checksum of the contents. Compression would make a copy several times slower.
	compressed, err := gzip.NewWriterLevel(file, gzip.NoCompression)
	if err != nil {
		return err
	}
	files := tar.NewWriter(compressed)
	err = files.AddFS(os.DirFS(data))
	if err := errors.Join(err, files.Close(), compressed.Close(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), archive)
}

// unfinished begins the names of archives that are being written.
const unfinished = "new-"

// removeUnfinished removes the archives that killed processes have left.
func removeUnfinished(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && strings.HasPrefix(entry.Name(), unfinished) && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}

// unpack makes a cluster from the files of an archive. It returns an error unless the archive is complete and
// undamaged. The files belong to the owner or, without one, to this process's user.
func unpack(archive, data string, owner *syscall.Credential) error {
	if !isOurs(filepath.Dir(archive)) {
		return fmt.Errorf("%s is another user's", filepath.Dir(archive)) // whose files could be anything
	}
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("%s has the file %s", archive, header.Name)
		}
		path := filepath.Join(data, header.Name)
		if header.FileInfo().IsDir() {
			err = os.Mkdir(path, header.FileInfo().Mode())
		} else {
			err = writeFile(path, header.FileInfo().Mode(), files)
		}
		if err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // compares the checksum at the end
		return err
	}
	if err := renumber(data); err != nil || owner == nil {
		return err
	}
	return filepath.WalkDir(data, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, int(owner.Uid), int(owner.Gid)))
	})
}

func writeFile(path string, mode fs.FileMode, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// renumber gives a copied cluster a system identifier of its own, as initdb does. PostgreSQL compares the identifiers,
// so that a standby does not follow another cluster that has taken its primary's port, and package postgres uses them
// to refuse a server of another cluster. The identifier is at the beginning of the control file, and in the header of
// the WAL, where the server compares it when it starts.
func renumber(data string) error {
	path := filepath.Join(data, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	end, err := endOfControl(control)
	if err != nil {
		return err
	}
	before, after := binary.NativeEndian.Uint64(control), rand.Uint64()>>1
	binary.NativeEndian.PutUint64(control, after)
	binary.NativeEndian.PutUint32(control[end:], crc32.Checksum(control[:end], castagnoli))
	segments, err := filepath.Glob(filepath.Join(data, "pg_wal", strings.Repeat("[0-9A-F]", 24)))
	if err != nil {
		return err
	}
	for _, segment := range segments {
		if err := renumberSegment(segment, before, after); err != nil {
			return err
		}
	}
	return os.WriteFile(path, control, 0o600)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// endOfControl returns where the fields of a control file end and their checksum follows. This differs between
// versions.
func endOfControl(control []byte) (int, error) {
	const largest = 512 // bytes: the server writes the fields at once, in one sector
	for end := 8; end+4 <= min(len(control), largest); end += 4 {
		if binary.NativeEndian.Uint32(control[end:]) == crc32.Checksum(control[:end], castagnoli) {
			return end, nil
		}
	}
	return 0, errors.New("pg_control has no checksum where it was expected")
}

// renumberSegment replaces the system identifier in the long page header that a segment of the WAL begins with. The
// checksums of the WAL do not include page headers.
func renumberSegment(path string, before, after uint64) error {
	const offset = 24 // of xlp_sysid in XLogLongPageHeaderData
	segment, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer segment.Close()
	identifier := make([]byte, 8)
	if _, err := segment.ReadAt(identifier, offset); err != nil {
		return err
	}
	if found := binary.NativeEndian.Uint64(identifier); found != before {
		return fmt.Errorf("%s has the system identifier %d, expected %d", path, found, before)
	}
	binary.NativeEndian.PutUint64(identifier, after)
	_, err = segment.WriteAt(identifier, offset)
	return err
}
