package main

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/programtest"
	"example.com/shop/migrations"
	paymentsmigrations "example.com/shop/payments/migrations"
)

func TestMain(m *testing.M) { programtest.Main(m, migrations.Up, paymentsmigrations.Set.Up) }

// secretsOfAPI are the secrets that a process with the role api must have.
var secretsOfAPI = []string{
	"--token-key=0123456789abcdef0123456789abcdef",
	"--ops-token=0123456789abcdef",
}

// validOptions returns options that check accepts, without a payment provider.
func validOptions() serveCommand {
	var c commands
	parser, err := app.NewParser(app.Program{Name: "shop", Out: io.Discard, Err: io.Discard}, &c)
	if err == nil {
		_, err = parser.Parse(append([]string{"serve"}, secretsOfAPI...))
	}
	if err != nil {
		panic(err)
	}
	o := c.Serve
	o.HTTPAddr, o.Drain = "127.0.0.1:8080", 0
	o.DatabaseURL, o.RedisURL = "postgres://shop@db/shop", "redis://cache:6379/0"
	return o
}

// withProvider sets the options of a process with payments. Nothing answers at the provider's URL.
func withProvider(o *serveCommand) {
	o.Payment.StripeURL, o.Payment.StripeKey = "http://127.0.0.1:1", "sk_test_1"
	o.Payment.WebhookSecret, o.PublicURL = "whsec_1", "https://shop.test"
	o.Payment.Deployment, o.Payment.AllowTestPayments = "test", true
}

// testApp is a process of the shop with payments.
type testApp struct {
	*app.Process
	store *order.Store
}

// openApp returns a process with the given options and configuration that logs to log.
func openApp(t *testing.T, o *serveCommand, config app.Config, log slog.Handler) *testApp {
	t.Helper()
	p, err := newShop(t.Context(), config, &o.Options, o.Payment, slog.New(log))
	testenv.Must(t, err)
	t.Cleanup(p.Close)
	return &testApp{p, order.NewStore(p.DB)}
}

// openAppWith returns a process with the given options.
func openAppWith(t *testing.T, o *serveCommand) *testApp {
	t.Helper()
	return openApp(t, o, o.Config(program()), slog.DiscardHandler)
}

// runCommand runs a command of the program, whose output it writes to out. It returns the exit code.
func runCommand(ctx context.Context, args []string, out io.Writer) int {
	p := program()
	p.Out, p.Err = out, out
	return app.ExitCode(app.Run(ctx, p, &commands{}, args), p)
}
