package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
)

// eviction returns a warning that names the Redis servers which may drop tasks when their memory is full. That is
// no failure, because the reconciler puts back what is missing.
func (c checker) eviction(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	servers, err := delay.InfoOfMasters(ctx, c.process.Redis)
	if err != nil {
		return fmt.Errorf("%w: the policy of Redis is not read: %w", app.ErrUnchecked, err)
	}
	var evicting, silent []string
	for _, address := range slices.Sorted(maps.Keys(servers)) {
		info, server := servers[address], strings.TrimSpace("Redis "+address)
		switch policy := info.Item("Memory", "maxmemory_policy"); {
		case policy == "":
			silent = append(silent, server)
		case strings.HasPrefix(policy, "allkeys-"): // volatile-… drops only keys with an expiry, which tasks lack
			evicting = append(evicting, fmt.Sprintf("the maxmemory-policy of %s is %s, so it drops tasks when its "+
				"memory is full; it has evicted %s keys since it started",
				server, policy, cmp.Or(info.Item("Stats", "evicted_keys"), "no")))
		}
	}
	if evicting != nil {
		return app.Warning(fmt.Sprintf("%s. The next sweep finds that a task is missing, so what was due may be late by "+
			"up to %v. Set maxmemory-policy to noeviction, and let nothing else use this Redis",
			strings.Join(evicting, "; "), c.process.Kinds.Bound()))
	}
	if silent != nil {
		return fmt.Errorf("%w: %s does not tell its maxmemory-policy, which must be noeviction",
			app.ErrUnchecked, strings.Join(silent, " and "))
	}
	return nil
}
