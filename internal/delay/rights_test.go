package delay

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

// leastRights are the rights that the user of the service needs, as the documents list them.
var leastRights = []string{
	"~delay:*", "&delay:*", "-@all", "+ping", "+info", "+type", "+eval", "+evalsha", "+time", "+zadd", "+zrem", "+zrange",
	"+zrangebyscore", "+zrevrange", "+zscore", "+zmscore", "+zcard", "+zcount", "+hget", "+hmget", "+hset", "+hdel",
	"+mget", "+set", "+del", "+publish", "+subscribe",
}

func leastRightsBut(rights ...string) []string { return append(slices.Clone(leastRights), rights...) }

// TestRightsInRedis has Redis refuse something, and checks that the error names it.
func TestRightsInRedis(t *testing.T) {
	for name, test := range map[string]struct {
		server []string // options
		user   []string // the rights of a user; nil: the default user
		want   string   // in the error; "": no error
	}{
		"nothing":              {},
		"the least rights":     {user: leastRights},
		"no channels":          {user: leastRightsBut("resetchannels"), want: "subscribe to delay:"},
		"no ZADD":              {user: leastRightsBut("-zadd"), want: "ZADD"},
		"no scripts":           {user: leastRightsBut("-eval"), want: "EVAL"},
		"no deletions":         {user: leastRightsBut("-del"), want: "DEL"},
		"no types":             {user: leastRightsBut("-type"), want: "TYPE"},
		"no ping":              {user: leastRightsBut("-ping"), want: "ping"},
		"no subscriptions":     {user: leastRightsBut("-subscribe"), want: "subscribe"},
		"other keys":           {user: leastRightsBut("resetkeys", "~other:*"), want: "keys"},
		"a replica":            {server: []string{"--replicaof", "127.0.0.1", "1"}, want: "READONLY"},
		"too few replicas":     {server: []string{"--min-replicas-to-write", "1"}, want: "NOREPLICAS"},
		"a node of a cluster":  {server: []string{"--cluster-enabled", "yes"}, want: "?addr=host:port"},
		"no memory for writes": {server: []string{"--maxmemory", "1"}, want: "OOM"},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.RedisServer(t, test.server...)
			url := server.URL()
			if test.user != nil {
				args := []any{"ACL", "SETUSER", "shop", "on", ">secret"}
				for _, right := range test.user {
					args = append(args, right)
				}
				testenv.Must(t, connect(t, url).Do(t.Context(), args...).Err())
				url = strings.Replace(url, "redis://", "redis://shop:secret@", 1)
			}
			err := newQueue(t, connect(t, url), 1).CheckRights(t.Context())
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("CheckRights returns %v, want an error with %q", err, test.want)
			}
			if n, _ := connect(t, server.URL()).DBSize(t.Context()).Result(); n > 0 {
				t.Errorf("%d keys are left", n)
			}
		})
	}
}

// TestRightsInACluster probes a cluster, and a server that is away.
func TestRightsInACluster(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		testenv.Must(t, newQueue(t, rdb, 4).CheckRights(t.Context()))
	})
	err := newQueue(t, connect(t, "redis://127.0.0.1:1"), 1).CheckRights(t.Context())
	if _, answered := errors.AsType[redis.Error](err); err == nil || answered {
		t.Errorf("CheckRights of a server that is away returns %v, want an error that Redis has not answered", err)
	}
}

// TestCheckKeysNamesForeignKeys writes a value of each type to each key of a queue.
func TestCheckKeysNamesForeignKeys(t *testing.T) {
	q := newQueue(t, newRedis(t), 2)
	s := q.shards[1]
	for key, want := range map[string]string{
		s.due: "zset", s.leased: "zset", s.dead: "zset", s.attempts: "hash", s.errs: "hash", s.marker: "string",
	} {
		for kind, write := range testenv.RedisTypes {
			do(t, q, write(key)...)
			err := q.CheckKeys(t.Context())
			if (kind == want) != (err == nil) || err != nil && !strings.Contains(err.Error(), key+" is a "+kind) {
				t.Errorf("%s is a %s: CheckKeys returns %v", key, kind, err)
			}
			do(t, q, "DEL", key)
		}
	}
}
