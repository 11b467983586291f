package shop

import (
	"context"
	"log/slog"

	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
)

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

// OpenTool returns a function that opens the process of a command that runs once. Such a command has no options of the
// parts.
func OpenTool(n Neighbour) app.Opener { return opener(new(Options), n) }

// Sweep is `reconcile`: it sweeps once, and prints the report.
type Sweep struct{ app.Tool }

// Run runs the command.
func (c *Sweep) Run(ctx context.Context, program app.Program, n Neighbour) error {
	return c.Sweep(ctx, program, OpenTool(n))
}

// Doctor is `doctor`.
type Doctor struct{ app.Doctor }

// Run runs the command.
func (c *Doctor) Run(ctx context.Context, program app.Program, n Neighbour) error {
	return c.Doctor.Run(ctx, program, OpenTool(n))
}
