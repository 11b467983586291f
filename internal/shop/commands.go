package shop

import (
	"context"
	"log/slog"

	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
)

// opener returns a function that opens a process with all parts.
func opener(o *Options, n Neighbour) app.Opener {
	return func(ctx context.Context, cfg app.Config, log *slog.Logger) (*app.Process, error) {
		s, err := Open(ctx, cfg, o, n, log)
		if err != nil {
			return nil, err
		}
		return s.Process, nil
	}
}

// Run is `serve`: it serves until ctx ends.
func (o *Serve) Run(ctx context.Context, program app.Program, n Neighbour) error {
	if err := o.Check(); err != nil {
		return app.Usage(err)
	}
	return o.Serve.Run(ctx, program, opener(&o.Options, n))
}

// Migrate has the options of `migrate`.
type Migrate struct {
	Seed bool `name:"seed" help:"Add sample products, unless they exist."`
	app.Migrate
}

// Run is `migrate`.
func (c *Migrate) Run(ctx context.Context, program app.Program, n Neighbour) error {
	return c.Migrate.Run(ctx, program, n.Migrations, func(ctx context.Context, db *gorm.DB) error {
		if !c.Seed {
			return nil
		}
		return order.NewStore(db).SeedProducts(ctx)
	})
}

// Tool has the options of a command that runs once, on the tables of all parts.
type Tool struct{ app.Tool }

// Open opens a process without a role.
func (c *Tool) Open(ctx context.Context, program app.Program, n Neighbour) (*Shop, error) {
	if err := c.Check(); err != nil {
		return nil, app.Usage(err)
	}
	return Open(ctx, c.Config(program), &Options{}, n, c.Logger(program))
}

// process returns a function that opens the process of the command.
func (c *Tool) process(n Neighbour) app.ToolOpener {
	return func(ctx context.Context, program app.Program) (*app.Process, error) {
		s, err := c.Open(ctx, program, n)
		if err != nil {
			return nil, err
		}
		return s.Process, nil
	}
}

// Reconcile is `reconcile`: it sweeps once, and prints the report.
func (c *Tool) Reconcile(ctx context.Context, program app.Program, n Neighbour) error {
	return app.Sweep(ctx, program, c.process(n))
}

// Doctor is `doctor`.
func (c *Tool) Doctor(ctx context.Context, program app.Program, o app.DoctorOptions, n Neighbour) error {
	return app.Doctor(ctx, program, c.process(n), &c.Tool, o)
}

// WhereIs is `order`: it prints where an order is. id is that of the order, or of something that refers to it.
func (c *Tool) WhereIs(ctx context.Context, program app.Program, id string, n Neighbour) error {
	s, err := c.Open(ctx, program, n)
	if err != nil {
		return err
	}
	defer s.Close()
	return ops.PrintWhere(ctx, s.Process, s.Orders.Where, id, program.Out)
}
