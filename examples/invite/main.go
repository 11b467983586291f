// Command invite is a minimal service on the packages that every copy keeps. An invitation expires unless it is
// accepted within a minute. README.md describes it.
package main

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/cli"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/option"
)

func main() { cli.Main(program(), &commands{}) }

func program() cli.Program {
	return cli.Program{
		Name:        "invite",
		Description: "Create invitations, and expire those that are not accepted by their deadline.",
		Version:     cli.ModuleVersion(),
	}
}

// commands is the command line. Every option is a flag and an environment variable.
type commands struct {
	Serve     serveCommand       `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand     `cmd:"" help:"Create or update the schema of the database."`
	Reconcile reconcileCommand   `cmd:"" help:"Compare the invitations with Redis once, repair the differences, and print the report."`
	Doctor    doctorCommand      `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Demo      demoCommand        `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL. Its data is deleted when it stops."`
	Health    cli.HealthCommand  `cmd:"" help:"Check whether the process at an address is ready."`
	Version   cli.VersionCommand `cmd:"" help:"Print the version."`
}

// timeoutOption is the option of invitations.
type timeoutOption struct {
	Timeout time.Duration `name:"timeout" default:"1m" help:"The time to accept an invitation."`
}

func (o timeoutOption) checkTimeout() error {
	if o.Timeout < time.Second {
		return fmt.Errorf("%s is %v, want at least 1s", option.Name("timeout"), o.Timeout)
	}
	return nil
}

// serveCommand is `invite serve`.
type serveCommand struct {
	cli.Serve
	timeoutOption
	Ops ops.Options `embed:""`
}

func (c *serveCommand) Run(ctx context.Context, program cli.Program) error {
	errs := []error{c.Check(), c.checkTimeout()}
	if c.Has(app.API) {
		errs = append(errs, c.Ops.Check(""))
	}
	if err := option.Join(errs...); err != nil {
		return option.Usage(err)
	}
	return c.Serve.Run(ctx, program, c.open)
}

// migrateCommand is `invite migrate`. The migrations create the outbox and the table of the reconciler's reports, and
// also the tables of orders, if there are any; they stay empty here.
type migrateCommand struct{ cli.Migrate }

func (c *migrateCommand) Run(ctx context.Context, program cli.Program) error {
	return c.Migrate.Run(ctx, program, createTable)
}

// toolCommand is a command that runs once.
type toolCommand struct{ cli.Tool }

func (c *toolCommand) open(ctx context.Context, program cli.Program) (*app.Process, error) {
	if err := c.Check(); err != nil {
		return nil, option.Usage(err)
	}
	return c.Open(ctx, program, new(serveCommand).open)
}

// reconcileCommand is `invite reconcile`.
type reconcileCommand struct{ toolCommand }

func (c *reconcileCommand) Run(ctx context.Context, program cli.Program) error {
	return cli.Sweep(ctx, program, c.open)
}

// doctorCommand is `invite doctor`.
type doctorCommand struct {
	toolCommand
	cli.DoctorOptions
}

func (c *doctorCommand) Run(ctx context.Context, program cli.Program) error {
	return cli.Doctor(ctx, program, c.open, &c.Tool, c.DoctorOptions)
}
