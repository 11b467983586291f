package devstack_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// useCache makes dir the parent of the directory for caches.
func useCache(t *testing.T, dir string) {
	t.Helper()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CACHE_HOME", dir)
}

// archives returns the files in the cache.
func archives(t *testing.T) []string {
	t.Helper()
	root, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "devstack", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// ranInitdb reports whether initdb has made the cluster of the server in dir.
func ranInitdb(t *testing.T, dir string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, "initdb.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// systemIdentifier makes a server write to its database, restarts it, and returns the identifier of its cluster. The
// recovery reads the WAL that the server began with.
func systemIdentifier(t *testing.T, server *devstack.Postgres) (id string) {
	t.Helper()
	db, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE kept AS SELECT 42`); err != nil {
		t.Fatal(err)
	}
	stop(t, server)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = db.QueryRowContext(t.Context(), `SELECT system_identifier FROM kept, pg_control_system()`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestClustersAreCopies starts servers at the same time with an empty cache, and then one more. Only the last one must
// be a copy, and each server must have a system identifier of its own.
func TestClustersAreCopies(t *testing.T) {
	useCache(t, t.TempDir())
	const together = 2
	servers, dirs, errs := make([]*devstack.Postgres, together+1), make([]string, together+1), make([]error, together)
	var wg sync.WaitGroup
	for i := range dirs {
		dirs[i] = t.TempDir()
	}
	for i := range together {
		wg.Go(func() { servers[i], errs[i] = devstack.StartPostgres(t.Context(), dirs[i], nil) })
	}
	wg.Wait()
	mustStart(t, errors.Join(errs...))
	servers[together] = startPostgres(t, dirs[together], nil)
	if ranInitdb(t, dirs[together]) {
		t.Error("initdb has made the last cluster, want a copy")
	}
	var ids []string
	for _, server := range servers {
		id := systemIdentifier(t, server)
		if slices.Contains(ids, id) {
			t.Errorf("two clusters have the system identifier %s", id)
		}
		ids = append(ids, id)
		stop(t, server)
	}
	if files := archives(t); len(files) != 1 {
		t.Errorf("the cache has the files %q, want one archive", files)
	}
}

// TestDamagedArchiveIsReplaced damages the archive in two ways. Each time initdb must make the next cluster, and its
// archive takes the place of the damaged one.
func TestDamagedArchiveIsReplaced(t *testing.T) {
	testenv.Slow(t, "runs initdb for each case")
	useCache(t, t.TempDir())
	mustStart(t, devstack.NewCluster(t.Context(), t.TempDir()))
	path := archives(t)[0]
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(good)
	changed[len(changed)/2] ^= 1
	for name, damaged := range map[string][]byte{"changed": changed, "without its end": good[:len(good)-1]} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			if dir := t.TempDir(); devstack.NewCluster(t.Context(), dir) != nil || !ranInitdb(t, dir) {
				t.Error("the damaged archive was used, want that initdb makes the cluster")
			}
			if dir := t.TempDir(); devstack.NewCluster(t.Context(), dir) != nil || ranInitdb(t, dir) {
				t.Error("initdb has made the next cluster, want a copy")
			}
		})
	}
}

func TestPostgresStartsWithoutCache(t *testing.T) {
	testenv.Slow(t, "runs initdb for each case")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, home := range map[string]string{"no directory": "", "a directory that cannot be made": file} {
		t.Run(name, func(t *testing.T) {
			useCache(t, home)
			dir := t.TempDir()
			startPostgres(t, dir, nil)
			if !ranInitdb(t, dir) {
				t.Error("the cluster is a copy, want that initdb makes it")
			}
		})
	}
}
