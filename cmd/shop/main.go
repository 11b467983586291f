// Command shop takes orders that must be paid by a deadline. It cancels an order that is not paid in time, and releases
// its stock.
//
// The file parts.go is the table of contents: it lists the parts that the program is made of.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/cli"
	"example.com/shop/internal/option"
	"example.com/shop/internal/order"
)

// gcPercent makes Go's garbage collector run less often than by default, unless the variable GOGC is set. The service
// has little memory in use and makes much garbage, so it would run many times a second. In a load test it took a sixth of
// the processor time, and now the process needs some 20 MB more.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	cli.Main(program(), &commands{})
}

func program() cli.Program {
	return cli.Program{
		Name:        "shop",
		Description: "Take orders, cancel those that are not paid by their deadline, and release their stock.",
		Version:     version(),
	}
}

// stamped is the version that the build sets with -ldflags "-X main.stamped=v1.2.3". It may be empty.
var stamped string

// version returns the version that the build set, or else the version of the module, or "(devel)".
func version() string {
	if stamped != "" {
		return stamped
	}
	return cli.ModuleVersion()
}

// commands is the command line. Every option is a flag and an environment variable. docs/configuration.md lists the
// options, and a test compares its table with them.
//
// A secret, or an address that may contain a password, has two options: the value itself, and the name of a file with
// the value. See [option.ReadSecrets]. A command checks its options when it runs, because the files are read after the
// command line is parsed.
type commands struct {
	Serve     serveCommand      `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand    `cmd:"" help:"Create or update the schema of the database."`
	Reconcile reconcileCommand  `cmd:"" help:"Compare the orders with Redis once, repair the differences, and print the report."`
	Export    exportCommand     `cmd:"" help:"Write the old orders that --keep would remove, one JSON object a line."`
	Doctor    doctorCommand     `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Health    cli.HealthCommand `cmd:"" help:"Check whether the process at an address is ready."`

	partCommands

	Version cli.VersionCommand `cmd:"" help:"Print the version."`
}

// serveCommand is `shop serve`.
type serveCommand struct {
	cli.Serve
	partOptions
}

func (c *serveCommand) check() error {
	return option.Join(c.Check(), c.partOptions.check(c.Has(app.API)))
}

func (c *serveCommand) Run(ctx context.Context, program cli.Program) error {
	if err := c.check(); err != nil {
		return option.Usage(err)
	}
	return c.Serve.Run(ctx, program, func(p *app.Process) { addParts(p, &c.partOptions) })
}

// migrateCommand is `shop migrate`.
type migrateCommand struct {
	Seed bool `name:"seed" help:"Add sample products, unless they exist."`
	cli.Migrate
}

func (c *migrateCommand) Run(ctx context.Context, program cli.Program) error {
	return c.Migrate.Run(ctx, program, func(ctx context.Context, db *gorm.DB) error {
		if !c.Seed {
			return nil
		}
		return order.NewStore(db).SeedProducts(ctx)
	})
}

// toolCommand is a command that runs once, on the tables of all parts.
type toolCommand struct {
	cli.Tool
	partToolOptions
	orders *order.Service // set by open
}

func (c *toolCommand) open(ctx context.Context, program cli.Program) (*app.Process, error) {
	if err := option.Join(c.Check(), c.check()); err != nil {
		return nil, option.Usage(err)
	}
	o := c.serving()
	return c.Open(ctx, program, func(p *app.Process) { c.orders = addParts(p, &o) })
}

// reconcileCommand is `shop reconcile`.
type reconcileCommand struct{ toolCommand }

func (c *reconcileCommand) Run(ctx context.Context, program cli.Program) error {
	return cli.Sweep(ctx, program, c.open)
}

// exportCommand is `shop export`.
type exportCommand struct {
	toolCommand
	order.ExportOptions
}

func (c *exportCommand) Run(ctx context.Context, program cli.Program) error {
	if err := c.Check(); err != nil {
		return option.Usage(err)
	}
	p, err := c.open(ctx, program)
	if err != nil {
		return err
	}
	defer p.Close()
	return c.orders.RunExport(ctx, c.ExportOptions, program.Out, program.Err)
}

// doctorCommand is `shop doctor`.
type doctorCommand struct {
	toolCommand
	cli.DoctorOptions
}

func (c *doctorCommand) Run(ctx context.Context, program cli.Program) error {
	return cli.Doctor(ctx, program, c.open, &c.Tool, c.DoctorOptions)
}
