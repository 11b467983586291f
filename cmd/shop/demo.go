package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/devstack"
)

// demoCommand is `shop demo`.
type demoCommand struct {
	HTTPAddr       string        `name:"http-addr" env:"SHOP_HTTP_ADDR" default:"127.0.0.1:8080" help:"The address to listen on. If the default is taken, the demo listens on a free port."`
	OrderTimeout   time.Duration `name:"order-timeout" env:"SHOP_ORDER_TIMEOUT" default:"30s" help:"The time that a customer has to pay an order."`
	OrderExtension time.Duration `name:"order-extension" env:"SHOP_ORDER_EXTENSION" default:"30s" help:"The time by which a customer can extend the deadline of an order, once. 0s: not at all."`
	boundOptions
	logOptions
}

// The demo's reconciler sweeps often, so that an operator sees a repair soon.
const (
	demoSchedule  = "@every 5s"
	demoLookahead = 15 * time.Second
	demoDrain     = time.Second
)

func (c *demoCommand) Run(ctx context.Context, to streams) error {
	o := &serveOptions{
		HTTPAddr:         c.HTTPAddr,
		OrderTimeout:     c.OrderTimeout,
		OrderExtension:   c.OrderExtension,
		Roles:            []string{"api", "relay", "reconciler"}, // faults.runWorker runs the worker
		TokenKey:         rand.Text() + rand.Text(),
		OpsToken:         rand.Text(),
		boundOptions:     c.boundOptions,
		databaseOptions:  databaseOptions{DatabaseURL: "private", DatabaseConns: 20},
		redisOptions:     redisOptions{RedisURL: "private", QueueShards: 1},
		paymentOptions:   paymentOptions{paymentProviderOptions: paymentProviderOptions{StripeURL: "http://private"}, PaymentGrace: demoGrace},
		reconcileOptions: reconcileOptions{ReconcileSchedule: demoSchedule, ReconcileLookahead: demoLookahead},
	}
	if err := o.validate(); err != nil {
		return usageError{err}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go stopWithGoRun(ctx, stop)

	fmt.Fprintln(to.err, "starting a private PostgreSQL and Redis …")
	servers, err := startDemoServers(ctx, to.err)
	if err != nil {
		return err
	}
	defer servers.stop()
	o.DatabaseURL, o.RedisURL = servers.postgres.URL(), servers.redis.URL()
	return c.serve(ctx, o, servers, to)
}

func (c *demoCommand) serve(ctx context.Context, o *serveOptions, servers *demoServers, to streams) error {
	if _, err := migrate(ctx, o.DatabaseURL); err != nil {
		return err
	}
	log := newLogger(to.err, c.LogLevel, true)
	ln, err := listenDemo(c.HTTPAddr)
	if err != nil {
		return fmt.Errorf("listen on SHOP_HTTP_ADDR: %w", err)
	}
	defer ln.Close()
	var payments demoPayments
	if err := payments.start(ctx, o, "http://"+ln.Addr().String(), log); err != nil {
		return err
	}
	defer payments.close()
	a, err := newApp(ctx, o, demoDrain, log)
	if err != nil {
		return err
	}
	defer a.close()
	if err := a.store.SeedProducts(ctx); err != nil {
		return err
	}
	f := newFaults(a, servers.redis)
	f.payments = &payments
	handler, err := a.handler(o, f.routes)
	if err != nil {
		return err
	}
	c.printWelcome(to, ln.Addr(), o, servers)
	return a.run(ctx, o, ln, handler,
		f.runWorker,
		f.sale.run,
		payments.run,
	)
}

func (c *demoCommand) printWelcome(to streams, addr net.Addr, o *serveOptions, servers *demoServers) {
	url := "http://" + addr.String()
	more := ""
	more += paymentsWelcome(o)
	fmt.Fprintf(to.out, `
shop is running. Ctrl-C stops it and deletes its data.

  shop        %[1]s
  operations  %[1]s/ops#token=%[2]s
  ops token   %[2]s
  postgres    %[3]s (%[4]s)
  redis       %[5]s (%[6]s)
%[8]s  An order that is not paid within %[7]v is cancelled.

  TOKEN=$(curl -sX POST %[1]s/api/customers | sed 's/.*"token":"\([^"]*\)".*/\1/')
  curl -s %[1]s/api/products
  curl -s -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \
       -d '{"items":[{"product_id":"01900000-0000-7000-8000-000000000001","quantity":2}]}' %[1]s/api/orders
  curl -s -H "Authorization: Bearer %[2]s" %[1]s/ops/api/stats

`, url, o.OpsToken, servers.postgres.URL(), servers.postgresIs, servers.redis.URL(), servers.redisIs, c.OrderTimeout, more)
}

// listenDemo listens on addr. If addr is the default and is taken, listenDemo listens on a free port.
func listenDemo(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && addr == "127.0.0.1:8080" {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	return ln, err
}

// demoServer is a server of the demo: a child process, a container, or a stand-in within this process.
type demoServer interface {
	URL() string
	Stop() error
	Restart(ctx context.Context) error
}

type demoServers struct {
	dir                 string
	postgres, redis     demoServer
	postgresIs, redisIs string // how each of them runs, for the welcome text
}

func startDemoServers(ctx context.Context, progress io.Writer) (*demoServers, error) {
	dir, err := devstack.TempDir()
	if err != nil {
		return nil, err
	}
	s := &demoServers{dir: dir}
	err = s.startBinaries(ctx)
	if errors.Is(err, devstack.ErrNoPostgres) {
		err = s.startContainers(ctx, err, progress)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// startBinaries runs the server binaries of this machine. A stand-in replaces a missing redis-server.
func (s *demoServers) startBinaries(ctx context.Context) error {
	data := filepath.Join(s.dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("make PostgreSQL's directory: %w", err)
	}
	postgres, err := devstack.StartPostgres(ctx, data, nil)
	if err != nil {
		return err
	}
	s.postgres, s.postgresIs = postgres, "a process of this machine's postgres"
	redis, err := devstack.StartRedis(ctx, s.dir)
	if err == nil {
		s.redis, s.redisIs = redis, "a process of this machine's redis-server"
		return nil
	}
	if !errors.Is(err, devstack.ErrNoRedis) {
		return err
	}
	mini, err := devstack.StartMiniredis()
	if err != nil {
		return err
	}
	s.redis, s.redisIs = mini, "a stand-in within this process: there is no redis-server in PATH"
	return nil
}

// startContainers runs both servers in containers, because this machine has no PostgreSQL. If it has no container
// engine either, the error names all remedies: it begins with noPostgres, the error of the search for PostgreSQL.
func (s *demoServers) startContainers(ctx context.Context, noPostgres error, progress io.Writer) error {
	engine, err := devstack.FindEngine(ctx)
	if err != nil {
		return fmt.Errorf("%w with `shop serve`; or start a container engine: %w", noPostgres, err)
	}
	fmt.Fprintf(progress, "this machine has no PostgreSQL server binaries: running %s and %s in containers with %s\n",
		devstack.PostgresImage(), devstack.RedisImage(), engine)
	for _, image := range []string{devstack.PostgresImage(), devstack.RedisImage()} {
		if err := engine.Pull(ctx, image, progress); err != nil {
			return err
		}
	}
	postgres, err := engine.StartPostgres(ctx, s.dir)
	if err != nil {
		return err
	}
	s.postgres, s.postgresIs = postgres, "a container of "+devstack.PostgresImage()
	redis, err := engine.StartRedis(ctx, s.dir)
	if err != nil {
		return err
	}
	s.redis, s.redisIs = redis, "a container of "+devstack.RedisImage()
	return nil
}

// stop stops both servers, at the same time, and removes their files.
func (s *demoServers) stop() {
	var stopping errgroup.Group
	if s.postgres != nil {
		stopping.Go(s.postgres.Stop)
	}
	if s.redis != nil {
		stopping.Go(s.redis.Stop)
	}
	if err := errors.Join(stopping.Wait(), os.RemoveAll(s.dir)); err != nil {
		slog.Warn("the demo could not clean up: remove its directory yourself", "dir", s.dir, "error", err)
	}
}

// stopWithGoRun stops the demo when its parent is `go run` and is killed: a killed parent cannot signal its child. A
// demo with another parent, such as a shell, keeps running when that parent ends.
func stopWithGoRun(ctx context.Context, stop func()) {
	parent := os.Getppid()
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", parent))
	if err != nil || filepath.Base(exe) != "go" {
		return
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for os.Getppid() == parent {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	stop()
}
