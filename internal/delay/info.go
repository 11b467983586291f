package delay

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// InfoOfMasters sends INFO to each master of a cluster, at the same time, and otherwise to the only one, whose address
// is then empty. A server that refuses it has an empty answer. Managed servers answer INFO and refuse CONFIG.
func InfoOfMasters(
	ctx context.Context, rdb redis.UniversalClient, sections ...string,
) (infos map[string]*redis.InfoCmd, err error) {
	var mu sync.Mutex
	infos = map[string]*redis.InfoCmd{}
	ask := func(ctx context.Context, address string, server redis.Cmdable) error {
		info := server.InfoMap(ctx, sections...)
		mu.Lock()
		defer mu.Unlock()
		infos[address] = info
		if err := info.Err(); err != nil && !errors.As(err, new(redis.Error)) {
			return fmt.Errorf("INFO: %w", err)
		}
		return nil
	}
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return infos, ask(ctx, "", rdb)
	}
	return infos, cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		return ask(ctx, master.Options().Addr, master)
	})
}
