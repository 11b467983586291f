package testenv_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	_ "pgregory.net/rapid" // registers the flag rapid.checks

	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, createThings, addColor) }

// createThings and addColor make the schema of this package's tests.
func createThings(ctx context.Context, db *sql.DB) ([]string, error) {
	_, err := db.ExecContext(ctx, "CREATE TABLE things (id int PRIMARY KEY)")
	return nil, err
}

func addColor(ctx context.Context, db *sql.DB) ([]string, error) {
	_, err := db.ExecContext(ctx, "ALTER TABLE things ADD COLUMN color text")
	return nil, err
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// TestDatabasesAreIsolated also checks that each database has the schema of all migrations, and is dropped after its
// test.
func TestDatabasesAreIsolated(t *testing.T) {
	var url string
	t.Run("test with the databases", func(t *testing.T) {
		url = testenv.Postgres(t)
		one, other := open(t, url), open(t, testenv.Postgres(t))
		testenv.Exec(t, one, "INSERT INTO things (id, color) VALUES (1, 'red')")
		for name, db := range map[string]*sql.DB{"the other": other, "a new": open(t, testenv.Postgres(t))} {
			if n := testenv.Query[int](t, db, "SELECT count(*) FROM things"); n != 0 {
				t.Errorf("%d rows in %s database, want 0", n, name)
			}
		}
	})
	const invalidCatalogName = "3D000"
	db := open(t, url)
	testenv.Eventually(t, "connecting fails with SQLSTATE 3D000 (there is no such database)", func() bool {
		pgErr, ok := errors.AsType[*pgconn.PgError](db.PingContext(t.Context()))
		return ok && pgErr.Code == invalidCatalogName
	})
}

// TestRedisDatabasesAreIsolated flushes a database, which must not remove the mark that the database is in use. After
// their test the databases are empty, or refuse a connection, because a stand-in stops when its test ends.
func TestRedisDatabasesAreIsolated(t *testing.T) {
	client := func(t *testing.T, url string) *redis.Client {
		opts, err := redis.ParseURL(url)
		testenv.Must(t, err)
		return connect(t, opts)
	}
	var url string
	t.Run("test with the databases", func(t *testing.T) {
		url = testenv.Redis(t)
		one := client(t, url)
		testenv.Must(t, one.FlushDB(t.Context()).Err())
		other := client(t, testenv.Redis(t))
		testenv.Must(t, one.Set(t.Context(), "key", 1, 0).Err())
		if n, err := other.DBSize(t.Context()).Result(); n != 0 || err != nil {
			t.Errorf("%d keys in the other database, %v; want none", n, err)
		}
	})
	n, err := client(t, url).DBSize(t.Context()).Result()
	if n != 0 || err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%d keys after the test, %v; want none", n, err)
	}
}

func connect(t *testing.T, opts *redis.Options) *redis.Client {
	t.Helper()
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// TestClusterRejectsKeysOfTwoSlots checks that the cluster is real. A stand-in would accept keys of several slots in
// one command, and so hide a bug.
func TestClusterRejectsKeysOfTwoSlots(t *testing.T) {
	testenv.Slow(t, "starts a Redis Cluster")
	nodes := testenv.RedisCluster(t)
	if len(nodes) != 3 {
		t.Fatalf("the cluster has the nodes %q, want three", nodes)
	}
	for _, addr := range nodes {
		err := connect(t, &redis.Options{Addr: addr}).MSet(t.Context(), "{a}", 1, "{b}", 2).Err()
		if err == nil || !strings.HasPrefix(err.Error(), "CROSSSLOT") {
			t.Errorf("%s answers %v to a command with keys of two slots, want CROSSSLOT", addr, err)
		}
	}
}

// recorder is a testing.TB that records the first call of Skip or Fatalf. The call does not end the test.
type recorder struct {
	testing.TB
	ending string
}

func (r *recorder) Helper()          {}
func (r *recorder) Skip(args ...any) { r.record("skip: " + fmt.Sprint(args...)) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.record("fail: " + fmt.Sprintf(format, args...))
}

// record keeps the first ending only, because a real test does not go on after it.
func (r *recorder) record(ending string) {
	if r.ending == "" {
		r.ending = ending
	}
}

// TestSlow checks that a slow test runs only with TEST_ALL=1, and is not skipped unnoticed where TEST_REQUIRE lists
// slow.
func TestSlow(t *testing.T) {
	tests := []struct {
		all, required, want string
		rounds              int
	}{
		{"", "", "skip: slow (kills servers): TEST_ALL=1 runs it", 3},
		{"0", "redis,slow-disk", "skip: slow (kills servers): TEST_ALL=1 runs it", 3},
		{"1", "", "", 70},
		{"1", "slow", "", 70},
		{"", "browser,slow,redis", "fail: slow (kills servers): TEST_ALL=1 runs it, but TEST_REQUIRE lists slow", 3},
	}
	for _, tt := range tests {
		t.Run("TEST_ALL="+tt.all+" TEST_REQUIRE="+tt.required, func(t *testing.T) {
			t.Setenv("TEST_ALL", tt.all)
			t.Setenv("TEST_REQUIRE", tt.required)
			r := &recorder{TB: t}
			testenv.Slow(r, "kills servers")
			if r.ending != tt.want {
				t.Errorf("got %q, want %q", r.ending, tt.want)
			}
			if rounds := testenv.Rounds(3, 70); rounds != tt.rounds {
				t.Errorf("Rounds(3, 70) = %d, want %d", rounds, tt.rounds)
			}
		})
	}
}

// TestFewRapidChecks checks the default that Main sets, unless the command line of this test sets the flag.
func TestFewRapidChecks(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	flag.Visit(func(f *flag.Flag) {
		if f == checks {
			t.Skip("the command line sets -rapid.checks")
		}
	})
	if want := strconv.Itoa(testenv.Rounds(20, 100)); checks.Value.String() != want {
		t.Errorf("rapid checks a property with %s values, want %s", checks.Value, want)
	}
}
