package delay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	Limit   int64  // maxmemory in bytes; 0: there is none, and nothing is evicted
	Evicted int64  // keys that the server has evicted since it started
}

// EvictsTasks reports whether the server may drop tasks. The policies volatile-… concern only keys with an expiry, and
// the keys of a queue have none: a full server then rejects new tasks, as with noeviction.
func (m Memory) EvictsTasks() bool { return m.Limit > 0 && strings.HasPrefix(m.Policy, "allkeys-") }

// ReadMemory reads the memory of Redis, of each master of a cluster in the order of their addresses. It sends INFO,
// because managed servers refuse CONFIG.
func ReadMemory(ctx context.Context, rdb redis.UniversalClient) ([]Memory, error) {
	var mu sync.Mutex
	var all []Memory
	err := eachMaster(ctx, rdb, func(ctx context.Context, node string, server redis.Cmdable) error {
		info := server.InfoMap(ctx)
		if err := info.Err(); err != nil && !errors.As(err, new(redis.Error)) { // a refusal leaves the policy unknown
			return fmt.Errorf("INFO: %w", err)
		}
		number := func(section, field string) int64 {
			n, _ := strconv.ParseInt(info.Item(section, field), 10, 64) // 0: a stand-in for Redis may lack it
			return n
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, Memory{
			Node: node, Policy: info.Item("Memory", "maxmemory_policy"),
			Limit: number("Memory", "maxmemory"), Evicted: number("Stats", "evicted_keys"),
		})
		return nil
	})
	slices.SortFunc(all, func(a, b Memory) int { return cmp.Compare(a.Node, b.Node) })
	return all, err
}

// eachMaster calls do for each master of a cluster, at the same time, and otherwise for the only one, whose node is
// empty.
func eachMaster(
	ctx context.Context, rdb redis.UniversalClient,
	do func(ctx context.Context, node string, server redis.Cmdable) error,
) error {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return do(ctx, "", rdb)
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		return do(ctx, master.Options().Addr, master)
	})
}
