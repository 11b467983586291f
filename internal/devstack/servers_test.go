package devstack_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// lacks is what a machine may lack, by the names that SHOP_TEST_REQUIRE has for them.
var lacks = map[string]error{"postgres": devstack.ErrNoPostgres, "redis": devstack.ErrNoRedis}

// mustStart skips the test for a server that the machine lacks, and fails it for another error.
func mustStart(t *testing.T, err error) {
	t.Helper()
	for feature, sentinel := range lacks {
		if errors.Is(err, sentinel) {
			testenv.Skip(t, feature, err.Error())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func startPostgres(t *testing.T, dir string, settings map[string]string) *devstack.Postgres {
	t.Helper()
	server, err := devstack.StartPostgres(t.Context(), dir, settings)
	mustStart(t, err)
	t.Cleanup(func() { stop(t, server) })
	return server
}

func startRedis(t *testing.T, dir string) *devstack.Redis {
	t.Helper()
	server, err := devstack.StartRedis(t.Context(), dir)
	mustStart(t, err)
	t.Cleanup(func() { stop(t, server) })
	return server
}

func stop(t *testing.T, server interface{ Stop() error }) {
	t.Helper()
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestPostgresHasItsSettings(t *testing.T) {
	server := startPostgres(t, t.TempDir(), map[string]string{"max_connections": "17", "fsync": "off"})
	db, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var database, user, connections, fsync string
	err = db.QueryRowContext(t.Context(), `SELECT current_database(), current_user,
		current_setting('max_connections'), current_setting('fsync')`).Scan(&database, &user, &connections, &fsync)
	if err != nil {
		t.Fatal(err)
	}
	if database != "shop" || user != "shop" || connections != "17" || fsync != "off" {
		t.Errorf("database %s, user %s, max_connections %s, fsync %s; want shop, shop, 17, off", database, user, connections, fsync)
	}
}

// TestRestartedPostgresHasItsData: Stop is a crash to the server, and it recovers what was committed.
func TestRestartedPostgresHasItsData(t *testing.T) {
	server := startPostgres(t, t.TempDir(), nil)
	db, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE kept AS SELECT 42 AS answer`); err != nil {
		t.Fatal(err)
	}
	before := server.Pid()
	stop(t, server)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if server.Pid() == before {
		t.Errorf("process %d still, after a restart", before)
	}
	var answer int
	if err := db.QueryRowContext(t.Context(), `SELECT answer FROM kept`).Scan(&answer); err != nil || answer != 42 {
		t.Errorf("kept %d, %v; want 42", answer, err)
	}
}

func TestRestartedRedisIsEmptyAtTheSameAddress(t *testing.T) {
	tests := map[string]func(*devstack.Redis) error{"stopped": (*devstack.Redis).Stop, "killed": (*devstack.Redis).Kill}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			server := startRedis(t, t.TempDir())
			checkRestart(t, server, func() error { return end(server) })
		})
	}
	t.Run("miniredis", func(t *testing.T) {
		server, err := devstack.StartMiniredis()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(t, server) })
		checkRestart(t, server, server.Stop)
	})
}

type restartable interface {
	URL() string
	Stop() error
	Restart(context.Context) error
}

// checkRestart ends a server twice, as a caller may whose first attempt was not heard of, and starts it.
func checkRestart(t *testing.T, server restartable, end func() error) {
	t.Helper()
	ctx, url := t.Context(), server.URL()
	rdb := connect(t, url)
	if err := rdb.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if conn, err := net.Dial("tcp", rdb.Options().Addr); err == nil {
		conn.Close()
		t.Fatal("a server that has ended answers")
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if server.URL() != url {
		t.Errorf("restarted at %s, was at %s", server.URL(), url)
	}
	if n, err := connect(t, url).DBSize(ctx).Result(); err != nil || n != 0 {
		t.Errorf("%d keys after the restart, error %v; want none", n, err)
	}
}

func TestRedisSaysWhyItDoesNotStart(t *testing.T) {
	_, err := devstack.StartRedis(t.Context(), t.TempDir(), "--no-such-option", "1")
	if errors.Is(err, devstack.ErrNoRedis) {
		testenv.Skip(t, "redis", err.Error())
	}
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("got %v, want the server's own words", err)
	}
}

func TestWithoutRedisServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := devstack.StartRedis(t.Context(), t.TempDir())
	if !errors.Is(err, devstack.ErrNoRedis) {
		t.Fatalf("got %v, want ErrNoRedis", err)
	}
	for _, wayOut := range []string{"redis-server", "PATH", "apt-get install redis-server", "brew install redis", "address of a server"} {
		if !strings.Contains(err.Error(), wayOut) {
			t.Errorf("%q does not name %q", err, wayOut)
		}
	}
}

func TestTempDirRemovesWhatTheDeadLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const nobody = 1<<31 - 1 // no kernel gives out such a pid
	dead := filepath.Join(os.TempDir(), "shop-devstack-"+strconv.Itoa(nobody)+"-1")
	living := filepath.Join(os.TempDir(), "shop-devstack-"+strconv.Itoa(os.Getppid())+"-1")
	someones := filepath.Join(os.TempDir(), "shop-devstack-notes-1")
	for _, dir := range []string{dead, living, someones} {
		if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	first, err := devstack.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	second, err := devstack.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{living, someones, first, second} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("a directory that is not a dead process's: %v", err)
		}
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dead process's directory: %v, want it gone", err)
	}
}
