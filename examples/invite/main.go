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
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
	"example.com/shop/migrations"
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

// serve builds the components on existing servers, and runs them until ctx ends.
func serve(ctx context.Context, ln net.Listener, databaseURL, redisURL string, timeout time.Duration, log *slog.Logger) error {
	gdb, err := postgres.Open(ctx, databaseURL, "invite", 20)
	if err != nil {
		return err
	}
	db, err := gdb.DB()
	if err != nil {
		return err
	}
	defer db.Close()
	// The migrations create the outbox and the table of the reconciler's reports. Their other tables stay empty.
	if _, err := migrations.Up(ctx, db); err != nil {
		return err
	}
	if err := gdb.Exec(schemaSQL).Error; err != nil {
		return fmt.Errorf("create the table: %w", err)
	}
	rdb, err := delay.Connect(redisURL)
	if err != nil {
		return err
	}
	defer rdb.Close()
	queue, err := delay.NewQueue(rdb, delay.Config{Kind: expireKind})
	if err != nil {
		return err
	}

	registry := prometheus.NewRegistry()
	reg := prometheus.WrapRegistererWithPrefix("invite_", registry)
	s := &store{db: gdb}
	s.Timeouts = delay.NewTimeouts(expireKind, delay.TimeoutTable{TimeOut: s.expire}, log)
	outbox := delay.NewOutbox(db, expireKind)
	publisher := delay.NewPublisher(queue, outbox, delay.PublisherConfig{}, log, reg)
	relay := delay.NewRelay(queue, outbox, delay.RelayConfig{}, log, reg)
	worker := delay.NewWorker(queue, s.Handle, delay.WorkerConfig{}, log, reg)
	reconciler, err := reconcile.New(db, s, queue, reconcile.Config{}, log, reg)
	if err != nil {
		return err
	}

	log.Info("serving", "addr", ln.Addr().String())
	components, ctx := errgroup.WithContext(ctx)
	h := handler(s, publisher, timeout, log)
	h.GET("/metrics", gin.WrapH(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	components.Go(func() error { return rest.Serve(ctx, ln, h, log) })
	components.Go(func() error { return publisher.Run(ctx) })
	components.Go(func() error { return relay.Run(ctx) })
	components.Go(func() error { return worker.Run(ctx) })
	components.Go(func() error { return reconciler.Run(ctx) })
	return components.Wait()
}
