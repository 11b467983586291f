package doctor

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// withRedis returns a checker of a process whose Redis has an address.
func withRedis(t *testing.T, url string) checker {
	t.Helper()
	b, err := app.Connect(t.Context(), app.Config{
		Name: "test", DatabaseURL: testenv.Postgres(t), DatabaseConns: 2, RedisURL: url, QueueShards: 1,
	}, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	t.Cleanup(b.Close)
	return checker{&app.Process{Base: b}}
}

// assessed returns the check of a server's policy as the doctor prints it.
func assessed(t *testing.T, c checker) string {
	t.Helper()
	var out strings.Builder
	(&printer{out: &out}).print("eviction", "nothing is dropped", c.eviction(t.Context()))
	return strings.Join(strings.Fields(out.String()), " ")
}

// TestCheckEviction reads the policies of a server that refuses CONFIG, as managed ones do.
func TestCheckEviction(t *testing.T) {
	const good, bad = "ok eviction nothing is dropped", "warn eviction the maxmemory-policy of Redis is "
	const dropsTasks = ", so it drops tasks when its memory is full; it has evicted 0 keys"
	for name, test := range map[string]struct{ policy, limit, want string }{
		"of all keys":             {"allkeys-lru", "100mb", bad + "allkeys-lru" + dropsTasks},
		"of all keys, no limit":   {"allkeys-random", "0", bad + "allkeys-random" + dropsTasks},
		"of keys with an expiry":  {"volatile-lru", "100mb", good},
		"none":                    {"noeviction", "100mb", good},
		"the default of a server": {"noeviction", "0", good},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.RedisServer(t,
				"--maxmemory-policy", test.policy, "--maxmemory", test.limit, "--rename-command", "CONFIG", "")
			c := withRedis(t, server.URL())
			if got := assessed(t, c); !strings.HasPrefix(got, test.want) {
				t.Errorf("the doctor prints %q, want %q at its beginning", got, test.want)
			}
		})
	}
}

// TestCheckSilentRedis asks a server that refuses INFO, and one that does not answer.
func TestCheckSilentRedis(t *testing.T) {
	server := testenv.RedisServer(t, "--rename-command", "INFO", "")
	for url, want := range map[string]string{
		server.URL():            "note eviction not checked: Redis does not tell its maxmemory-policy",
		"redis://127.0.0.1:1/0": "note eviction not checked: the policy of Redis is not read: ",
	} {
		if got := assessed(t, withRedis(t, url)); !strings.HasPrefix(got, want) {
			t.Errorf("%s: the doctor prints %q, want %q at its beginning", url, got, want)
		}
	}
}

// TestCheckRights asks a server that refuses a command of the queues.
func TestCheckRights(t *testing.T) {
	c := withRedis(t, testenv.RedisServer(t, "--rename-command", "ZADD", "").URL())
	queue, err := delay.NewQueue(c.process.Redis, "test", 1)
	testenv.Must(t, err)
	c.process.Kinds = app.Kinds{{Name: "test", Queue: queue}}
	if err := c.redis(t.Context()); err == nil || !strings.Contains(err.Error(), "refuses the command ZADD") {
		t.Errorf("the check of Redis returns %v, want that it refuses ZADD", err)
	}
}

// TestEvictionOfACluster checks a cluster of which one node may drop tasks.
func TestEvictionOfACluster(t *testing.T) {
	nodes := testenv.RedisCluster(t)
	wrong := testenv.RedisClient(t, "redis://"+nodes[1])
	t.Cleanup(func() { wrong.Close() })
	set := func(ctx context.Context, policy, limit string) {
		testenv.Must(t, wrong.ConfigSet(ctx, "maxmemory-policy", policy).Err())
		testenv.Must(t, wrong.ConfigSet(ctx, "maxmemory", limit).Err())
	}
	set(t.Context(), "allkeys-lru", "100mb")
	defer set(context.WithoutCancel(t.Context()), "noeviction", "0")

	c := withRedis(t, "redis://"+nodes[0]+"?addr="+nodes[1]+"&addr="+nodes[2])
	if got := assessed(t, c); strings.Count(got, "drops tasks") != 1 ||
		!strings.Contains(got, nodes[1]+" is allkeys-lru") {
		t.Errorf("the doctor prints %q, want one warning, about %s", got, nodes[1])
	}
}
