// Package payment has the payments of a shop at a payment provider: see [New]. It has what belongs to no single part:
// options, the HTTP API, the receiver of webhooks and the invariants.
//
// The parts are attempt, refund and books. They call the provider by package provider.
package payment

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/trace"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

//go:embed openapi.yaml
var contract []byte

// checkLease is the longest time for which a worker of package delay has a task: the timeout of its handler, 8 s, and
// the lease of 2.5 s, for whose end the task waits after the worker was killed. A check may be overdue for so long.
const checkLease = 10500 * time.Millisecond

// CheckPaid warns if customers of a process can pay for nothing. It returns an error if the process has no key of the
// provider, but customers have paid with a live one.
func (o Options) CheckPaid(ctx context.Context, b *app.Base) error {
	switch {
	case !b.Has(app.API):
		return nil
	case o.PayAtOnceQuiet:
	case o.StripeKey == "":
		b.Log.Warn("customers can pay orders at once, for nothing, because there is no payment provider: " +
			"set SHOP_STRIPE_KEY")
	case o.PayAtOnce:
		b.Log.Warn("customers can pay orders at once, for nothing: " +
			"unset SHOP_PAY_AT_ONCE unless this is a demo or a test")
	}
	if o.StripeKey == "" {
		return provider.CheckNotLive(ctx, b.DB)
	}
	return nil
}

// Payments are the payments of a process.
type Payments struct {
	Kinds app.Kinds // of the tasks that settle attempts, and of those that send refunds

	base     *app.Base
	provider *connection
	attempts *attempt.Service
	refunds  *refund.Service
	books    *books.Reconciliation
	webhooks *receiver
}

// New returns the payments of a process, whose options have a key of the provider. orders are its orders.
func New(
	ctx context.Context, b *app.Base, o Options, orders *order.Service, tracer *trace.Tracer,
) (*Payments, error) {
	connected, err := o.connect(ctx, b, tracer)
	if err != nil {
		return nil, err
	}
	refunds := refund.NewService(b.DB, connected.calls, orders, b.Log)
	attempts := attempt.NewService(b.DB, connected.calls, orders, attempt.Config{
		Grace: o.PaymentGrace, Checkout: o.CheckoutTime, Deployment: o.Deployment, Pages: b.PublicURL,
	}, b.Log, b.Metrics)
	settle, settleErr := newKind(b, attempt.Kind, attempts.Rows(), tracer)
	giveBack, returnErr := newKind(b, refund.Kind, refunds.Rows(), tracer)
	if err := errors.Join(settleErr, returnErr); err != nil {
		connected.close()
		return nil, err
	}
	live := provider.ModeOf(o.StripeKey) == "live"
	reconciliation := o.books(b, connected.calls)
	b.Metrics.MustRegister(&collector{b.DB, reconciliation})
	return &Payments{
		Kinds: app.Kinds{settle, giveBack},
		base:  b, provider: connected, attempts: attempts, refunds: refunds, books: reconciliation,
		webhooks: newReceiver(attempts, o.Deployment, live, o.WebhookSecret, b.Log, b.Metrics),
	}, nil
}

// Part is what payments add to a process, besides their kinds of task.
func (p *Payments) Part(customers *rest.Tokens) app.Part {
	db := p.base.DB
	return app.Part{
		Contract: [][]byte{contract},
		Routes: func(root, ops gin.IRouter) {
			customerRoutes(root, customers, p.attempts)
			root.POST(webhookPath, rest.Handle(p.webhooks.receive))
			state := func(ctx context.Context) (json.RawMessage, error) { return stats(ctx, db) }
			opsRoutes(ops, state, p.refunds, p.books)
		},
		Components: []app.Component{
			{Run: p.provider.guard.Run},
			{Role: app.Reconciler, Run: p.books.RunHourly},
		},
		Close: p.provider.close,
		Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
			return invariants(ctx, db, bound+checkLease, full)
		},
		Checks: append(provider.Checks(p.provider.calls, p.provider.guard, webhookPath), app.Check{
			Subject: "prices", Good: "the provider charges the price of each product",
			Run: func(ctx context.Context) error { return checkPrices(ctx, db) },
		}),
	}
}

// connection is a process's connection to the provider.
type connection struct {
	calls *provider.Calls // which the guard guards
	guard *provider.Guard
	close func()
}

// connect returns the connection of a process to the provider. It returns an error if the database has the payments of
// another deployment or mode.
func (o ProviderOptions) connect(ctx context.Context, b *app.Base, tracer *trace.Tracer) (*connection, error) {
	stripe := provider.NewStripe(o.StripeURL, o.StripeKey)
	guard := provider.NewGuard(b.DB, stripe, o.Deployment, provider.ModeOf(o.StripeKey), b.Log, b.Metrics)
	if err := guard.Start(ctx); err != nil {
		stripe.Close()
		return nil, err
	}
	guarded := provider.CallsConfig{Limits: o.limits(), MayWrite: guard.MayWrite, Trace: tracer.StartCall}
	return &connection{provider.NewCalls(stripe, guarded, b.Log, b.Metrics), guard, stripe.Close}, nil
}
