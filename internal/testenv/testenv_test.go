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

func countThings(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM things").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDatabasesAreIsolated also checks that each database has the schema of all migrations.
func TestDatabasesAreIsolated(t *testing.T) {
	one, other := open(t, testenv.Postgres(t)), open(t, testenv.Postgres(t))
	if _, err := one.ExecContext(t.Context(), "INSERT INTO things (id, color) VALUES (1, 'red')"); err != nil {
		t.Fatal(err)
	}
	if n := countThings(t, one); n != 1 {
		t.Errorf("%d rows in the database with one insert, want 1", n)
	}
	if n := countThings(t, other); n != 0 {
		t.Errorf("%d rows in the other database, want 0", n)
	}
	if n := countThings(t, open(t, testenv.Postgres(t))); n != 0 {
		t.Errorf("%d rows in a new database, want 0", n)
	}
}

func TestDatabaseIsDroppedAfterItsTest(t *testing.T) {
	var url string
	t.Run("test with the database", func(t *testing.T) {
		url = testenv.Postgres(t)
		db, err := sql.Open("pgx", url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	const invalidCatalogName = "3D000"
	db := open(t, url)
	testenv.Eventually(t, "connecting fails with SQLSTATE 3D000 (there is no such database)", func() bool {
		pgErr, ok := errors.AsType[*pgconn.PgError](db.PingContext(t.Context()))
		return ok && pgErr.Code == invalidCatalogName
	})
}

func connect(t *testing.T, opts *redis.Options) *redis.Client {
	t.Helper()
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func connectURL(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, opts)
}

// values returns the values of the keys that the tests set.
func values(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	got, err := rdb.MGet(t.Context(), "one", "other").Result()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(got)
}

func TestRedisDatabasesAreIsolated(t *testing.T) {
	one, other := connectURL(t, testenv.Redis(t)), connectURL(t, testenv.Redis(t))
	if err := one.Set(t.Context(), "one", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := other.Set(t.Context(), "other", 2, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := values(t, one)+values(t, other), "[1 <nil>][<nil> 2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestRedisDatabaseIsEmptyAfterItsTest also accepts a refused connection, because a stand-in stops when its test ends.
func TestRedisDatabaseIsEmptyAfterItsTest(t *testing.T) {
	var url string
	t.Run("test with the database", func(t *testing.T) {
		url = testenv.Redis(t)
		if err := connectURL(t, url).Set(t.Context(), "one", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	})
	got, err := connectURL(t, url).MGet(t.Context(), "one", "other").Result()
	if err == nil && fmt.Sprint(got) != "[<nil> <nil>]" {
		t.Errorf("values after the test are %s, want none", got)
	}
	if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// TestFlushedRedisDatabaseStaysReserved flushes a database, which must not remove the mark that the database is in use.
func TestFlushedRedisDatabaseStaysReserved(t *testing.T) {
	one := connectURL(t, testenv.Redis(t))
	if err := one.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	other := connectURL(t, testenv.Redis(t))
	if err := other.Set(t.Context(), "other", 2, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := values(t, one); got != "[<nil> <nil>]" {
		t.Errorf("two tests share a database: %s", got)
	}
}

func TestRedisServersAreIsolated(t *testing.T) {
	one, other := testenv.RedisServer(t), testenv.RedisServer(t)
	if err := one.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := connectURL(t, other.URL()).Ping(t.Context()).Err(); err != nil {
		t.Errorf("one server was killed, and a ping of the other failed: %v", err)
	}
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

func TestClusterIsFlushedForEachTest(t *testing.T) {
	keys := func() (total int64) {
		nodes := testenv.RedisCluster(t)
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: nodes, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer rdb.Close()
		total, err := rdb.DBSize(t.Context()).Result() // of all masters
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			if err := rdb.Set(t.Context(), fmt.Sprint("key", i), i, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return total
	}
	for range 2 {
		if n := keys(); n != 0 {
			t.Errorf("%d keys, want an empty cluster", n)
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

func TestSkipFailsForARequiredFeature(t *testing.T) {
	tests := []struct {
		required, feature, want string
	}{
		{"", "redis", "skip: no redis"},
		{"browser", "redis", "skip: no redis"},
		{"redis", "redis", "fail: no redis, but TEST_REQUIRE lists redis"},
		{"browser,redis,postgres", "postgres", "fail: no postgres, but TEST_REQUIRE lists postgres"},
		{"redis-cluster", "redis", "skip: no redis"},
	}
	for _, tt := range tests {
		t.Run(tt.feature+" with TEST_REQUIRE="+tt.required, func(t *testing.T) {
			t.Setenv("TEST_REQUIRE", tt.required)
			r := &recorder{TB: t}
			testenv.Skip(r, tt.feature, "no "+tt.feature)
			if r.ending != tt.want {
				t.Errorf("got %q, want %q", r.ending, tt.want)
			}
		})
	}
}

// TestSlow checks that a slow test runs only with TEST_ALL=1, and is not skipped unnoticed where TEST_REQUIRE lists slow.
func TestSlow(t *testing.T) {
	tests := []struct {
		all, required, want string
	}{
		{"", "", "skip: slow (kills servers): TEST_ALL=1 runs it"},
		{"0", "redis", "skip: slow (kills servers): TEST_ALL=1 runs it"},
		{"1", "", ""},
		{"1", "slow", ""},
		{"", "slow", "fail: slow (kills servers): TEST_ALL=1 runs it, but TEST_REQUIRE lists slow"},
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
		})
	}
}

func TestRounds(t *testing.T) {
	for all, want := range map[string]int{"": 3, "0": 3, "1": 70} {
		t.Setenv("TEST_ALL", all)
		if got := testenv.Rounds(3, 70); got != want {
			t.Errorf("with TEST_ALL=%q, Rounds(3, 70) = %d, want %d", all, got, want)
		}
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
