// Command invite is a minimal service on the packages that every copy keeps. An invitation expires unless it is
// accepted within a minute. README.md describes it.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"gorm.io/gorm"

	"example.com/shop/examples/invite/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/doctor"
	"example.com/shop/internal/ops"
)

func main() { app.Main(program(), &commands{}) }

// stamped is the version that the build sets with -ldflags "-X main.stamped=v1.2.3". It may be empty.
var stamped string

func program() app.Program {
	return app.Program{
		Name:        "invite",
		Description: "Create invitations, and expire those that are not accepted by their deadline.",
		Version:     cmp.Or(stamped, app.ModuleVersion()),
	}
}

// commands is the command line. Every option is a flag and an environment variable.
type commands struct {
	Serve     serveCommand       `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand     `cmd:"" help:"Create or update the schema of the database."`
	Reconcile reconcileCommand   `cmd:"" help:"Compare the invitations with Redis once, repair the differences, and print the report."`
	Doctor    doctorCommand      `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Demo      demoCommand        `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL and Redis. Its data is deleted when it stops."`
	Health    app.HealthCommand  `cmd:"" help:"Check whether the process at an address is ready."`
	Version   app.VersionCommand `cmd:"" help:"Print the version."`
}

// timeoutOption is the option of invitations.
type timeoutOption struct {
	Timeout time.Duration `name:"timeout" default:"1m" help:"The time to accept an invitation."`
}

func (o timeoutOption) checkTimeout() error {
	if o.Timeout < time.Second {
		return fmt.Errorf("%s is %v, want at least 1s", app.OptionName("timeout"), o.Timeout)
	}
	return nil
}

// serveCommand is the command serve.
type serveCommand struct {
	app.Serve
	timeoutOption
	Ops ops.Options `embed:""`
}

func (c *serveCommand) Run(ctx context.Context, program app.Program) error {
	errs := []error{c.Check(), c.checkTimeout()}
	if c.Has(app.API) {
		errs = append(errs, c.Ops.Check(""))
	}
	if err := app.JoinErrors(errs...); err != nil {
		return app.Usage(err)
	}
	p, err := c.open(ctx, c.Config(program), app.NewLogger(program.Err, c.LogLevel, false))
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Serve(ctx, c.HTTPAddr)
}

// migrateCommand is the command migrate. The migrations of the core create the outbox, the table of the reconciler's
// reports, and the tables of other programs in this module, if there are any, which stay empty.
type migrateCommand struct{ app.Migrate }

func (c *migrateCommand) Run(ctx context.Context, program app.Program) error {
	nothingElse := func(context.Context, *gorm.DB) error { return nil }
	return c.Migrate.Run(ctx, program, nothingElse, migrations.Set)
}

// openTool opens the process of a command that runs once.
func openTool(ctx context.Context, cfg app.Config, log *slog.Logger) (*app.Process, error) {
	return new(serveCommand).open(ctx, cfg, log)
}

// reconcileCommand is the command reconcile.
type reconcileCommand struct{ app.Tool }

func (c *reconcileCommand) Run(ctx context.Context, program app.Program) error {
	return c.Sweep(ctx, program, openTool)
}

// doctorCommand is the command doctor.
type doctorCommand struct{ doctor.Command }

func (c *doctorCommand) Run(ctx context.Context, program app.Program) error {
	return c.Command.Run(ctx, program, openTool)
}
