// Package shop builds the service from its parts. The method build of [Shop] is the table of contents.
package shop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"example.com/shop/internal/app"
	"example.com/shop/internal/live"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/remind"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/trace"
	"example.com/shop/migrations"
	"example.com/shop/web"
)

// Shop is a process with all parts of the service.
type Shop struct {
	*app.Process
	Customers *rest.Tokens // nil: the process does not serve the API
	Orders    *order.Service
}

// Neighbour is what another module adds to the service. Each field may be nil.
type Neighbour struct {
	// Migrations are the sets of its modules, in their order. The core's set comes before them.
	Migrations []migrations.Set
	// Pages are what the module adds to the pages.
	Pages []web.Extension
	// Add adds the module to a process, and sets the hooks with which the orders call it. It returns a function that
	// adds what needs the orders.
	Add func(ctx context.Context, p *app.Process, h *order.Hooks) (finish func(*Shop) error, err error)
}

// Open connects a process to its servers, and adds all parts to it.
func Open(ctx context.Context, cfg app.Config, o *Options, n Neighbour, log *slog.Logger) (*Shop, error) {
	cfg.Migrations, cfg.SessionSettings = n.Migrations, postgres.IndexPlans
	connections, err := app.Connect(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	var tracer *trace.Tracer
	if err = checkModules(ctx, connections, cfg, log); err == nil {
		tracer, err = trace.New(connections, "shop", order.NewStore(connections.DB).Spans, log)
	}
	if err != nil {
		connections.Close()
		return nil, err
	}
	var hooks order.Hooks
	if tracer != nil {
		hooks.Tracer, cfg.Tracer = tracer, tracer
		log = trace.Logger(log)
	}
	cfg.OpsGuard = o.Ops.Guard()
	s := &Shop{Process: app.New(connections, cfg, log)}
	if tracer != nil {
		s.Add(app.Part{Close: tracer.Close})
	}
	if err := s.build(ctx, o, n, hooks); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Shop) build(ctx context.Context, o *Options, n Neighbour, hooks order.Hooks) (err error) {
	p := s.Process
	if p.Has(app.API) {
		if s.Customers, err = NewTokens(o.TokenKey); err != nil {
			return app.Usage(err)
		}
	}
	hooks.Changed = live.Add(p, live.Names{Channel: "order:feed", Row: "order", Broadcast: "products"}, s.Customers)
	hooks.Placed, err = remind.Add(p, remind.Config{
		Kind: remindKind, Timeout: o.Order.OrderTimeout, Statement: remindSQL, Notify: hooks.Changed,
	})
	if err != nil {
		return err
	}
	cancel, err := p.NewKind(order.CancelKind)
	if err != nil {
		return err
	}
	finish := func(*Shop) error { return nil }
	if n.Add != nil {
		if finish, err = n.Add(ctx, p, &hooks); err != nil {
			return err
		}
	}
	if s.Orders, err = order.Add(p, cancel, o.Order, s.Customers, hooks); err != nil {
		return err
	}
	ops.Add(p, cancel, s.Orders.Where)
	if err := web.Add(p, n.Pages...); err != nil {
		return err
	}
	return finish(s)
}

// checkModules returns an error if a process with these roles must not use the database, because the database has the
// schema of a module that the program lacks. Orders may have to be paid in that module, and an API without the module
// would give goods away. The other roles may use the database, because they treat orders as in every program.
func checkModules(ctx context.Context, c *app.Connections, cfg app.Config, log *slog.Logger) error {
	others, err := migrations.OtherModules(ctx, c.Pool, cfg.Migrations...)
	if err != nil || len(others) == 0 {
		return err
	}
	modules := strings.Join(others, " and ")
	if slices.Contains(cfg.Roles, app.API) {
		return fmt.Errorf("the database has the schema of %[1]s, which this program lacks: with the role api it would "+
			"let customers pay orders at once that must be paid elsewhere: run the program that has %[1]s, or set "+
			"%[2]s to another database", modules, app.OptionName("database-url"))
	}
	log.Warn("the database has the schema of a module that this program lacks; "+
		"its tables and tasks are left to the program that has it", "module", modules)
	return nil
}
