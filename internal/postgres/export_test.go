package postgres

// Keys returns the number of keys that the gate remembers.
func (g *KeyGate) Keys() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.keys)
}
