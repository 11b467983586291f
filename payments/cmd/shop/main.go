// Command shop is the shop with payments: its customers pay at the payment provider Stripe. It takes orders that must
// be paid by a deadline, cancels an order that is not paid in time, and releases its stock.
//
// The shop itself is in the module example.com/shop, and this module adds payments to it: see the function newShop.
package main

import (
	"context"
	"log/slog"

	"example.com/shop/internal/app"
	"example.com/shop/internal/doctor"
	"example.com/shop/internal/shop"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/migrations"
)

func main() {
	shop.SetGC()
	app.Main(program(), &commands{})
}

// stamped is the version that the build sets with -ldflags "-X main.stamped=v1.2.3". It may be empty.
var stamped string

func program() app.Program { return shop.Program(stamped) }

// commands is the command line. Every option is a flag and an environment variable. docs/payments.md lists
// those that the shop without payments does not have, and a test compares its table with them.
//
// A secret, or an address that may contain a password, has two options: the value itself, and the name of a file with
// the value. See [app.ReadSecrets]. A command checks its options when it runs, because the files are read after the
// command line is parsed.
type commands struct {
	Serve     serveCommand       `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand     `cmd:"" help:"Create or update the schema of the database."`
	Reconcile reconcileCommand   `cmd:"" help:"Compare the tables with Redis once, repair the differences, and print the report."`
	Doctor    doctorCommand      `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Health    app.HealthCommand  `cmd:"" help:"Check whether the process at an address is ready."`
	Demo      demoCommand        `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL and Redis. Their data is deleted when it stops."`
	Payments  paymentsCommand    `cmd:"" help:"Commands of payments."`
	Provider  providerCommand    `cmd:"" help:"Run a simulator of the payment provider Stripe, for development and tests."`
	Version   app.VersionCommand `cmd:"" help:"Print the version."`
}

// serveCommand is `shop serve`.
type serveCommand struct {
	shop.Serve
	Payment payment.Options `embed:""`
}

func (c *serveCommand) check() error {
	return app.JoinErrors(c.Check(), c.Payment.Check(c.Has(app.API), c.PublicURL))
}

func (c *serveCommand) Run(ctx context.Context, program app.Program) error {
	if err := c.check(); err != nil {
		return app.Usage(err)
	}
	p, err := newShop(ctx, c.Config(program), &c.Options, c.Payment, app.NewLogger(program.Err, c.LogLevel, false))
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Serve(ctx, c.HTTPAddr)
}

// migrateCommand is `shop migrate`.
type migrateCommand struct{ shop.Migrate }

func (c *migrateCommand) Run(ctx context.Context, program app.Program) error {
	return c.Migrate.Migrate.Run(ctx, program, c.Finish, migrations.Set)
}

// providerOptions are the options that the commands that run once have besides those of the shop.
type providerOptions struct {
	Payment payment.ProviderOptions `embed:""`
}

// open opens the process of a command that runs once.
func (o *providerOptions) open(ctx context.Context, cfg app.Config, log *slog.Logger) (*app.Process, error) {
	return newShop(ctx, cfg, new(shop.Options), payment.Options{ProviderOptions: o.Payment}, log)
}

// reconcileCommand is `shop reconcile`.
type reconcileCommand struct {
	app.Tool
	providerOptions
}

func (c *reconcileCommand) Run(ctx context.Context, program app.Program) error {
	if err := app.JoinErrors(c.Check(), c.Payment.Check()); err != nil {
		return app.Usage(err)
	}
	return c.Sweep(ctx, program, c.open)
}

// doctorCommand is `shop doctor`.
type doctorCommand struct {
	doctor.Command
	providerOptions
}

func (c *doctorCommand) Run(ctx context.Context, program app.Program) error {
	if err := app.JoinErrors(c.Check(), c.Payment.Check()); err != nil {
		return app.Usage(err)
	}
	return c.Command.Run(ctx, program, c.open)
}
