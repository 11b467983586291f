package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/app"
	"example.com/shop/internal/demo"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/stripesim"
)

// demoGrace and demoCheckout are short, so that an operator who stops the provider sees soon how the orders end.
const (
	demoGrace    = 30 * time.Second
	demoCheckout = 30 * time.Second
)

// demoPayments gives the demo a payment provider: a simulator within the process, with a database of its own.
var demoPayments = demoPart{
	set: func(o *serveCommand) {
		o.Payment.StripeURL = "http://private" // the simulator's, when it runs
		o.Payment.PaymentGrace = demoGrace
		o.Payment.CheckoutTime = demoCheckout
		o.Payment.StripeEndpointRate, o.Payment.StripeProcesses = 25, 1 // the defaults
		o.Order.PayAtOnce, o.Order.PayAtOnceQuiet = true, true
		o.Payment.Deployment, o.Payment.AllowTestPayments = "demo", true
	},
	open: openDemoProvider,
}

// demoProvider is the payment provider of the demo.
type demoProvider struct {
	*stripesim.Simulator
	ln  net.Listener
	log *slog.Logger
}

// openDemoProvider opens the simulator on a free port, with a database of its own in the shop's PostgreSQL, and sets the
// options with which the shop uses it. [demoProvider.run] serves it.
func openDemoProvider(ctx context.Context, d *demoRun) error {
	o := &d.options.Payment
	database, err := url.Parse(d.options.DatabaseURL)
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	database.Path = "/stripesim"
	p := &demoProvider{log: d.log}
	if p.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return fmt.Errorf("listen for the payment provider: %w", err)
	}
	d.closers = append(d.closers, func() { p.ln.Close() })
	o.StripeURL = "http://" + p.ln.Addr().String()
	o.StripeKey = "sk_test_" + rand.Text()
	o.WebhookSecret = "whsec_" + rand.Text()
	o.PublicURL = d.url
	p.Simulator, err = stripesim.Open(ctx, stripesim.Config{
		DatabaseURL: database.String(), Key: o.StripeKey, WebhookSecret: o.WebhookSecret,
		WebhookURL: d.url + "/webhooks/stripe", PublicURL: o.StripeURL, Log: d.log,
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, p.Close)
	d.adders = append(d.adders, p.addTo)
	d.welcome += fmt.Sprintf("  payments    %s (a simulator of Stripe within this process; its ledger is at /sim/ledger)\n", o.StripeURL)
	return nil
}

// addTo adds the simulator, its ledger and its faults to the process of the demo.
func (p *demoProvider) addTo(process *app.Process, f *demo.Faults) {
	process.Go("", p.run)
	process.Routes(p.routes)
	p.addFaults(f)
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
		totals, err := p.Totals(c.Request.Context())
		if err != nil {
			return err
		}
		answer := rest.List[providerMoney]{Items: []providerMoney{}}
		for _, t := range totals {
			answer.Items = append(answer.Items, providerMoney{strings.ToUpper(t.Currency), t.CapturedCents, t.RefundedCents})
		}
		c.JSON(http.StatusOK, answer)
		return nil
	}))
}

// addFaults adds the provider's faults and their state, by their names in the contract of the demo.
func (p *demoProvider) addFaults(f *demo.Faults) {
	for fault, api := range map[string]string{
		"provider-up": "up", "provider-down": "down", "provider-hung": "hung", "provider-loses-answers": "loses_answers",
	} {
		f.AddFault(fault, p.setKnob(func(k *stripesim.Knobs) { k.API = api }))
	}
	for _, webhooks := range []string{"normal", "lost", "doubled", "late", "reordered"} {
		f.AddFault("webhooks-"+webhooks, p.setKnob(func(k *stripesim.Knobs) { k.Webhooks = webhooks }))
	}
	f.AddState(func() map[string]any {
		knobs := p.Knobs()
		return map[string]any{
			"provider": knobs.API,      // up, down, hung, loses_answers or errors
			"webhooks": knobs.Webhooks, // normal, lost, doubled, late or reordered
		}
	})
}

// setKnob returns the fault that changes one knob of the simulator.
func (p *demoProvider) setKnob(change func(*stripesim.Knobs)) demo.Fault {
	return func(context.Context) error {
		knobs := p.Knobs()
		change(&knobs)
		return p.SetKnobs(knobs)
	}
}
