package main

import (
	"example.com/shop/internal/app"
	"example.com/shop/internal/ops"
)

// addParts adds the parts to a process.
func (c *serveCommand) addParts(p *app.Process) {
	addInvitations(p, c.Timeout)
	ops.Add(p, c.Ops)
}
