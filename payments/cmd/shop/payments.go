package main

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/shop"
	"example.com/shop/migrations"
	"example.com/shop/payments/internal/payment"
	paymentsmigrations "example.com/shop/payments/migrations"
	"example.com/shop/payments/web"
)

// payments returns what payments add to the service.
func payments(o payment.Options) shop.Neighbour {
	return shop.Neighbour{
		Migrations: []migrations.Set{paymentsmigrations.Set},
		Pages:      web.Pages,
		Add: func(ctx context.Context, p *app.Process, h *order.Hooks) (func(*shop.Shop) error, error) {
			finish, err := payment.Add(ctx, p, o, h)
			return func(s *shop.Shop) error { return finish(s.Customers, s.Orders) }, err
		},
	}
}

// paymentsCommand is `shop payments`.
type paymentsCommand struct {
	Reconcile paymentsReconcileCommand `cmd:"" help:"Read the payment provider's books, compare them with the tables once, and print the report."`
}

// paymentsReconcileCommand is `shop payments reconcile`.
type paymentsReconcileCommand struct {
	app.Tool
	providerOptions
	From time.Time `name:"from" placeholder:"TIME" help:"Read the books again from this time, for example 2026-01-31T00:00:00Z. By default they are read from where the last report ended."`
}

func (c *paymentsReconcileCommand) Run(ctx context.Context, program app.Program) error {
	var missing error
	if c.Payment.StripeKey == "" {
		missing = fmt.Errorf("there is no payment provider: set %s", app.OptionName("stripe-key"))
	}
	if err := app.JoinErrors(missing, c.Check(), c.Payment.Check()); err != nil {
		return app.Usage(err)
	}
	n := payments(payment.Options{})
	n.Add = nil // ReadBooks makes the only calls
	p, err := c.Open(ctx, program, shop.OpenTool(n))
	if err != nil {
		return err
	}
	defer p.Close()
	return payment.ReadBooks(ctx, p, c.Payment, c.From, program.Out)
}
