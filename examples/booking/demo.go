package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/devstack"
)

type demoCommand struct {
	HTTPAddr string        `name:"http-addr" default:"127.0.0.1:8091" help:"The address to listen on."`
	Timeout  time.Duration `name:"timeout" default:"1m" help:"The time to confirm a booking."`
	app.Log
}

// Run starts private servers, and serves until ctx ends.
func (c *demoCommand) Run(ctx context.Context, program app.Program) error {
	servers, err := devstack.StartServers(ctx, program.Err)
	if err != nil {
		return err
	}
	defer servers.Stop()
	database := app.Database{DatabaseURL: servers.Postgres.URL(), DatabaseConns: 20}
	migrate := migrateCommand{Seed: true, Migrate: app.Migrate{Database: database, Log: c.Log}}
	if err := migrate.Run(ctx, program); err != nil {
		return err
	}
	serve := serveCommand{
		Serve: app.Serve{
			HTTPAddr: c.HTTPAddr, Roles: []string{app.API, app.Relay, app.Worker, app.Reconciler},
			Tool: app.Tool{
				Database: database, Redis: app.Redis{RedisURL: servers.Redis.URL(), QueueShards: 1}, Log: c.Log,
				Reconcile: app.Reconcile{ReconcileSchedule: "@every 5s", ReconcileLookahead: 15 * time.Second},
			},
		},
		options: options{Timeout: c.Timeout, MaxOpenPlaces: 10, TokenKey: rand.Text() + rand.Text()},
	}
	serve.Ops.OpsToken = rand.Text()
	fmt.Fprintln(program.Out, "the operators' token is", serve.Ops.OpsToken)
	return serve.Run(ctx, program)
}
