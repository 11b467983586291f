package shop

import (
	"context"
	"log/slog"

	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/doctor"
	"example.com/shop/internal/order"
)

// Run is `serve`: it serves until ctx ends.
func (o *Serve) Run(ctx context.Context, program app.Program) error {
	if err := o.Check(); err != nil {
		return app.Usage(err)
	}
	p, err := New(ctx, o.Config(program), &o.Options, app.NewLogger(program.Err, o.LogLevel, false))
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Serve(ctx, o.HTTPAddr)
}

// Migrate has the options of `migrate`.
type Migrate struct {
	Seed bool `name:"seed" help:"Add sample products, unless they exist."`
	app.Migrate
}

// Run is `migrate`.
func (c *Migrate) Run(ctx context.Context, program app.Program) error {
	return c.Migrate.Run(ctx, program, c.Finish)
}

// Finish adds the sample products if the options say so.
func (c *Migrate) Finish(ctx context.Context, db *gorm.DB) error {
	if !c.Seed {
		return nil
	}
	return order.NewStore(db).SeedProducts(ctx)
}

// openTool opens the process of a command that runs once. Such a command has no options of the parts.
func openTool(ctx context.Context, cfg app.Config, log *slog.Logger) (*app.Process, error) {
	return New(ctx, cfg, new(Options), log)
}

// Sweep is `reconcile`: it sweeps once, and prints the report.
type Sweep struct{ app.Tool }

// Run runs the command.
func (c *Sweep) Run(ctx context.Context, program app.Program) error {
	return c.Sweep(ctx, program, openTool)
}

// Doctor is `doctor`.
type Doctor struct{ doctor.Command }

// Run runs the command.
func (c *Doctor) Run(ctx context.Context, program app.Program) error {
	return c.Command.Run(ctx, program, openTool)
}
