// Package payment adds payments at a payment provider to the shop: see [Add]. It has what belongs to no single part:
// options, the HTTP API, the receiver of webhooks and the invariants.
//
// The parts are attempt, refund and books. They call the provider by package provider.
package payment

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

//go:embed openapi.yaml
var contract []byte

// checkLease is the longest time for which a worker of package delay has a task: the timeout of its handler, 8 s, and
// the lease of 2.5 s, for whose end the task waits after the worker was killed. A check may be overdue for so long.
const checkLease = 10500 * time.Millisecond

// Add adds payments to a process, and changes how its orders are connected. It returns a function that adds what needs
// the orders. Without a key of the provider it adds nothing: nobody can pay there.
func Add(
	ctx context.Context, p *app.Process, o Options, hooks *order.Hooks,
) (finish func(*rest.Tokens, *order.Service) error, err error) {
	switch {
	case !p.Has(app.API) || o.PayAtOnceQuiet:
	case o.StripeKey == "":
		p.Log.Warn("customers can pay orders at once, for nothing, because there is no payment provider: " +
			"set SHOP_STRIPE_KEY")
	case o.PayAtOnce:
		p.Log.Warn("customers can pay orders at once, for nothing: " +
			"unset SHOP_PAY_AT_ONCE unless this is a demo or a test")
	}
	if o.StripeKey == "" {
		if p.Has(app.API) {
			if err := provider.CheckNotLive(ctx, p.DB); err != nil {
				return nil, err
			}
		}
		return func(*rest.Tokens, *order.Service) error { return nil }, nil
	}

	calls, owner, err := o.connect(ctx, p)
	if err != nil {
		return nil, err
	}
	settles, err := p.NewKind(attempt.Kind)
	if err != nil {
		return nil, err
	}
	returns, err := p.NewKind(refund.Kind)
	if err != nil {
		return nil, err
	}
	if !o.PayAtOnce {
		hooks.NoPayAtOnce = true
		hooks.NotChargeable = attempt.WhyNotChargeable
	}

	return func(customers *rest.Tokens, orders *order.Service) error {
		refunds := refund.NewService(p.DB, calls, orders, p.Log)
		attempts := attempt.NewService(p.DB, calls, orders, attempt.Config{
			Grace: o.PaymentGrace, Checkout: o.CheckoutTime,
			Deployment: o.Deployment, Pages: strings.TrimRight(o.PublicURL, "/"),
		}, p.Log, p.Metrics)
		smallBatches := delay.WorkerConfig{Batch: check.BatchSize}
		if err := errors.Join(
			settles.Handle(attempts.Rows(), smallBatches),
			returns.Handle(refunds.Rows(), smallBatches),
		); err != nil {
			return err
		}
		live := provider.ModeOf(o.StripeKey) == "live"
		webhooks := newReceiver(attempts, o.Deployment, live, o.WebhookSecret, p.Log, p.Metrics)
		reconciliation := o.books(p, calls)
		p.Metrics.MustRegister(&collector{p.DB, reconciliation})
		p.Add(app.Part{
			Contract: [][]byte{contract},
			Routes: func(root, ops gin.IRouter) {
				customerRoutes(root, customers, attempts)
				root.POST(webhookPath, rest.Handle(webhooks.receive))
				state := func(ctx context.Context) (json.RawMessage, error) { return stats(ctx, p.DB) }
				opsRoutes(ops, state, refunds, reconciliation)
			},
			Components: []app.Component{
				{Run: owner.Run},
				{Role: app.Reconciler, Run: reconciliation.RunHourly},
			},
			Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
				return invariants(ctx, p.DB, bound+checkLease, full)
			},
			Checks: []app.Check{provider.Check(calls, owner)},
		})
		return nil
	}, nil
}

// connect returns the guarded calls of a process to the provider, and their guard. It returns an error if the database
// has the payments of another deployment or mode.
func (o ProviderOptions) connect(ctx context.Context, p *app.Process) (*provider.Calls, *provider.Guard, error) {
	stripe := provider.NewStripe(o.StripeURL, o.StripeKey)
	p.Add(app.Part{Close: stripe.Close})
	guard := provider.NewGuard(p.DB, stripe, o.Deployment, provider.ModeOf(o.StripeKey), p.Log, p.Metrics)
	if err := guard.Start(ctx); err != nil {
		return nil, nil, err
	}
	guarded := provider.CallsConfig{Limits: o.limits(), MayWrite: guard.MayWrite, Trace: p.StartCall}
	return provider.NewCalls(stripe, guarded, p.Log, p.Metrics), guard, nil
}
