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

	"example.com/shop/internal/rest"
	"example.com/shop/internal/stripesim"
)

// demoGrace is short, so that an operator who stops the provider sees soon how the orders end.
const demoGrace = 30 * time.Second

// demoPayments is the payment provider of the demo: a simulator within the process, with a database of its own.
type demoPayments struct {
	*stripesim.Simulator
	ln  net.Listener
	log *slog.Logger
}

// start opens the simulator with a database of its own in the shop's PostgreSQL.
func (p *demoPayments) start(ctx context.Context, o *serveOptions, shopURL string, log *slog.Logger) error {
	database, err := url.Parse(o.DatabaseURL)
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	database.Path = "/stripesim"
	return p.open(ctx, o, database.String(), shopURL, log)
}

// open opens the simulator on a free port, and sets the options with which the shop uses it. [demoPayments.run] serves
// it.
func (p *demoPayments) open(ctx context.Context, o *serveOptions, databaseURL, shopURL string, log *slog.Logger) (err error) {
	p.log = log
	if p.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return fmt.Errorf("listen for the payment provider: %w", err)
	}
	o.StripeURL = "http://" + p.ln.Addr().String()
	o.StripeKey = "sk_test_" + rand.Text()
	o.WebhookSecret = "whsec_" + rand.Text()
	o.PublicURL = shopURL
	o.PaymentGrace = demoGrace
	p.Simulator, err = stripesim.Open(ctx, stripesim.Config{
		DatabaseURL: databaseURL, Key: o.StripeKey, WebhookSecret: o.WebhookSecret,
		WebhookURL: shopURL + "/webhooks/stripe", PublicURL: o.StripeURL, Log: log,
	})
	if err != nil {
		p.ln.Close()
	}
	return err
}

// run serves the simulator until ctx ends.
func (p *demoPayments) run(ctx context.Context) error {
	components, ctx := errgroup.WithContext(ctx)
	components.Go(func() error { return p.Run(ctx) })
	components.Go(func() error { return rest.Serve(ctx, p.ln, p.Handler(), p.log) })
	return components.Wait()
}

func (p *demoPayments) close() {
	p.ln.Close()
	p.Close()
}

func paymentsWelcome(o *serveOptions) string {
	return fmt.Sprintf("  payments    %s (a simulator of Stripe within this process; its ledger is at /sim/ledger)\n", o.StripeURL)
}

// providerMoney is the money of one currency in the provider's ledger.
type providerMoney struct {
	Currency      string `json:"currency"`
	CapturedCents int64  `json:"captured_cents"`
	ReturnedCents int64  `json:"returned_cents"`
}

// routes adds the provider's ledger to the operators' API, so that their page can compare it with the shop's.
func (p *demoPayments) routes(ops gin.IRouter) {
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

// paymentFaultState is the part of [faultState] about the payment provider.
type paymentFaultState struct {
	Provider string `json:"provider"` // up, down, hung, loses_answers or errors
	Webhooks string `json:"webhooks"` // normal, lost, doubled, late or reordered
}

func (p *demoPayments) faultState() *paymentFaultState {
	knobs := p.Knobs()
	return &paymentFaultState{knobs.API, knobs.Webhooks}
}

// addFaults adds the provider's faults by their names in demo.openapi.yaml.
func (p *demoPayments) addFaults(known map[string]func(context.Context) error) {
	for fault, api := range map[string]string{
		"provider-up": "up", "provider-down": "down", "provider-hung": "hung", "provider-loses-answers": "loses_answers",
	} {
		known[fault] = p.setKnob(func(k *stripesim.Knobs) { k.API = api })
	}
	for _, webhooks := range []string{"normal", "lost", "doubled", "late", "reordered"} {
		known["webhooks-"+webhooks] = p.setKnob(func(k *stripesim.Knobs) { k.Webhooks = webhooks })
	}
}

// setKnob returns the fault that changes one knob of the simulator.
func (p *demoPayments) setKnob(change func(*stripesim.Knobs)) func(context.Context) error {
	return func(context.Context) error {
		knobs := p.Knobs()
		change(&knobs)
		return p.SetKnobs(knobs)
	}
}
