package main

import (
	"context"
	"fmt"
	"net"
	"net/url"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/stripesim"
)

// providerCommand is `shop provider`.
type providerCommand struct {
	HTTPAddr                string `name:"http-addr" env:"SHOP_HTTP_ADDR" placeholder:"HOST:PORT" help:"The address to listen on."`
	PublicURL               string `name:"public-url" env:"SHOP_PUBLIC_URL" placeholder:"URL" help:"The address of the simulator as browsers see it. The default is http:// and the address to listen on."`
	StripeKey               string `name:"stripe-key" env:"SHOP_STRIPE_KEY" placeholder:"SECRET" help:"The secret key of Stripe's API. The simulator accepts only this key."`
	StripeKeyFile           string `name:"stripe-key-file" env:"SHOP_STRIPE_KEY_FILE" placeholder:"FILE" help:"The file with the secret key, instead of --stripe-key."`
	StripeWebhookSecret     string `name:"stripe-webhook-secret" env:"SHOP_STRIPE_WEBHOOK_SECRET" placeholder:"SECRET" help:"The secret that signs webhooks. Several secrets are separated by commas, and each of them signs."`
	StripeWebhookSecretFile string `name:"stripe-webhook-secret-file" env:"SHOP_STRIPE_WEBHOOK_SECRET_FILE" placeholder:"FILE" help:"The file with the webhook secret, instead of --stripe-webhook-secret."`
	WebhookURL              string `name:"webhook-url" env:"SHOP_WEBHOOK_URL" placeholder:"URL" help:"The address that the simulator sends webhooks to. Without it, it sends none."`

	databaseOptions
	logOptions
}

// validate returns one error that contains all errors of the options.
func (c *providerCommand) validate() error {
	errs := []error{requireAll(map[string]string{
		"http-addr": c.HTTPAddr, "database-url": c.DatabaseURL, "stripe-key": c.StripeKey, "stripe-webhook-secret": c.StripeWebhookSecret,
	}), c.databaseOptions.validate(), checkURL("public-url", c.PublicURL), checkURL("webhook-url", c.WebhookURL)}
	if _, _, err := net.SplitHostPort(c.HTTPAddr); c.HTTPAddr != "" && err != nil {
		errs = append(errs, fmt.Errorf("%s is not of the form host:port: %w", optionName("http-addr"), err))
	}
	return oneLine(errs...)
}

// checkURL accepts an absolute HTTP address, and no address.
func checkURL(flag, address string) error {
	u, err := url.Parse(address)
	if address == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return nil
	}
	return fmt.Errorf("%s is %q, want an address like https://shop.example", optionName(flag), address)
}

func (c *providerCommand) Run(ctx context.Context, to streams) error {
	if err := c.validate(); err != nil {
		return usageError{err}
	}
	log := newLogger(to.err, c.LogLevel, false)
	sim, err := stripesim.Open(ctx, stripesim.Config{
		DatabaseURL: c.DatabaseURL, DatabaseConns: c.DatabaseConns, Key: c.StripeKey, WebhookSecret: c.StripeWebhookSecret,
		WebhookURL: c.WebhookURL, PublicURL: c.PublicURL, Log: log,
	})
	if err != nil {
		return err
	}
	defer sim.Close()
	ln, err := net.Listen("tcp", c.HTTPAddr)
	if err != nil {
		return fmt.Errorf("listen on SHOP_HTTP_ADDR: %w", err)
	}
	if c.PublicURL == "" {
		sim.SetPublicURL("http://" + reachable(ln.Addr()))
	}
	log.Info("serving", "component", "payment provider (simulated)", "addr", ln.Addr().String(), "version", version())
	defer log.Info("stopped")
	components, ctx := errgroup.WithContext(ctx)
	components.Go(func() error { return sim.Run(ctx) })
	components.Go(func() error { return rest.Serve(ctx, ln, sim.Handler(), log) })
	return components.Wait()
}

// reachable returns an address at which this machine reaches a listener. A listener on all addresses is reachable as
// localhost.
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
