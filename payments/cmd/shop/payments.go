package main

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/trace"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/migrations"
)

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
	log := trace.Logger(app.NewLogger(program.Err, c.LogLevel, true))
	b, err := app.Connect(ctx, c.Config(program), log, migrations.Set)
	if err != nil {
		return err
	}
	defer b.Close()
	tracer, err := trace.New(b, "shop", order.NewStore(b.DB).Spans)
	if err != nil {
		return err
	}
	defer tracer.Close()
	return payment.ReadBooks(ctx, b, c.Payment, tracer, c.From, program.Out)
}
