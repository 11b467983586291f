package devstack_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	if database != "postgres" || user != "postgres" || connections != "17" || fsync != "off" {
		t.Errorf("database %s, user %s, max_connections %s, fsync %s; want postgres, postgres, 17, off",
			database, user, connections, fsync)
	}
}

// TestRestartedRedisIsEmptyAtTheSameAddress ends a server twice, as a caller that repeats a request does, and
// restarts it.
func TestRestartedRedisIsEmptyAtTheSameAddress(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (server restartable, end func() error){
		"redis-server": func(t *testing.T) (restartable, func() error) {
			server := startRedis(t, t.TempDir())
			return server, server.Kill
		},
		"miniredis": func(t *testing.T) (restartable, func() error) {
			server, err := devstack.StartMiniredis()
			testenv.Must(t, err)
			t.Cleanup(func() { stop(t, server) })
			return server, server.Stop
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, end := start(t)
			ctx, url := t.Context(), server.URL()
			rdb := connect(t, url)
			testenv.Must(t, rdb.Set(ctx, "key", "value", 0).Err())
			for range 2 {
				testenv.Must(t, end())
			}
			if conn, err := net.Dial("tcp", rdb.Options().Addr); err == nil {
				conn.Close()
				t.Fatal("the server accepts a connection after it ended")
			}
			testenv.Must(t, server.Restart(ctx))
			if server.URL() != url {
				t.Errorf("the restarted server is at %s, want %s", server.URL(), url)
			}
			if n, err := connect(t, url).DBSize(ctx).Result(); err != nil || n != 0 {
				t.Errorf("%d keys after the restart, error %v; want none", n, err)
			}
		})
	}
}

type restartable interface {
	URL() string
	Restart(context.Context) error
}

func TestRedisStartErrorQuotesTheLog(t *testing.T) {
	_, err := devstack.StartRedis(t.Context(), t.TempDir(), "--no-such-option", "1")
	if errors.Is(err, devstack.ErrNoRedis) {
		testenv.Skip(t, "redis", err.Error())
	}
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("got error %v, want one that quotes the server's message about no-such-option", err)
	}
}

func TestMissingRedisErrorNamesSolutions(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := devstack.StartRedis(t.Context(), t.TempDir())
	if !errors.Is(err, devstack.ErrNoRedis) {
		t.Fatalf("got %v, want ErrNoRedis", err)
	}
	for _, want := range []string{
		"redis-server", "PATH", "apt-get install redis-server", "brew install redis", "address of a server",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not contain %q", err, want)
		}
	}
}
