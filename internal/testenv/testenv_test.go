package testenv_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func customers(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM customers").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDatabasesAreIsolated(t *testing.T) {
	one, other := open(t, testenv.Postgres(t)), open(t, testenv.Postgres(t))
	for _, db := range []*sql.DB{one, other} {
		if err := migrations.Check(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := one.ExecContext(t.Context(), "INSERT INTO customers (id) VALUES (gen_random_uuid())"); err != nil {
		t.Fatal(err)
	}
	if n := customers(t, one); n != 1 {
		t.Errorf("%d customers where one was added", n)
	}
	if n := customers(t, other); n != 0 {
		t.Errorf("%d customers where none was added", n)
	}
	if n := customers(t, open(t, testenv.Postgres(t))); n != 0 {
		t.Errorf("%d customers in a new database", n)
	}
}

func TestDatabaseIsGoneAfterItsTest(t *testing.T) {
	var url string
	t.Run("its test", func(t *testing.T) {
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
	err := open(t, url).PingContext(t.Context())
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != invalidCatalogName {
		t.Errorf("got %v, want that there is no such database", err)
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

func connectURL(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, opts)
}

// values are those of the keys that the tests set.
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

// TestRedisDatabaseIsEmptyAfterItsTest: the stand-in for a missing Redis is gone with its data.
func TestRedisDatabaseIsEmptyAfterItsTest(t *testing.T) {
	var url string
	t.Run("its test", func(t *testing.T) {
		url = testenv.Redis(t)
		if err := connectURL(t, url).Set(t.Context(), "one", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	})
	got, err := connectURL(t, url).MGet(t.Context(), "one", "other").Result()
	if err == nil && fmt.Sprint(got) != "[<nil> <nil>]" {
		t.Errorf("left behind: %s", got)
	}
	if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// TestRedisDatabaseMayBeFlushed: the mark that a database is in use is not in the database.
func TestRedisDatabaseMayBeFlushed(t *testing.T) {
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

func TestRedisServerIsTheTestsOwn(t *testing.T) {
	one, other := testenv.RedisServer(t), testenv.RedisServer(t)
	if err := one.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := connectURL(t, other.URL()).Ping(t.Context()).Err(); err != nil {
		t.Errorf("the one was killed, the other answers: %v", err)
	}
}

// TestClusterIsReal: a stand-in takes keys of several slots in one command, and hides the bug.
func TestClusterIsReal(t *testing.T) {
	nodes := testenv.RedisCluster(t)
	if len(nodes) != 3 {
		t.Fatalf("nodes %q, want three", nodes)
	}
	for _, addr := range nodes {
		err := connect(t, &redis.Options{Addr: addr}).MSet(t.Context(), "{a}", 1, "{b}", 2).Err()
		if err == nil || !strings.HasPrefix(err.Error(), "CROSSSLOT") {
			t.Errorf("%s answers %v to keys of two slots, want CROSSSLOT", addr, err)
		}
	}
}

func TestClusterIsEmptyForEachTest(t *testing.T) {
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

// verdict is a test that notes how it was ended, instead of ending.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Helper()                           {}
func (v *verdict) Skip(args ...any)                  { v.end("skip: " + fmt.Sprint(args...)) }
func (v *verdict) Fatalf(format string, args ...any) { v.end("fail: " + fmt.Sprintf(format, args...)) }

// end keeps the first: a real test would have ended with it.
func (v *verdict) end(how string) {
	if v.said == "" {
		v.said = how
	}
}

func TestSkipObeysWhatIsRequired(t *testing.T) {
	tests := []struct {
		required, feature, want string
	}{
		{"", "redis", "skip: no redis"},
		{"browser", "redis", "skip: no redis"},
		{"redis", "redis", "fail: no redis, and SHOP_TEST_REQUIRE demands redis"},
		{"browser,redis,postgres", "postgres", "fail: no postgres, and SHOP_TEST_REQUIRE demands postgres"},
		{"redis-cluster", "redis", "skip: no redis"},
	}
	for _, tt := range tests {
		t.Run(tt.feature+" of "+tt.required, func(t *testing.T) {
			t.Setenv("SHOP_TEST_REQUIRE", tt.required)
			v := &verdict{TB: t}
			testenv.Skip(v, tt.feature, "no "+tt.feature)
			if v.said != tt.want {
				t.Errorf("got %q, want %q", v.said, tt.want)
			}
		})
	}
}
