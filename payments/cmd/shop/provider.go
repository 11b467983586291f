package main

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/stripesim"
)

// providerCommand is `shop provider`.
type providerCommand struct {
	HTTPAddr                string `name:"http-addr" placeholder:"HOST:PORT" help:"The address to listen on."`
	PublicURL               string `name:"public-url" placeholder:"URL" help:"The address of the simulator as browsers see it. The default is http://127.0.0.1 and the port to listen on."`
	StripeKey               string `name:"stripe-key" placeholder:"SECRET" help:"The secret key of Stripe's API. The simulator accepts only this key."`
	StripeKeyFile           string `name:"stripe-key-file" placeholder:"FILE" help:"The file with the secret key, instead of --stripe-key."`
	StripeWebhookSecret     string `name:"stripe-webhook-secret" placeholder:"SECRET" help:"The secret that signs webhooks. Several secrets are separated by commas, and each of them signs."`
	StripeWebhookSecretFile string `name:"stripe-webhook-secret-file" placeholder:"FILE" help:"The file with the webhook secret, instead of --stripe-webhook-secret."`
	WebhookURL              string `name:"webhook-url" placeholder:"URL" help:"The address that the simulator sends webhooks to. Without it, it sends none."`

	app.Database
	app.Log
}

// check returns one error that names all options with wrong values.
func (c *providerCommand) check() error {
	return app.JoinErrors(
		app.RequireOptions(map[string]string{
			"http-addr": c.HTTPAddr, "database-url": c.DatabaseURL,
			"stripe-key": c.StripeKey, "stripe-webhook-secret": c.StripeWebhookSecret,
		}),
		c.Database.Check(), c.Log.Check(), payment.CheckURL("public-url", c.PublicURL),
		payment.CheckURL("webhook-url", c.WebhookURL),
		app.CheckHostPort("http-addr", c.HTTPAddr),
	)
}

func (c *providerCommand) Run(ctx context.Context, program app.Program) error {
	if err := c.check(); err != nil {
		return app.Usage(err)
	}
	log := app.NewLogger(program.Err, c.LogLevel, false)
	ln, err := app.Listen(c.HTTPAddr)
	if err != nil {
		return err
	}
	defer ln.Close()
	sim, err := stripesim.Open(ctx, stripesim.Config{
		DatabaseURL: c.DatabaseURL, DatabaseConns: c.DatabaseConns,
		Key: c.StripeKey, WebhookSecret: c.StripeWebhookSecret, WebhookURL: c.WebhookURL,
		PublicURL: cmp.Or(c.PublicURL, fmt.Sprintf("http://127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port)), Log: log,
	})
	if err != nil {
		return err
	}
	defer sim.Close()
	log.Info("serving", "component", "payment provider (simulated)",
		"addr", ln.Addr().String(), "version", program.Version)
	defer log.Info("stopped")
	components, ctx := errgroup.WithContext(ctx)
	components.Go(func() error { return sim.Run(ctx) })
	components.Go(func() error { return rest.Serve(ctx, ln, sim.Handler(), log) })
	return components.Wait()
}
