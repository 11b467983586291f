package payment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/sony/gobreaker/v2"
	"github.com/stripe/stripe-go/v85"
)

// StripeConfig configures the connection to Stripe's API.
type StripeConfig struct {
	URL       string // the base URL of the API
	Key       string // the secret API key
	PublicURL string // the base URL of the shop's pages, where browsers return to from the checkout
}

const (
	// callTimeout is the time limit for a call. With a longer one, two calls, one after the other, would not fit into the
	// time that a handler has for a batch of tasks. With a shorter one, a slow answer would be lost.
	callTimeout = 3 * time.Second
	// breakerFailures is the number of failed calls in a row after which the breaker opens: calls then fail at once. With a
	// smaller number, the loss of some answers would stop payments; with a larger one, more calls would wait in vain.
	breakerFailures = 5
	// breakerOpen is the time for which the breaker stays open. With a time longer than that between two checks of a closing
	// attempt, a check could fail although the provider answers again. With a shorter one, more calls would wait in vain.
	breakerOpen = time.Second
)

// Stripe calls Stripe's API. It is safe for concurrent use.
type Stripe struct {
	stripe  *stripe.Client
	http    *http.Client
	breaker *gobreaker.CircuitBreaker[struct{}]
	pageURL string // the base URL of the shop's pages
	log     *slog.Logger
	failing atomic.Bool // the last call had no usable answer
}

// NewStripe returns a client of Stripe. It sends nothing.
func NewStripe(cfg StripeConfig, log *slog.Logger) *Stripe {
	client := &http.Client{Timeout: callTimeout, Transport: http.DefaultTransport.(*http.Transport).Clone()}
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:        stripe.String(cfg.URL),
		HTTPClient: client,
		// The tasks repeat what failed. The retries of stripe-go sleep without regard to the context.
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // the callers log errors
	})
	return &Stripe{
		stripe:  stripe.NewClient(cfg.Key, stripe.WithBackends(backends)),
		http:    client,
		pageURL: cfg.PublicURL,
		log:     log,
		breaker: gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
			Name:         "provider",
			Timeout:      breakerOpen,
			ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
			IsSuccessful: func(err error) bool { return err == nil || answered(err) },
		}),
	}
}

// Close closes idle connections.
func (p *Stripe) Close() { p.http.CloseIdleConnections() }

// answered reports whether an error is an answer of a provider that works. Network errors, 429 and 5xx are not such
// answers: the breaker counts them.
func answered(err error) bool {
	e, ok := errors.AsType[*stripe.Error](err)
	return ok && e.HTTPStatusCode < 500 && e.HTTPStatusCode != http.StatusTooManyRequests
}

// final reports whether a request has failed for good: the same request, with the same idempotency key, will never
// succeed. The provider rejects its parameters, or has stored an error for the key and replays it. After a wrong API key
// (401, 403), a conflict with a concurrent request (409) and too many requests (429) the same request may succeed later.
func final(err error) bool {
	e, ok := errors.AsType[*stripe.Error](err)
	if !ok {
		return false
	}
	switch e.HTTPStatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict, http.StatusTooManyRequests:
		return false
	}
	replayed := e.LastResponse != nil && e.LastResponse.Header.Get("Idempotent-Replayed") == "true"
	return e.HTTPStatusCode < 500 || replayed
}

// inUse reports whether the provider refused a request because another one with the same idempotency key is under way.
func inUse(err error) bool {
	e, ok := errors.AsType[*stripe.Error](err)
	return ok && e.HTTPStatusCode == http.StatusConflict
}

// call calls the API within the timeout, unless the breaker is open.
func (p *Stripe) call(ctx context.Context, name string, do func(ctx context.Context) error) error {
	_, err := p.breaker.Execute(func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err := do(ctx)
		p.logChange(ctx, name, err)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errProvider, name, describe(err))
	}
	return nil
}

// errProvider marks the errors of calls to the provider.
var errProvider = errors.New("payment provider")

// logChange logs that the provider became unusable, or usable again. Failures in between are not logged.
func (p *Stripe) logChange(ctx context.Context, name string, err error) {
	e, _ := errors.AsType[*stripe.Error](err)
	failing := err != nil && !answered(err) || e != nil && (e.HTTPStatusCode == http.StatusUnauthorized || e.HTTPStatusCode == http.StatusForbidden)
	if p.failing.Swap(failing) == failing {
		return
	}
	if failing {
		p.log.WarnContext(ctx, "the payment provider cannot be used; payments wait for it", "call", name, "error", describe(err))
	} else {
		p.log.InfoContext(ctx, "the payment provider can be used again", "call", name)
	}
}

// describe shortens the text of Stripe's errors, which is a JSON object of many lines.
func describe(err error) error {
	if e, ok := errors.AsType[*stripe.Error](err); ok {
		return &answerError{e}
	}
	return err
}

// answerError is a [stripe.Error] with a text of one line.
type answerError struct{ err *stripe.Error }

func (e *answerError) Error() string {
	return fmt.Sprintf("status %d, %s %s: %s", e.err.HTTPStatusCode, e.err.Type, e.err.Code, e.err.Msg)
}

func (e *answerError) Unwrap() error { return e.err }

// session is a Checkout Session, as far as the shop reads it.
type session struct {
	id, url     string
	attempt     string // client_reference_id
	expired     bool   // final: the customer cannot pay any more, and has not paid
	paid        bool   // final: the customer has paid
	intent      string
	amountCents int64
	currency    string // lower case
}

// sessionOf reads a session. A session that is not open is not necessarily expired, and a complete one is not
// necessarily paid: a delayed payment method may still fail. A session without a payment intent has no money that could
// be refunded, so it does not count as paid.
func sessionOf(s *stripe.CheckoutSession) session {
	read := session{
		id: s.ID, url: s.URL, attempt: s.ClientReferenceID,
		expired:     s.Status == stripe.CheckoutSessionStatusExpired,
		paid:        s.PaymentStatus == stripe.CheckoutSessionPaymentStatusPaid && s.PaymentIntent != nil,
		amountCents: s.AmountTotal, currency: string(s.Currency),
	}
	if s.PaymentIntent != nil {
		read.intent = s.PaymentIntent.ID
	}
	return read
}

// create makes the session of an attempt, or returns the session that an earlier call made. All parameters follow from
// the attempt, because Stripe replays an idempotency key only with the same parameters.
func (p *Stripe) create(ctx context.Context, a *Attempt) (session, error) {
	params := &stripe.CheckoutSessionCreateParams{
		Mode:               stripe.String(string(stripe.CheckoutSessionModePayment)),
		ClientReferenceID:  stripe.String(a.ID.String()),
		PaymentMethodTypes: []*string{stripe.String("card")}, // other methods may confirm a payment days later
		AdaptivePricing:    &stripe.CheckoutSessionCreateAdaptivePricingParams{Enabled: stripe.Bool(false)},
		ExpiresAt:          stripe.Int64(a.OpenedAt.Add(sessionLifetime).Unix()),
		SuccessURL:         stripe.String(p.pageURL + "/"),
		CancelURL:          stripe.String(p.pageURL + "/"),
		LineItems: []*stripe.CheckoutSessionCreateLineItemParams{{
			Quantity: stripe.Int64(1),
			PriceData: &stripe.CheckoutSessionCreateLineItemPriceDataParams{
				Currency:    stripe.String(strings.ToLower(a.Currency)),
				UnitAmount:  stripe.Int64(a.AmountCents),
				ProductData: &stripe.CheckoutSessionCreateLineItemPriceDataProductDataParams{Name: stripe.String("Order " + a.OrderID.String())},
			},
		}},
	}
	params.SetIdempotencyKey(a.ID.String())
	return p.session(ctx, "create session", func(ctx context.Context) (*stripe.CheckoutSession, error) {
		return p.stripe.V1CheckoutSessions.Create(ctx, params)
	})
}

func (p *Stripe) retrieve(ctx context.Context, id string) (session, error) {
	return p.session(ctx, "retrieve session", func(ctx context.Context) (*stripe.CheckoutSession, error) {
		return p.stripe.V1CheckoutSessions.Retrieve(ctx, id, nil)
	})
}

// expire asks the provider to expire a session. The provider refuses unless the session is open. stripe-go sends a new
// idempotency key with each call: with a key that was used before, the provider would repeat an old answer.
func (p *Stripe) expire(ctx context.Context, id string) (session, error) {
	return p.session(ctx, "expire session", func(ctx context.Context) (*stripe.CheckoutSession, error) {
		return p.stripe.V1CheckoutSessions.Expire(ctx, id, nil)
	})
}

func (p *Stripe) session(ctx context.Context, name string, do func(context.Context) (*stripe.CheckoutSession, error)) (read session, err error) {
	err = p.call(ctx, name, func(ctx context.Context) error {
		s, err := do(ctx)
		if err == nil {
			read = sessionOf(s)
		}
		return err
	})
	return read, err
}

// providerRefund is a refund as the provider has it.
type providerRefund struct {
	id          string
	amountCents int64
	try         int // the try of the shop's refund that made it; 0: an operator made it at the provider
	state       RefundState
	reason      string // why it failed
}

func providerRefundOf(r *stripe.Refund) providerRefund {
	read := providerRefund{id: r.ID, amountCents: r.Amount, state: Sent, reason: string(r.FailureReason)}
	read.try, _ = strconv.Atoi(r.Metadata["try"])
	switch r.Status {
	case stripe.RefundStatusSucceeded:
		read.state = Confirmed
	case stripe.RefundStatusFailed, stripe.RefundStatusCanceled:
		read.state = Failed
	}
	return read
}

// refunds returns the refunds of a payment, the latest first.
func (p *Stripe) refunds(ctx context.Context, intent string) (list []providerRefund, err error) {
	params := &stripe.RefundListParams{PaymentIntent: stripe.String(intent)}
	params.Limit = stripe.Int64(100)
	err = p.call(ctx, "list refunds", func(ctx context.Context) error {
		for r, err := range p.stripe.V1Refunds.List(ctx, params).All(ctx) {
			if err != nil {
				return err
			}
			list = append(list, providerRefundOf(r))
		}
		return nil
	})
	return list, err
}

// refund returns money of a payment. A repeated call with the same id, try and amount returns the first refund.
func (p *Stripe) refund(ctx context.Context, id uuid.UUID, try int, intent string, amountCents int64) (made providerRefund, err error) {
	params := &stripe.RefundCreateParams{
		PaymentIntent: stripe.String(intent),
		Amount:        stripe.Int64(amountCents),
		Metadata:      map[string]string{"refund": id.String(), "try": strconv.Itoa(try)},
	}
	params.SetIdempotencyKey(fmt.Sprintf("%s-%d", id, try))
	err = p.call(ctx, "create refund", func(ctx context.Context) error {
		r, err := p.stripe.V1Refunds.Create(ctx, params)
		if err == nil {
			made = providerRefundOf(r)
		}
		return err
	})
	return made, err
}
