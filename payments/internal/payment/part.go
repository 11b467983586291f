package payment

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// ProviderOptions are the options of every process that calls the payment provider. Without a key the process has no
// payments.
type ProviderOptions struct {
	LimitOptions
	StripeURL     string `name:"stripe-url" default:"https://api.stripe.com" help:"The URL of the payment provider's API: Stripe, or shop provider."`
	StripeKey     string `name:"stripe-key" placeholder:"SECRET" help:"The secret key of the payment provider's API. Without it customers cannot pay at a checkout."`
	StripeKeyFile string `name:"stripe-key-file" placeholder:"FILE" help:"The file with the provider's key, instead of --stripe-key."`

	DeploymentOptions
}

// Check returns one error that names all options with wrong values.
func (o ProviderOptions) Check() error {
	return app.JoinErrors(o.LimitOptions.Check(), o.DeploymentOptions.Check(o.StripeKey), CheckURL("stripe-url", o.StripeURL),
		app.RequireOptions(map[string]string{"stripe-url": o.StripeURL}))
}

// PayAtOnceOptions say whether customers can also pay an order at once. A customer who does that gets the goods for nothing.
type PayAtOnceOptions struct {
	PayAtOnce      bool `name:"pay-at-once" help:"Let customers pay an order at once and for nothing, although the service has a payment provider: for demos and tests."`
	PayAtOnceQuiet bool `kong:"-"` // logs no warning about PayAtOnce: for a demo, whose user has not set it
}

// Options are the options of payments of a process that serves.
type Options struct {
	ProviderOptions
	CheckoutOptions
	PayAtOnceOptions
	WebhookSecret     string        `name:"stripe-webhook-secret" placeholder:"SECRET" help:"The secret that signs the provider's webhooks. Several secrets are separated by commas, to replace one without a gap."`
	WebhookSecretFile string        `name:"stripe-webhook-secret-file" placeholder:"FILE" help:"The file with the webhook secret, instead of --stripe-webhook-secret."`
	PublicURL         string        `name:"public-url" placeholder:"URL" help:"The URL of the shop's pages, where browsers return to from the checkout."`
	PaymentGrace      time.Duration `name:"payment-grace" default:"2m" help:"The time after the closing of an open checkout begins in which the provider can still report a payment. Then the order is cancelled."`

	TestModeOptions
}

// Check returns one error that names all options with wrong values. api reports whether the process serves the API.
func (o Options) Check(api bool) error {
	errs := []error{
		o.ProviderOptions.Check(), o.CheckoutOptions.Check(), o.TestModeOptions.Check(o.StripeKey), CheckURL("public-url", o.PublicURL),
	}
	if o.PaymentGrace < time.Second || o.PaymentGrace > 24*time.Hour {
		errs = append(errs, fmt.Errorf("%s is %v, want 1s to 24h", app.OptionName("payment-grace"), o.PaymentGrace))
	}
	if o.StripeKey != "" && api {
		errs = append(errs, app.RequireOptions(map[string]string{"stripe-webhook-secret": o.WebhookSecret, "public-url": o.PublicURL}))
	}
	return app.JoinErrors(errs...)
}

// CheckURL accepts an absolute HTTP address, and no address.
func CheckURL(flag, address string) error {
	u, err := url.Parse(address)
	if address == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return nil
	}
	return fmt.Errorf("%s is %q, want an address like https://shop.example", app.OptionName(flag), address)
}

// webhookSecrets returns the secrets that verify webhooks.
func (o Options) webhookSecrets() (secrets []string) {
	for secret := range strings.SplitSeq(o.WebhookSecret, ",") {
		if secret = strings.TrimSpace(secret); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// checkLease is the longest time for which a worker of package delay has a task: the timeout of its handler, 8 s, and the
// lease of 2.5 s, for whose end the task waits after the worker was killed. So a check may be overdue for this time in
// addition to the bound of the invariants.
const checkLease = 10500 * time.Millisecond

// Payments are the payments of a process. Without a key of the provider nobody can pay there.
type Payments struct {
	process  *app.Process
	options  Options
	store    *Store
	provider *Stripe // nil: the options have no key

	settle, refund *app.Kind // nil without a provider
}

// New returns the payments of a process, whose kinds of task it adds. The service of orders needs [Payments.Hooks] first,
// and then [Payments.Add] adds what needs the orders.
func New(p *app.Process, o Options) (pay *Payments, err error) {
	pay = &Payments{process: p, options: o, store: NewStore(p.DB)}
	if p.Redis == nil {
		pay.store.WithoutTasks()
	}
	if o.StripeKey == "" {
		return pay, nil
	}
	pay.provider = NewStripe(StripeConfig{URL: o.StripeURL, Key: o.StripeKey})
	p.Add(app.Part{Close: pay.provider.Close})
	if pay.settle, err = p.NewKind(SettleKind); err != nil {
		return nil, err
	}
	if pay.refund, err = p.NewKind(RefundKind); err != nil {
		return nil, err
	}
	return pay, nil
}

// Hooks connects orders with the provider, if there is one. Every process needs [PaymentsOfOrders] besides, so that without a
// key, too, an order is removed together with its payments.
func (pay *Payments) Hooks(hooks order.Hooks) order.Hooks {
	if pay.provider != nil {
		hooks.HoldKind, hooks.HoldPublisher = SettleKind, pay.settle.Publisher
		hooks.PayAtOnce = pay.options.PayAtOnce
	}
	return hooks
}

// Add adds payments of orders to the process, if it has a provider.
func (pay *Payments) Add(ctx context.Context, customers *rest.Tokens, orders *order.Service) error {
	p, o, store := pay.process, pay.options, pay.store
	switch {
	case !p.Has(app.API) || o.PayAtOnceQuiet:
	case pay.provider == nil:
		p.Log.Warn("customers can pay orders at once, for nothing, because there is no payment provider: set SHOP_STRIPE_KEY")
	case o.PayAtOnce:
		p.Log.Warn("customers can pay orders at once, for nothing: unset SHOP_PAY_AT_ONCE unless this is a demo or a test")
	}
	if pay.provider == nil {
		return nil
	}
	owner := newGuard(p.DB, accountOf(pay.provider), o.Deployment, modeOf(o.StripeKey), p.Log, p.Metrics)
	if err := owner.start(ctx); err != nil {
		return err
	}
	calls := NewCalls(pay.provider, CallsConfig{
		Limits: o.limits(modeOf(o.StripeKey) == "live"), MayWrite: owner.mayWrite, Trace: p.StartCall,
	}, p.Log, p.Metrics)
	s := NewService(store, calls, Publishers{
		Cancel: orders.Publisher(), Settle: pay.settle.Publisher, Refund: pay.refund.Publisher,
	}, orders, Config{
		Grace: o.PaymentGrace, Checkout: o.CheckoutTime, Extension: orders.MaxExtension(),
		Deployment: o.Deployment, Mode: modeOf(o.StripeKey),
		WebhookSecrets: o.webhookSecrets(), Pages: strings.TrimRight(o.PublicURL, "/"),
	}, p.Log, p.Metrics)
	smallBatches := delay.WorkerConfig{Batch: BatchSize}
	if err := errors.Join(
		pay.settle.Handle(checkedRows(p.DB, pendingSQL, leftSQL, s.settle), smallBatches),
		pay.refund.Handle(checkedRows(p.DB, refundPendingSQL, refundLeftSQL, s.sendRefunds), smallBatches),
	); err != nil {
		return err
	}
	p.Metrics.MustRegister(NewCollector(store), newBooksCollector(store))
	books := NewReconciliation(store, calls, o.config(), p.Log, p.Metrics)
	p.Add(app.Part{
		Contract: [][]byte{contract},
		Routes: func(root, ops gin.IRouter) {
			s.Routes(root, customers)
			s.OpsRoutes(ops)
			books.OpsRoutes(ops)
		},
		Components: []app.Component{
			{Role: app.Reconciler, Run: books.RunHourly},
			{Role: app.Reconciler, Run: func(ctx context.Context) error { return runDeletions(ctx, p.DB, p.Log) }},
		},
		Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
			return store.Invariants(ctx, bound+checkLease, full)
		},
		Checks: checks(calls, owner, store),
	})
	return nil
}
