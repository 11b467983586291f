package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/payment"
	"example.com/shop/internal/rest"
)

// This file, demo_payments.go and provider.go hold the parts of the command that know payments. In the other files,
// scripts/without-payments deletes each line that mentions payments or Stripe, and the block that such a line begins.

// paymentProviderOptions are the options of every process that talks to the payment provider. Without a key the shop has no
// payments.
type paymentProviderOptions struct {
	StripeURL     string `name:"stripe-url" env:"SHOP_STRIPE_URL" default:"https://api.stripe.com" help:"The URL of the payment provider's API: Stripe, or shop provider."`
	StripeKey     string `name:"stripe-key" env:"SHOP_STRIPE_KEY" placeholder:"SECRET" help:"The secret key of the payment provider's API. Without it customers cannot pay at a checkout."`
	StripeKeyFile string `name:"stripe-key-file" env:"SHOP_STRIPE_KEY_FILE" placeholder:"FILE" help:"The file with the provider's key, instead of --stripe-key."`
}

func (o *paymentProviderOptions) validate() error {
	return oneLine(checkURL("stripe-url", o.StripeURL), requireAll(map[string]string{"stripe-url": o.StripeURL}))
}

// paymentOptions are the options of payments of a process that serves.
type paymentOptions struct {
	paymentProviderOptions
	WebhookSecret     string        `name:"stripe-webhook-secret" env:"SHOP_STRIPE_WEBHOOK_SECRET" placeholder:"SECRET" help:"The secret that signs the provider's webhooks. Several secrets are separated by commas, to replace one without a gap."`
	WebhookSecretFile string        `name:"stripe-webhook-secret-file" env:"SHOP_STRIPE_WEBHOOK_SECRET_FILE" placeholder:"FILE" help:"The file with the webhook secret, instead of --stripe-webhook-secret."`
	PublicURL         string        `name:"public-url" env:"SHOP_PUBLIC_URL" placeholder:"URL" help:"The URL of the shop's pages, where browsers return to from the checkout."`
	PaymentGrace      time.Duration `name:"payment-grace" env:"SHOP_PAYMENT_GRACE" default:"2m" help:"The time after an order's deadline in which a checkout that is open can still end with a payment. Then the order is cancelled."`
}

func (o *paymentOptions) validate(api bool) error {
	errs := []error{o.paymentProviderOptions.validate(), checkURL("public-url", o.PublicURL)}
	if o.PaymentGrace < time.Second || o.PaymentGrace > 24*time.Hour {
		errs = append(errs, fmt.Errorf("%s is %v, want 1s to 24h", optionName("payment-grace"), o.PaymentGrace))
	}
	if o.StripeKey != "" && api {
		errs = append(errs, requireAll(map[string]string{"stripe-webhook-secret": o.WebhookSecret, "public-url": o.PublicURL}))
	}
	return oneLine(errs...)
}

// webhookSecrets returns the secrets that verify webhooks.
func (o *paymentOptions) webhookSecrets() (secrets []string) {
	for secret := range strings.SplitSeq(o.WebhookSecret, ",") {
		if secret = strings.TrimSpace(secret); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// payments holds the components of payments.
type payments struct {
	*payment.Service
	store          *payment.Store
	provider       *payment.Provider
	settle, refund *kind
}

// buildPayments builds the components of payments, unless the process has no key of a provider. It returns what orders
// must know about being held.
func (a *app) buildPayments(gdb *gorm.DB, o *serveOptions, cancel *delay.Publisher) (held order.HeldConfig, err error) {
	if o.StripeKey == "" {
		return order.HeldConfig{}, nil
	}
	p := &payments{store: payment.NewStore(gdb), provider: payment.NewProvider(
		payment.ProviderConfig{URL: o.StripeURL, Key: o.StripeKey, PublicURL: strings.TrimRight(o.PublicURL, "/")}, a.log)}
	if p.settle, err = a.newKind(payment.SettleKind, o); err != nil {
		return order.HeldConfig{}, err
	}
	if p.refund, err = a.newKind(payment.RefundKind, o); err != nil {
		return order.HeldConfig{}, err
	}
	p.Service = payment.NewService(p.store, p.provider,
		payment.Publishers{Cancel: cancel, Settle: p.settle.publisher, Refund: p.refund.publisher}, a.notifier,
		payment.Config{Grace: o.PaymentGrace, WebhookSecrets: o.webhookSecrets()}, a.log, a.metrics)
	a.metrics.MustRegister(payment.NewCollector(p.store))
	a.payments = p
	return order.HeldConfig{Kind: payment.SettleKind, Publisher: p.settle.publisher}, nil
}

// addPayments adds the kinds of task of payments. Their batches are small, because each task waits for the provider.
func (a *app) addPayments(o *serveOptions, workerDrain time.Duration) error {
	if a.payments == nil {
		return nil
	}
	small := delay.WorkerConfig{Batch: payment.BatchSize}
	err := a.addKind(a.payments.settle, o, workerDrain,
		domain{handle: a.payments.Settle, worker: small, table: a.payments.Attempts()})
	if err != nil {
		return err
	}
	return a.addKind(a.payments.refund, o, workerDrain,
		domain{handle: a.payments.SendRefunds, worker: small, table: a.payments.Refunds()})
}

// paymentRoutes adds the paths of payments, if the process has payments.
func (a *app) paymentRoutes(root, ops gin.IRouter, tokens *rest.Tokens) {
	if a.payments != nil {
		a.payments.Routes(root, tokens)
		a.payments.OpsRoutes(ops)
	}
}

// checkLease is how long a check may wait for the lease of a killed worker.
const checkLease = 10 * time.Second

// addPaymentViolations appends the violations of the invariants of payments to those of orders.
func (a *app) addPaymentViolations(ctx context.Context, orders []order.Violation, err error) ([]order.Violation, error) {
	if err != nil || a.payments == nil {
		return orders, err
	}
	more, err := a.payments.store.Invariants(ctx, a.kinds.bound()+checkLease)
	return append(orders, more...), err
}

// closePayments closes the connections to the provider.
func (a *app) closePayments() {
	if a.payments != nil {
		a.payments.provider.Close()
	}
}
