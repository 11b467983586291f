package delay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Memory says what a Redis server does when its memory is full.
type Memory struct {
	Node    string // host:port of a master of a cluster; "": the service has one Redis
	Policy  string // maxmemory-policy; "": the server does not tell it, or refuses INFO
	Evicted int64  // keys that the server has evicted since it started
}

// EvictsTasks reports whether the server drops tasks when it reaches a limit of its memory. The policies volatile-…
// concern only keys with an expiry, and the keys of a queue have none: a full server then rejects new tasks, as with
// noeviction.
func (m Memory) EvictsTasks() bool { return strings.HasPrefix(m.Policy, "allkeys-") }

// ReadMemory reads the memory of Redis, of each master of a cluster in the order of their addresses. It sends INFO,
// because managed servers refuse CONFIG.
func ReadMemory(ctx context.Context, rdb redis.UniversalClient) (all []Memory, err error) {
	infos, err := infoOfMasters(ctx, rdb)
	for _, node := range slices.Sorted(maps.Keys(infos)) {
		info := infos[node]
		if err := info.Err(); err != nil && !errors.As(err, new(redis.Error)) { // a refusal leaves the policy unknown
			return nil, fmt.Errorf("INFO: %w", err)
		}
		evicted, _ := strconv.ParseInt(info.Item("Stats", "evicted_keys"), 10, 64) // 0: a stand-in may lack it
		all = append(all, Memory{Node: node, Policy: info.Item("Memory", "maxmemory_policy"), Evicted: evicted})
	}
	return all, err
}

// infoOfMasters sends INFO to each master of a cluster, at the same time, and otherwise to the only one, whose address
// is then empty. Each reply has its own error.
func infoOfMasters(
	ctx context.Context, rdb redis.UniversalClient, sections ...string,
) (infos map[string]*redis.InfoCmd, err error) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return map[string]*redis.InfoCmd{"": rdb.InfoMap(ctx, sections...)}, nil
	}
	var mu sync.Mutex
	infos = map[string]*redis.InfoCmd{}
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		info := master.InfoMap(ctx, sections...)
		mu.Lock()
		defer mu.Unlock()
		infos[master.Options().Addr] = info
		return nil
	})
	return infos, err
}
