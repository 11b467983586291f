package main

import (
	"context"
	"errors"

	"example.com/shop/internal/cli"
	"example.com/shop/internal/option"
	"example.com/shop/internal/whereis"
)

// whereisCommand is `shop order`.
type whereisCommand struct {
	toolCommand
	ID string `arg:"" optional:"" name:"id" help:"The id of the order, or of something that refers to it, such as a checkout session."`
}

func (c *whereisCommand) Run(ctx context.Context, program cli.Program) error {
	if c.ID == "" {
		return option.Usage(errors.New("missing the id of an order: shop order ID"))
	}
	p, err := c.open(ctx, program)
	if err != nil {
		return err
	}
	defer p.Close()
	return whereis.New(p.DB, &p.Kinds, c.orders).Print(ctx, c.ID, program.Out)
}
