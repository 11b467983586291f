package postgres

import (
	"context"
	"fmt"

	"gorm.io/gorm"
)

// Gate limits the number of statements that may wait for a lock of another session at the same time. The limit is
// lower than the number of connections, so that connections are left for all other statements.
type Gate struct {
	slots chan struct{}
}

// NewGate returns a gate for three quarters of a pool's connections, and at least for one.
func NewGate(db *gorm.DB) *Gate {
	slots := 1
	if pool, err := db.DB(); err == nil {
		slots = max(slots, pool.Stats().MaxOpenConnections*3/4)
	}
	return &Gate{slots: make(chan struct{}, slots)}
}

// Enter waits until the gate admits the caller or ctx ends. After the statement the caller must call leave. The error
// wraps that of ctx.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("all connections for statements that may wait for locks are in use: %w", ctx.Err())
	}
}
