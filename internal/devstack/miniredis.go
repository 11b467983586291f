package devstack

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Miniredis stands in for Redis where there is none: in this process, good enough to look at a demo.
type Miniredis struct {
	server *miniredis.Miniredis
}

// StartMiniredis runs a Redis in this process.
func StartMiniredis() (*Miniredis, error) {
	server, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("start miniredis: %w", err)
	}
	return &Miniredis{server}, nil
}

// URL is the server's address.
func (m *Miniredis) URL() string { return "redis://" + m.server.Addr() + "/0" }

// Stop ends the server. Stopped again, nothing happens.
func (m *Miniredis) Stop() error {
	m.server.Close()
	return nil
}

// Restart starts the server again after Stop, at the same address and empty, as a real one would be.
func (m *Miniredis) Restart(context.Context) error {
	m.server.FlushAll()
	if err := m.server.Restart(); err != nil {
		return fmt.Errorf("restart miniredis: %w", err)
	}
	return nil
}
