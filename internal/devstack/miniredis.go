package devstack

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Miniredis is a stand-in for Redis within this process, for a machine without redis-server.
type Miniredis struct {
	server *miniredis.Miniredis
}

// StartMiniredis starts a stand-in for Redis on a free port of 127.0.0.1.
func StartMiniredis() (*Miniredis, error) {
	server, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	return &Miniredis{server}, nil
}

// URL returns the server's address.
func (m *Miniredis) URL() string { return "redis://" + m.server.Addr() + "/0" }

// Stop stops the server. A second call has no effect.
func (m *Miniredis) Stop() error {
	m.server.Close()
	return nil
}

// Restart starts the server again after [Miniredis.Stop]. It has the same address and no data, like a restarted
// [Redis].
func (m *Miniredis) Restart(context.Context) error {
	m.server.FlushAll()
	if err := m.server.Restart(); err != nil {
		return fmt.Errorf("restart miniredis: %w", err)
	}
	return nil
}
