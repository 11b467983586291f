package main

import (
	"context"

	"example.com/shop/internal/app"
	"example.com/shop/internal/closesale"
	"example.com/shop/internal/erasure"
	"example.com/shop/internal/live"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/option"
	"example.com/shop/internal/order"
	"example.com/shop/internal/payment"
	"example.com/shop/internal/remind"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/trace"
	"example.com/shop/internal/whereis"
	"example.com/shop/web"
)

// A part is a feature that a team may leave out. This file adds the parts to the program. To leave one out, delete its
// package, its lines here, and what refers to it.

// partCommands are the commands of the parts.
type partCommands struct {
	Order    whereisCommand  `cmd:"" help:"Say where an order is, and what happens next with it."`
	Demo     demoCommand     `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL and Redis. Their data is deleted when it stops."`
	Payments paymentsCommand `cmd:"" help:"Commands of payments."`
	Provider providerCommand `cmd:"" help:"Run a simulator of the payment provider Stripe, for development and tests."`
}

// partOptions are the options of the parts of a process that serves.
type partOptions struct {
	customerOptions
	Order   order.Options   `embed:""`
	Payment payment.Options `embed:""`
	Ops     ops.Options     `embed:""`
}

// check returns one error that names all options with wrong values. api reports whether the process serves the API.
func (o *partOptions) check(api bool) error {
	errs := []error{
		o.Order.Check(),
		o.Payment.Check(api),
	}
	if api {
		errs = append(errs,
			o.customerOptions.check(),
			o.Ops.Check(o.TokenKey),
		)
	}
	return option.Join(errs...)
}

// partToolOptions are the options of the parts of a command that runs once.
type partToolOptions struct {
	Payment payment.ProviderOptions `embed:""`
}

func (o *partToolOptions) check() error {
	return option.Join(
		o.Payment.Check(),
	)
}

// serving returns the options of a process that serves no requests.
func (o *partToolOptions) serving() partOptions {
	return partOptions{
		Payment: payment.Options{ProviderOptions: o.Payment},
	}
}

// addParts adds the parts to a process, and returns the orders.
func addParts(p *app.Process, o *partOptions) *order.Service {
	customers := newCustomers(p, o.TokenKey)
	cancel := p.NewKind(order.CancelKind)
	payments := payment.New(p, o.Payment)
	hooks := payments.Hooks(order.Hooks{})
	hooks.Changed = live.Add(p, live.Config{Channel: "order:feed", TopicEvent: "order", BroadcastEvent: "products"}, customers)
	hooks.Placed = remind.Add(p, o.Order.OrderTimeout, hooks.Changed)
	hooks.Tracer = addTracer(p, hooks.Dependents)
	orders := order.Add(p, cancel, o.Order, customers, hooks)
	payments.Add(customers, orders)
	closesale.Add(p, orders)
	erasure.Add(p, orders)
	whereis.Add(p, orders)
	ops.Add(p, o.Ops)
	web.Add(p)
	return orders
}

// addTracer adds tracing, and returns the tracer of placements. What is done with an order links to the span that is stored
// with it.
func addTracer(p *app.Process, dependents []order.Dependent) order.Tracer {
	store := order.NewStore(p.DB)
	tracer, err := trace.Add(p, "shop", func(ctx context.Context, ids []string) ([][]byte, error) {
		return store.Spans(ctx, ids, dependents)
	})
	p.Require(err)
	return tracer
}

// customerOptions are the options of the customers' tokens.
type customerOptions struct {
	TokenKey     string `name:"token-key" placeholder:"SECRET" help:"The key that signs the customers' tokens, at least 32 bytes."`
	TokenKeyFile string `name:"token-key-file" placeholder:"FILE" help:"The file with the token key, instead of --token-key."`
}

func (o customerOptions) check() error {
	return option.Join(option.Require(map[string]string{"token-key": o.TokenKey}), option.CheckSecret("token-key", o.TokenKey, 32))
}

// newCustomers returns the tokens of customers. A process that does not serve the API needs none, and gets nil.
func newCustomers(p *app.Process, key string) *rest.Tokens {
	if !p.Has(app.API) {
		return nil
	}
	tokens, err := rest.NewTokens(tokenConfig(key))
	p.Require(err)
	return tokens
}

func tokenConfig(key string) rest.TokenConfig {
	return rest.TokenConfig{
		Key: []byte(key), Issuer: "shop", Audience: "shop-customers",
		Cookie: "shop_token", CookiePath: "/api", SignUp: "sign up with POST /api/customers",
	}
}
