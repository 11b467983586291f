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
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/cli"
	"example.com/shop/internal/demo"
	"example.com/shop/internal/option"
	"example.com/shop/internal/order"
)

// demoCommand is `shop demo`.
type demoCommand struct {
	HTTPAddr       string        `name:"http-addr" default:"127.0.0.1:8080" help:"The address to listen on. If the default is taken, the demo listens on a free port."`
	OrderTimeout   time.Duration `name:"order-timeout" default:"30s" help:"The time that a customer has to pay an order."`
	OrderExtension time.Duration `name:"order-extension" default:"30s" help:"The time by which a customer can extend the deadline of an order, once. 0s: not at all."`
	order.Bounds
	cli.Log
}

// demoParts are what the demo does for the parts whose options it must choose.
var demoParts = []demoPart{
	demoOps,
	demoPayments,
}

// demoPart is what the demo does for one part. A function may be nil.
type demoPart struct {
	set  func(o *serveCommand)                       // sets options, before the private servers start
	open func(ctx context.Context, d *demoRun) error // opens what the part needs, when the private servers run
}

// demoRun is one run of the demo. [demoParts] add to it.
type demoRun struct {
	options *serveCommand
	url     string // of the shop
	log     *slog.Logger
	welcome string                             // lines about the parts
	try     string                             // lines of shell that show the parts
	adders  []func(*app.Process, *demo.Faults) // add to the process what the parts have opened
	closers []func()                           // close it
}

// The demo's reconciler sweeps often, so that an operator sees a repair soon.
const (
	demoSchedule  = "@every 5s"
	demoLookahead = 15 * time.Second
	demoDrain     = time.Second
)

// options returns the options of the demo's process. Its servers are not known yet.
func (c *demoCommand) options() *serveCommand {
	o := &serveCommand{
		Serve: cli.Serve{
			HTTPAddr:  c.HTTPAddr,
			Roles:     []string{app.API, app.Relay, app.Reconciler}, // package demo runs the worker
			Database:  cli.Database{DatabaseURL: "postgres://private", DatabaseConns: 20},
			Redis:     cli.Redis{RedisURL: "private", QueueShards: 1},
			Reconcile: cli.Reconcile{ReconcileSchedule: demoSchedule, ReconcileLookahead: demoLookahead},
		},
	}
	o.TokenKey = rand.Text() + rand.Text()
	o.Order = order.Options{OrderTimeout: c.OrderTimeout, OrderExtension: c.OrderExtension, Bounds: c.Bounds}
	for _, part := range demoParts {
		if part.set != nil {
			part.set(o)
		}
	}
	return o
}

func (c *demoCommand) Run(ctx context.Context, program cli.Program) error {
	o := c.options()
	if err := o.check(); err != nil {
		return option.Usage(err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go stopWithGoRun(ctx, stop)

	fmt.Fprintln(program.Err, "starting a private PostgreSQL and Redis …")
	servers, err := demo.StartServers(ctx, program.Err)
	if err != nil {
		return err
	}
	defer servers.Stop()
	o.DatabaseURL, o.RedisURL = servers.Postgres.URL(), servers.Redis.URL()
	return c.serve(ctx, o, servers, program)
}

func (c *demoCommand) serve(ctx context.Context, o *serveCommand, servers *demo.Servers, program cli.Program) error {
	if err := cli.MigrateUp(ctx, o.DatabaseURL, io.Discard); err != nil {
		return err
	}
	log := app.NewLogger(program.Err, c.LogLevel, true)
	ln, err := listenDemo(c.HTTPAddr)
	if err != nil {
		return err
	}
	defer ln.Close()
	d := &demoRun{options: o, url: "http://" + ln.Addr().String(), log: log}
	defer d.close()
	if err := d.openParts(ctx); err != nil {
		return err
	}
	config := o.Config(program)
	config.WorkerDrain = demoDrain
	p, err := app.Open(ctx, config, log)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := order.NewStore(p.DB).SeedProducts(ctx); err != nil {
		return err
	}
	orders := addParts(p, &o.partOptions)
	d.addTo(p, demo.Add(p, servers.Redis, demoOrders{orders}))
	c.printWelcome(program, d, servers)
	return p.Run(ctx, ln)
}

// openParts opens what the parts need, and sets the options of the process that depend on it.
func (d *demoRun) openParts(ctx context.Context) error {
	for _, part := range demoParts {
		if part.open == nil {
			continue
		}
		if err := part.open(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// addTo adds to the process what the parts have opened.
func (d *demoRun) addTo(p *app.Process, f *demo.Faults) {
	for _, add := range d.adders {
		add(p, f)
	}
}

func (d *demoRun) close() {
	for _, c := range slices.Backward(d.closers) {
		c()
	}
}

// demoOrders places the orders of package demo.
type demoOrders struct{ orders *order.Service }

// PlaceOne implements [demo.Orders]. The customer's id is the idempotency key, so that a repeated call places one order.
func (d demoOrders) PlaceOne(ctx context.Context, customer, product uuid.UUID) error {
	_, _, err := d.orders.Place(ctx, customer, order.Placement{
		IdempotencyKey: customer.String(),
		Lines:          []order.Line{{ProductID: product, Quantity: 1}},
	})
	return err
}

func (c *demoCommand) printWelcome(program cli.Program, d *demoRun, servers *demo.Servers) {
	fmt.Fprintf(program.Out, `
shop is running. Ctrl-C stops it and deletes its data.

  shop        %[1]s
%[2]s  postgres    %[3]s (%[4]s)
  redis       %[5]s (%[6]s)
  An order that is not paid within %[7]v is cancelled.

  TOKEN=$(curl -sX POST %[1]s/api/customers | sed 's/.*"token":"\([^"]*\)".*/\1/')
  curl -s %[1]s/api/products
  curl -s -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \
       -d '{"items":[{"product_id":"01900000-0000-7000-8000-000000000001","quantity":2}]}' %[1]s/api/orders
%[8]s
  export SHOP_DATABASE_URL='%[3]s' SHOP_REDIS_URL='%[5]s'; go run ./cmd/shop doctor
`, d.url, d.welcome, servers.Postgres.URL(), servers.PostgresIs, servers.Redis.URL(), servers.RedisIs, c.OrderTimeout, d.try)
}

// listenDemo listens on addr. If addr is the default and is taken, listenDemo listens on a free port.
func listenDemo(addr string) (net.Listener, error) {
	ln, err := cli.Listen(addr)
	if errors.Is(err, syscall.EADDRINUSE) && addr == "127.0.0.1:8080" {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	return ln, err
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
