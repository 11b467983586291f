// Command invite is a minimal service on the packages that every copy keeps. An invitation expires unless it is
// accepted within a minute. The service has one table, no shared rows, and no page. It runs on a private PostgreSQL, and
// on a stand-in for Redis within its process:
//
//	go run ./examples/invite
//	curl -d '{"email":"ada@example.com"}' -H 'Content-Type: application/json' localhost:8090/invitations
//	curl -X POST localhost:8090/invitations/ID/accept
//
// It has no authentication. docs/make-it-yours.md walks through it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/cli"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/devstack"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8090", "address to listen on")
	timeout := flag.Duration("timeout", time.Minute, "time to accept an invitation")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *addr, *timeout, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "invite:", err)
		os.Exit(1)
	}
}

// run starts PostgreSQL and the stand-in for Redis, and serves until ctx ends.
func run(ctx context.Context, addr string, timeout time.Duration, log *slog.Logger) (err error) {
	dir, err := devstack.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pg, err := devstack.StartPostgres(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	redis, err := devstack.StartMiniredis()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.Stop()) }()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on -addr: %w", err)
	}
	return serve(ctx, ln, pg.URL(), redis.URL(), timeout, log)
}

// serve serves on existing servers until ctx ends.
func serve(ctx context.Context, ln net.Listener, databaseURL, redisURL string, timeout time.Duration, log *slog.Logger) error {
	// The migrations create the outbox and the table of the reconciler's reports. Their other tables stay empty.
	if _, err := cli.MigrateUp(ctx, databaseURL); err != nil {
		return err
	}
	p, err := app.Open(ctx, app.Config{
		Name: "invite", DatabaseURL: databaseURL, DatabaseConns: 20, RedisURL: redisURL, QueueShards: 1,
		Roles: []string{app.API, app.Relay, app.Worker, app.Reconciler},
	}, log)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.DB.Exec(schemaSQL).Error; err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	addInvitations(p, timeout)
	log.Info("serving", "addr", ln.Addr().String())
	return p.Run(ctx, ln)
}

// addInvitations adds invitations to a process: their routes, and the kind of task that expires them.
func addInvitations(p *app.Process, timeout time.Duration) {
	expire := p.NewKind(expireKind)
	table := newTable(p.DB, p.Log)
	expire.Handle(table.Handle, delay.WorkerConfig{}, table)
	p.Routes(func(root, _ gin.IRouter) { addRoutes(root, &store{db: p.DB}, expire.Publisher, timeout) })
}
