package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/app"
	"example.com/shop/internal/demo"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/shop"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/migrations"
	"example.com/shop/payments/stripesim"
)

// demoGrace and demoCheckout are short, so that an operator who stops the provider sees soon how the orders end.
const (
	demoGrace    = 30 * time.Second
	demoCheckout = 30 * time.Second
)

// demoContract is the piece of the contract about the demo's provider.
//
//go:embed demo_openapi.yaml
var demoContract []byte

// demoCommand is `shop demo`.
type demoCommand struct{ shop.Demo }

func (c *demoCommand) Run(ctx context.Context, program app.Program) error {
	return c.Start(ctx, program, func(ctx context.Context, r *shop.DemoRun) error {
		p, pay, err := openDemoProvider(ctx, r)
		if err != nil {
			return err
		}
		defer p.close()
		r.Options.PublicURL = r.URL
		if err := app.MigrateUp(ctx, r.Options.DatabaseURL, io.Discard, migrations.Set); err != nil {
			return err
		}
		faults := demo.Part(r.Servers.Redis, p.faults(), r.Log)
		process, err := newShop(ctx, r.Options.Config(program), &r.Options.Options, pay, r.Log, p.part(), faults)
		if err != nil {
			return err
		}
		defer process.Close()
		return r.Serve(ctx, process, fmt.Sprintf("  payments    %s (a simulator of Stripe within this process; "+
			"its ledger is at /sim/ledger)\n", pay.StripeURL))
	})
}

// demoProvider is the payment provider of the demo.
type demoProvider struct {
	*stripesim.Simulator
	ln  net.Listener
	log *slog.Logger
}

// openDemoProvider opens the simulator on a free port, with a database of its own in the shop's PostgreSQL, and returns
// the options of payments that use it. The simulator runs within the process of the demo.
func openDemoProvider(ctx context.Context, r *shop.DemoRun) (p *demoProvider, o payment.Options, err error) {
	database, err := url.Parse(r.Options.DatabaseURL)
	if err != nil {
		return nil, o, fmt.Errorf("database URL: %w", err)
	}
	database.Path = "/stripesim"
	p = &demoProvider{log: r.Log}
	if p.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, o, fmt.Errorf("listen for the payment provider: %w", err)
	}
	o = payment.Options{WebhookSecret: "whsec_" + rand.Text(), PaymentGrace: demoGrace}
	o.CheckoutTime = demoCheckout
	o.StripeURL, o.StripeKey = "http://"+p.ln.Addr().String(), "sk_test_"+rand.Text()
	o.StripeEndpointRate, o.StripeProcesses = 25, 1 // the defaults
	o.Deployment, o.AllowTestPayments = "demo", true
	o.PayAtOnce, o.PayAtOnceQuiet = true, true
	p.Simulator, err = stripesim.Open(ctx, stripesim.Config{
		DatabaseURL: database.String(), Key: o.StripeKey, WebhookSecret: o.WebhookSecret,
		WebhookURL: r.URL + "/webhooks/stripe", PublicURL: o.StripeURL, Log: r.Log,
	})
	if err != nil {
		p.ln.Close()
		return nil, o, err
	}
	return p, o, nil
}

func (p *demoProvider) close() {
	p.Close()
	p.ln.Close()
}

// part is what the provider adds to the process of the demo.
func (p *demoProvider) part() app.Part {
	return app.Part{Contract: [][]byte{demoContract}, Routes: p.routes, Components: []app.Component{{Run: p.run}}}
}

// run serves the simulator until ctx ends.
func (p *demoProvider) run(ctx context.Context) error {
	components, ctx := errgroup.WithContext(ctx)
	components.Go(func() error { return p.Run(ctx) })
	components.Go(func() error { return rest.Serve(ctx, p.ln, p.Handler(), p.log) })
	return components.Wait()
}

// providerMoney is the money of one currency in the provider's ledger.
type providerMoney struct {
	Currency      string `json:"currency"`
	CapturedCents int64  `json:"captured_cents"`
	ReturnedCents int64  `json:"returned_cents"`
}

// routes adds the provider's ledger to the operators' API, so that their page can compare it with the shop's.
func (p *demoProvider) routes(_, ops gin.IRouter) {
	ops.Match(rest.ReadMethods, "/provider-ledger", rest.Parameters(), rest.Handle(func(c *gin.Context) error {
		ledger, err := p.Ledger(c.Request.Context())
		if err != nil {
			return err
		}
		c.JSON(http.StatusOK, rest.List[providerMoney]{Items: sumLedger(ledger)})
		return nil
	}))
}

// sumLedger returns the money of each currency in which customers have paid, sorted by currency.
func sumLedger(ledger []stripesim.Payment) []providerMoney {
	byCurrency := map[string]providerMoney{}
	for _, p := range ledger {
		if p.CapturedCents == 0 {
			continue
		}
		sum := byCurrency[p.Currency]
		sum.Currency = strings.ToUpper(p.Currency)
		sum.CapturedCents += p.CapturedCents
		sum.ReturnedCents += p.RefundedCents
		byCurrency[p.Currency] = sum
	}
	sums := []providerMoney{} // in JSON a list, also without a currency
	for _, currency := range slices.Sorted(maps.Keys(byCurrency)) {
		sums = append(sums, byCurrency[currency])
	}
	return sums
}

// faults returns the provider's faults and their state, by their names in the contract.
func (p *demoProvider) faults() demo.More {
	faults := map[string]demo.Action{}
	for fault, api := range map[string]string{
		"provider-up": "up", "provider-down": "down", "provider-hung": "hung",
		"provider-loses-answers": "loses_answers",
	} {
		faults[fault] = p.setKnob(func(k *stripesim.Knobs) { k.API = api })
	}
	for _, webhooks := range []string{"normal", "lost", "doubled", "late", "reordered"} {
		faults["webhooks-"+webhooks] = p.setKnob(func(k *stripesim.Knobs) { k.Webhooks = webhooks })
	}
	return demo.More{Faults: faults, State: func() map[string]any {
		knobs := p.Knobs()
		return map[string]any{
			"provider": knobs.API,      // up, down, hung, loses_answers or errors
			"webhooks": knobs.Webhooks, // normal, lost, doubled, late or reordered
		}
	}}
}

// setKnob returns the fault that changes one knob of the simulator.
func (p *demoProvider) setKnob(change func(*stripesim.Knobs)) demo.Action {
	return func(context.Context) error {
		knobs := p.Knobs()
		change(&knobs)
		return p.SetKnobs(knobs)
	}
}
