package payment

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/payments/internal/provider"
)

// ProviderOptions are the options of every process that calls the payment provider. Without a key the process has no
// payments. The limits are per account: all processes that use the account share them.
type ProviderOptions struct {
	StripeURL          string  `name:"stripe-url" default:"https://api.stripe.com" help:"The URL of the payment provider's API: Stripe, or shop provider."`
	StripeKey          string  `name:"stripe-key" placeholder:"SECRET" help:"The secret key of the payment provider's API. Without it customers cannot pay at a checkout."`
	StripeKeyFile      string  `name:"stripe-key-file" placeholder:"FILE" help:"The file with the provider's key, instead of --stripe-key."`
	StripeRate         float64 `name:"stripe-rate" default:"0" help:"The most calls a second that the provider accepts from the account. 0: 100 with a live key, 25 with a test key."`
	StripeEndpointRate float64 `name:"stripe-endpoint-rate" default:"25" help:"The most calls a second of one operation that the provider accepts from the account."`
	StripeProcesses    int     `name:"stripe-processes" default:"1" help:"The number of processes that call the provider. Each of them uses its part of the limits."`
	Deployment         string  `name:"deployment" placeholder:"NAME" help:"The name of this deployment, such as production or staging: a to z, 0 to 9 and -. Required with a key of the payment provider. A process with another name than the database's does not start."`
}

// Options are the options of payments of a process that serves. A customer who pays an order at once gets the goods for
// nothing.
type Options struct {
	ProviderOptions
	WebhookSecret     string        `name:"stripe-webhook-secret" placeholder:"SECRET" help:"The secret that signs the provider's webhooks. Several secrets are separated by commas, to replace one without a gap."`
	WebhookSecretFile string        `name:"stripe-webhook-secret-file" placeholder:"FILE" help:"The file with the webhook secret, instead of --stripe-webhook-secret."`
	CheckoutTime      time.Duration `name:"checkout-time" default:"3m" help:"The time after the opening of a checkout in which its customer can pay even if the order's deadline passes meanwhile. 0s: a checkout closes at the deadline."`
	PaymentGrace      time.Duration `name:"payment-grace" default:"2m" help:"The time after the closing of an open checkout begins in which the provider can still report a payment. Then the order is cancelled."`
	AllowTestPayments bool          `name:"allow-test-payments" help:"Accept a test key of the payment provider, with which customers pay with test cards, for nothing."`
	PayAtOnce         bool          `name:"pay-at-once" help:"Let customers pay an order at once and for nothing, although the service has a payment provider: for demos and tests."`
	PayAtOnceQuiet    bool          `kong:"-"` // logs no warning about PayAtOnce: for a demo, whose user has not set it
}

var deploymentName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// Check returns one error that names all options with wrong values.
func (o ProviderOptions) Check() error {
	errs := []error{
		app.RequireOptions(map[string]string{"stripe-url": o.StripeURL}),
		CheckURL("stripe-url", o.StripeURL),
		between("stripe-rate", o.StripeRate, 0, 10_000),
		between("stripe-endpoint-rate", o.StripeEndpointRate, 1, 10_000),
		between("stripe-processes", o.StripeProcesses, 1, 1000),
	}
	if (o.StripeKey != "" || o.Deployment != "") && !deploymentName.MatchString(o.Deployment) {
		errs = append(errs, fmt.Errorf("%s is %q, want 1 to 40 of a to z, 0 to 9 and -, such as production",
			app.OptionName("deployment"), o.Deployment))
	}
	return app.JoinErrors(errs...)
}

// Check returns one error that names all options with wrong values. api reports whether the process serves the API, and
// publicURL is the URL of its pages, to which browsers return from the checkout.
func (o Options) Check(api bool, publicURL string) error {
	errs := []error{
		o.ProviderOptions.Check(),
		between("checkout-time", o.CheckoutTime, 0, time.Hour),
		between("payment-grace", o.PaymentGrace, time.Second, 24*time.Hour),
	}
	if o.StripeKey != "" && provider.ModeOf(o.StripeKey) == "test" && !o.AllowTestPayments {
		errs = append(errs, fmt.Errorf("%s is a test key, with which customers pay with test cards, for nothing: "+
			"set a live key, or %s if nothing is sold here",
			app.OptionName("stripe-key"), app.OptionName("allow-test-payments")))
	}
	if o.PayAtOnce && provider.ModeOf(o.StripeKey) == "live" {
		errs = append(errs, fmt.Errorf("with a live key %s would let customers pay orders for nothing: unset it",
			app.OptionName("pay-at-once")))
	}
	if o.StripeKey != "" && api {
		errs = append(errs, app.RequireOptions(map[string]string{
			"stripe-webhook-secret": o.WebhookSecret, "public-url": publicURL,
		}))
	}
	return app.JoinErrors(errs...)
}

// between returns an error unless the value of an option is in a range.
func between[T cmp.Ordered](flag string, value, least, most T) error {
	if value >= least && value <= most {
		return nil
	}
	return fmt.Errorf("%s is %v, want %v to %v", app.OptionName(flag), value, least, most)
}

// CheckURL accepts an absolute HTTP address, and no address.
func CheckURL(flag, address string) error {
	u, err := url.Parse(address)
	if address == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return nil
	}
	return fmt.Errorf("%s is %q, want an address like https://shop.example", app.OptionName(flag), address)
}

// limits returns the limits of this process.
func (o ProviderOptions) limits() provider.Limits {
	rate := cmp.Or(o.StripeRate, 25)
	if provider.ModeOf(o.StripeKey) == "live" {
		rate = cmp.Or(o.StripeRate, 100)
	}
	n := float64(max(o.StripeProcesses, 1))
	return provider.Limits{Rate: rate / n, OperationRate: o.StripeEndpointRate / n}
}
