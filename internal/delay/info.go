package delay

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// InfoOfMasters sends INFO to all masters of a cluster at the same time, or to the only server, whose address is then
// "". A server that refuses INFO has an empty answer. Managed servers refuse CONFIG, but answer INFO.
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
