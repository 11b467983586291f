package contender

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// ZAdd adds the orders to a sorted set. The member is the order's ID, and the score is its due time in milliseconds. A
// member that exists gets the new score. In a pipeline, ZAdd only queues the command.
func ZAdd(ctx context.Context, client redis.Cmdable, key string, orders []Order) error {
	if len(orders) == 0 {
		return nil
	}
	members := make([]redis.Z, len(orders))
	for i, o := range orders {
		members[i] = redis.Z{Score: float64(o.CeilMilli()), Member: o.ID}
	}
	return client.ZAdd(ctx, key, members...).Err()
}
