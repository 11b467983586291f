package main

import (
	"context"
	"log/slog"

	"example.com/shop/examples/invite/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/ops"
)

// open returns a process with invitations and the operators' API, which is connected to its servers.
func (c *serveCommand) open(ctx context.Context, cfg app.Config, log *slog.Logger) (p *app.Process, err error) {
	b, err := app.Connect(ctx, cfg, log, migrations.Set)
	if err != nil {
		return nil, err
	}
	defer b.CloseOnError(&err)
	expire, err := app.NewKind(b, expireKind, rows, delay.WorkerConfig{})
	if err != nil {
		return nil, err
	}
	kinds, parts := app.Kinds{expire}, app.Parts{part(b, expire, c.Timeout)}
	return app.New(b, kinds, append(parts, ops.Part(b, c.Ops, kinds, parts, nil))...)
}
