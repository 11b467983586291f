package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sethvargo/go-retry"

	"example.com/shop/internal/delay"
)

// checkEviction returns a warning that names the Redis servers which may drop tasks when their memory is full. That is
// no failure, because the reconciler puts back what is missing.
func (p *Process) checkEviction(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	servers, err := delay.ReadMemory(ctx, p.Redis)
	if err != nil {
		return fmt.Errorf("%w: the policy of Redis is not read: %w", ErrUnchecked, err)
	}
	var evicting, silent []string
	for _, m := range servers {
		server := strings.TrimSpace("Redis " + m.Node)
		switch {
		case m.Policy == "":
			silent = append(silent, server)
		case m.EvictsTasks():
			evicting = append(evicting, fmt.Sprintf("the maxmemory-policy of %s is %s, so it drops tasks when its "+
				"memory is full; it has evicted %d keys since it started", server, m.Policy, m.Evicted))
		}
	}
	if evicting != nil {
		return Warning(fmt.Sprintf("%s. The next sweep finds that a task is missing, so what was due may be late by "+
			"up to %v. Set maxmemory-policy to noeviction, and let nothing else use this Redis",
			strings.Join(evicting, "; "), p.Kinds.Bound()))
	}
	if silent != nil {
		return fmt.Errorf("%w: %s does not tell its maxmemory-policy, which must be noeviction",
			ErrUnchecked, strings.Join(silent, " and "))
	}
	return nil
}

// warnOfEviction logs the warning of checkEviction, for which it waits until Redis tells its policy or ctx ends.
func (p *Process) warnOfEviction(ctx context.Context) {
	_ = retry.Do(ctx, retry.NewConstant(time.Minute), func(ctx context.Context) error {
		err := p.checkEviction(ctx)
		if errors.Is(err, ErrUnchecked) {
			return retry.RetryableError(err)
		}
		if err != nil {
			p.Log.Warn(err.Error())
		}
		return nil
	})
}
