// Command booking is a service whose customers book places of courses. A booking that is not confirmed within some
// minutes expires, and its places are free again. README.md describes it.
package main

import (
	"cmp"
	"context"
	_ "embed"

	"gorm.io/gorm"

	"example.com/shop/examples/booking/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/doctor"
)

func main() { app.Main(program(), &commands{}) }

// stamped is the version that the build sets with -ldflags "-X main.stamped=v1.2.3". It may be empty.
var stamped string

func program() app.Program {
	return app.Program{
		Name:        "booking",
		Description: "Book places of courses, and release those that are not confirmed by their deadline.",
		Version:     cmp.Or(stamped, app.ModuleVersion()),
	}
}

// commands is the command line. Every option is a flag and an environment variable.
type commands struct {
	Serve     serveCommand       `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand     `cmd:"" help:"Create or update the schema of the database."`
	Reconcile reconcileCommand   `cmd:"" help:"Compare the bookings with Redis once, repair the differences, and print the report."`
	Doctor    doctorCommand      `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Demo      demoCommand        `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL and Redis. Its data is deleted when it stops."`
	Health    app.HealthCommand  `cmd:"" help:"Check whether the process at an address is ready."`
	Version   app.VersionCommand `cmd:"" help:"Print the version."`
}

type serveCommand struct {
	app.Serve
	options
}

func (c *serveCommand) Run(ctx context.Context, program app.Program) error {
	if err := app.JoinErrors(c.Check(), c.check(c.Has(app.API))); err != nil {
		return app.Usage(err)
	}
	p, err := c.open(ctx, c.Config(program), app.NewLogger(program.Err, c.LogLevel, false))
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Serve(ctx, c.HTTPAddr)
}

//go:embed seed.sql
var seedSQL string

// migrateCommand is the command migrate. The migrations of the core create the outbox, the table of the reconciler's
// reports, and the tables of other programs in this module, if there are any, which stay empty.
type migrateCommand struct {
	Seed bool `name:"seed" help:"Add sample courses, unless they exist."`
	app.Migrate
}

func (c *migrateCommand) Run(ctx context.Context, program app.Program) error {
	return c.Migrate.Run(ctx, program, func(ctx context.Context, db *gorm.DB) error {
		if !c.Seed {
			return nil
		}
		return db.WithContext(ctx).Exec(seedSQL).Error
	}, migrations.Set)
}

type reconcileCommand struct{ app.Tool }

func (c *reconcileCommand) Run(ctx context.Context, program app.Program) error {
	return c.Sweep(ctx, program, new(options).open)
}

type doctorCommand struct{ doctor.Command }

func (c *doctorCommand) Run(ctx context.Context, program app.Program) error {
	return c.Command.Run(ctx, program, new(options).open)
}
