package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ErrBusy means that too many statements work on a shared row already, or wait for its lock. [Unavailable] reports
// true for it.
var ErrBusy = errors.New("too many statements are waiting for a row that many want")

// KeyGate limits the number of statements that work at the same time on each shared row, or wait for its lock. Without
// it, the statements that wait for one popular row would take all connections, and the statements on other rows would
// wait for a connection, although they could go on.
//
// The keys name the shared rows. A key that nobody uses takes no memory, so clients may choose the keys.
type KeyGate struct {
	slots int
	wait  time.Duration

	mu   sync.Mutex
	keys map[string]*keySlots // those that have users
}

// keySlots are the slots of a key.
type keySlots struct {
	taken chan struct{}
	users int // callers that have a slot or wait for one
}

// NewKeyGate returns a gate with a number of slots for each key. [KeyGate.Enter] waits at most wait for slots.
func NewKeyGate(slots int, wait time.Duration) *KeyGate {
	return &KeyGate{slots: slots, wait: wait, keys: make(map[string]*keySlots)}
}

// Enter takes a slot of each of the keys, and waits for all of them together as long as the gate permits. The caller
// must call leave after the statement. The error wraps [ErrBusy] if there is no slot in time, and the error of ctx if
// ctx ends.
func (g *KeyGate) Enter(ctx context.Context, keys ...string) (leave func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.wait, ErrBusy)
	defer cancel()
	// In one order, so that no two callers wait for each other, and a repeated key takes one slot.
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	var entered []string
	leave = func() {
		for _, key := range entered {
			<-g.use(key, -1)
		}
	}
	for _, key := range keys {
		select {
		case g.use(key, 1) <- struct{}{}:
			entered = append(entered, key)
		case <-ctx.Done():
			g.use(key, -1)
			leave()
			return nil, fmt.Errorf("wait for a turn to use the row %.64q: %w", key, context.Cause(ctx))
		}
	}
	return leave, nil
}

// use changes the number of users of a key, and returns the slots of the key.
func (g *KeyGate) use(key string, users int) (taken chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[key]
	if k == nil {
		k = &keySlots{taken: make(chan struct{}, g.slots)}
		g.keys[key] = k
	}
	if k.users += users; k.users == 0 {
		delete(g.keys, key)
	}
	return k.taken
}
