package shop

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/demo"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
)

// Demo has the options of `demo`.
type Demo struct {
	HTTPAddr       string        `name:"http-addr" placeholder:"HOST:PORT" help:"The address to listen on. Without one the demo listens on 127.0.0.1:8080, or on a free port if another process does."`
	OrderTimeout   time.Duration `name:"order-timeout" default:"30s" help:"The time that a customer has to pay an order."`
	OrderExtension time.Duration `name:"order-extension" default:"30s" help:"The time by which a customer can extend the deadline of an order, up to ten times. 0s: not at all."`
	order.Bounds
	app.Log
}

// DemoRun is a run of the demo whose private servers have started. Its database has no schema yet.
type DemoRun struct {
	Options Serve // of the process
	Servers *devstack.Servers
	URL     string // of the shop
	Log     *slog.Logger

	program  app.Program
	listener net.Listener
}

// The demo's reconciler sweeps often, and looks further ahead than orders wait for their payment, so that an operator
// sees a repair soon.
const (
	demoSchedule  = "@every 5s"
	demoLookahead = time.Minute
)

// options returns the options of the demo's process. The addresses of its servers are not known yet.
func (c *Demo) options() Serve {
	return Serve{
		Serve: app.Serve{
			HTTPAddr: cmp.Or(c.HTTPAddr, demoAddr),
			Roles:    []string{app.API, app.Relay, app.Worker, app.Reconciler},
			Tool: app.Tool{
				Database:  app.Database{DatabaseURL: "postgres://private", DatabaseConns: 20},
				Redis:     app.Redis{RedisURL: "redis://private", QueueShards: 1},
				Reconcile: app.Reconcile{ReconcileSchedule: demoSchedule, ReconcileLookahead: demoLookahead},
				Log:       c.Log,
			},
		},
		Options: Options{
			TokenKey: rand.Text() + rand.Text(),
			Order: order.Options{OrderTimeout: c.OrderTimeout, OrderExtension: c.OrderExtension,
				MaxExtensions: 10, Bounds: c.Bounds},
			Ops: ops.Options{OpsToken: rand.Text()},
		},
	}
}

// Run runs the command `demo`.
func (c *Demo) Run(ctx context.Context, program app.Program) error {
	return c.Start(ctx, program, func(ctx context.Context, r *DemoRun) error {
		if err := app.MigrateUp(ctx, r.Options.DatabaseURL, io.Discard); err != nil {
			return err
		}
		faults := demo.Part(r.Servers.Redis, demo.More{}, r.Log)
		p, err := New(ctx, r.Options.Config(program), &r.Options.Options, r.Log, faults)
		if err != nil {
			return err
		}
		defer p.Close()
		return r.Serve(ctx, p, "")
	})
}

// Start starts private servers, calls serve with them, and stops them when serve returns.
func (c *Demo) Start(ctx context.Context, program app.Program, serve func(context.Context, *DemoRun) error) error {
	o := c.options()
	if err := o.Check(); err != nil {
		return app.Usage(err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go stopWithGoRun(ctx, stop)

	ln, err := c.listen(program)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Fprintln(program.Err, "starting a private PostgreSQL and Redis …")
	servers, err := devstack.StartServers(ctx, program.Err)
	if err != nil {
		return err
	}
	defer servers.Stop()
	signal.Ignore(syscall.SIGPIPE) // so that a write to a pipe without a reader fails, and does not kill the demo
	program.Out, program.Err = output{program.Out, stop}, output{program.Err, stop}
	o.DatabaseURL, o.RedisURL = servers.Postgres.URL(), servers.Redis.URL()
	return serve(ctx, &DemoRun{
		Options: o, Servers: servers, URL: "http://" + ln.Addr().String(),
		Log: app.NewLogger(program.Err, c.LogLevel, true), program: program, listener: ln,
	})
}

// Serve adds the sample products, prints what the demo is, and serves until ctx ends. more are lines that the demo
// prints about other modules, each with a line break.
func (r *DemoRun) Serve(ctx context.Context, p *app.Process, more string) error {
	if err := order.NewStore(p.DB).SeedProducts(ctx); err != nil {
		return err
	}
	r.printWelcome(more)
	return p.Run(ctx, r.listener)
}

func (r *DemoRun) printWelcome(more string) {
	fmt.Fprintf(r.program.Out, `
shop is running. Ctrl-C stops it and deletes its data.

  shop        %[1]s
  operations  %[1]s/ops#token=%[2]s
  ops token   %[2]s
%[3]s  postgres    %[4]s (%[5]s)
  redis       %[6]s (%[7]s)
  An order that is not paid within %[8]v is cancelled. Sweeps run every 5 s here, by default every 30 s.
  Order something. Then inject faults, at the bottom of the page of operations.

  TOKEN=$(curl -sX POST %[1]s/api/customers | sed 's/.*"token":"\([^"]*\)".*/\1/')
  curl -s %[1]s/api/products
  curl -s -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \
       -d '{"items":[{"product_id":"01900000-0000-7000-8000-000000000001","quantity":2}]}' %[1]s/api/orders
  curl -s -H "Authorization: Bearer %[2]s" %[1]s/ops/api/stats

  export SHOP_DATABASE_URL='%[4]s' SHOP_REDIS_URL='%[6]s'; go run ./cmd/shop doctor
`, r.URL, r.Options.Ops.OpsToken, more, r.Servers.Postgres.URL(), r.Servers.PostgresIs, r.Servers.Redis.URL(),
		r.Servers.RedisIs, r.Options.Order.OrderTimeout)
}

const demoAddr = "127.0.0.1:8080" // unless the user names another address

// listen listens on the address that the user has named, or on demoAddr, or on a free port if demoAddr is in use.
func (c *Demo) listen(program app.Program) (net.Listener, error) {
	if c.HTTPAddr != "" {
		return app.Listen(c.HTTPAddr)
	}
	ln, err := app.Listen(demoAddr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	if ln, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
		fmt.Fprintf(program.Err, "another process listens on %s: the demo listens on %s\n", demoAddr, ln.Addr())
	}
	return ln, err
}

// output stops the demo when nobody reads what it prints any more, as with demo 2>&1 | head.
type output struct {
	io.Writer
	stop func()
}

func (o output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		o.stop()
	}
	return n, err
}

// stopWithGoRun stops the demo when its parent is `go run` and is killed, because a killed parent cannot signal its
// child. A demo with another parent, such as a shell, keeps running when that parent ends.
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
