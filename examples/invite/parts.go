package main

import (
	"context"
	"log/slog"

	"example.com/shop/internal/app"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/postgres"
)

// open opens a process with invitations and the operators' API.
func (c *serveCommand) open(ctx context.Context, cfg app.Config, log *slog.Logger) (*app.Process, error) {
	cfg.OpsGuard, cfg.SessionSettings = c.Ops.Guard(), postgres.IndexPlans
	connections, err := app.Connect(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	p := app.New(connections, cfg, log)
	if err := addInvitations(p, c.Timeout); err != nil {
		p.Close()
		return nil, err
	}
	ops.Add(p, p.Kinds[0], nil)
	return p, nil
}
