package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// Stripe is a [Provider]: it calls Stripe's API. It is safe for concurrent use.
type Stripe struct {
	stripe *stripe.Client
	clock  *answerClock
}

// NewStripe returns a client of Stripe's API at a base URL, with a secret key. It sends nothing.
func NewStripe(url, key string) *Stripe {
	clock := &answerClock{next: http.DefaultTransport.(*http.Transport).Clone()}
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:        stripe.String(url),
		HTTPClient: &http.Client{Timeout: callTimeout, Transport: clock},
		// The tasks repeat what failed. The retries of stripe-go sleep without regard to the context.
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // the callers log errors
	})
	return &Stripe{stripe: stripe.NewClient(key, stripe.WithBackends(backends)), clock: clock}
}

// Close closes idle connections.
func (p *Stripe) Close() { p.clock.next.CloseIdleConnections() }

// Clock returns Stripe's time, estimated from its last answer. Before the first answer it is the time of this process.
func (p *Stripe) Clock() time.Time { return time.Now().Add(time.Duration(p.clock.ahead.Load())) }

// answerClock passes requests on, and learns from the header Date of the answers how far the provider's clock is ahead
// of that of this process.
type answerClock struct {
	next  *http.Transport
	ahead atomic.Int64 // in nanoseconds, negative for behind
}

// RoundTrip implements [http.RoundTripper].
func (c *answerClock) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	res, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		// Date has whole seconds, so on average it is half a second early.
		middle := began.Add(time.Since(began) / 2)
		c.ahead.Store(int64(date.Add(500 * time.Millisecond).Sub(middle)))
	}
	return res, nil
}

// classify returns the error of a call as a [*Error], and nil for nil.
func classify(operation string, err error) error {
	if err == nil {
		return nil
	}
	failed := &Error{Class: NoAnswer, Operation: operation, Err: err}
	e, ok := errors.AsType[*stripe.Error](err)
	if !ok { // no answer, or one that is not Stripe's
		return failed
	}
	// Stripe's own text is a JSON object of many lines.
	failed.Err = fmt.Errorf("status %d, %s %s: %s", e.HTTPStatusCode, e.Type, e.Code, e.Msg)
	switch {
	case e.HTTPStatusCode >= 500:
		if e.LastResponse != nil && e.LastResponse.Header.Get("Idempotent-Replayed") == "true" {
			failed.Class = Replayed
		}
	case e.Code == stripe.ErrorCodeLockTimeout: // of one object; also with status 429
		failed.Class = Busy
	case e.HTTPStatusCode == http.StatusTooManyRequests:
		failed.Class, failed.Cause = Busy, TooManyCalls
	case e.HTTPStatusCode == http.StatusConflict:
		failed.Class, failed.Cause = Busy, KeyInUse
	case e.Type == stripe.ErrorTypeIdempotency: // the key belongs to a call with other parameters
		failed.Class = Replayed
	case e.HTTPStatusCode == http.StatusUnauthorized, e.HTTPStatusCode == http.StatusForbidden:
		failed.Class = Denied
	case e.HTTPStatusCode == http.StatusNotFound, e.Code == stripe.ErrorCodeResourceMissing:
		failed.Class = Missing
	case e.Code == stripe.ErrorCodeBalanceInsufficient:
		failed.Class, failed.Cause = Busy, LowBalance
	default:
		failed.Class, failed.Cause = Refused, refusals[e.Code]
	}
	return failed
}

// refusals are the codes with which Stripe refuses a call for good, as far as the shop distinguishes them.
var refusals = map[stripe.ErrorCode]Cause{
	stripe.ErrorCodeChargeDisputed:        ByDispute,
	stripe.ErrorCodeRefundDisputedPayment: ByDispute,
	stripe.ErrorCodeChargeAlreadyRefunded: AlreadyRefunded,
	stripe.ErrorCodeAmountTooSmall:        TooSmall,
}

// errUnusable is the error of an answer that reports success and lacks what it must have, such as `200 {}` of a proxy.
var errUnusable = errors.New("the answer reports success, but lacks the object's id or another part that it must have")

// sessionOf reads a session. One that is not open is not necessarily expired, and a complete one is not necessarily
// paid: a delayed payment method may still fail.
func sessionOf(s *stripe.CheckoutSession) (Session, error) {
	read := Session{
		Owner: ownerOf(s.Metadata), ID: s.ID, URL: s.URL,
		Expired:     s.Status == stripe.CheckoutSessionStatusExpired,
		Paid:        s.PaymentStatus == stripe.CheckoutSessionPaymentStatusPaid,
		AmountCents: s.AmountTotal, Currency: string(s.Currency), Live: s.Livemode,
		CreatedAt: time.Unix(s.Created, 0), ExpiresAt: time.Unix(s.ExpiresAt, 0),
	}
	read.Attempt = s.ClientReferenceID
	if s.PaymentIntent != nil {
		read.Intent = s.PaymentIntent.ID
	}
	isOpen := s.Status == stripe.CheckoutSessionStatusOpen
	if read.ID == "" || isOpen && read.URL == "" || read.Paid && read.Intent == "" {
		return Session{}, errUnusable
	}
	return read, nil
}

// metadata is how an owner is written on an object.
func (o Owner) metadata() map[string]string {
	return map[string]string{"deployment": o.Deployment, "order": o.Order, "attempt": o.Attempt}
}

// ownerOf reads what the shop has written on an object.
func ownerOf(metadata map[string]string) Owner {
	return Owner{Deployment: metadata["deployment"], Order: metadata["order"], Attempt: metadata["attempt"]}
}

// otherUnits are the currencies whose amounts at Stripe are in another unit than that of ISO 4217. Stripe wants amounts
// of ISK and UGX times 100, and those of MGA divided by 100. See https://docs.stripe.com/currencies.
var otherUnits = []string{"isk", "mga", "ugx"}

// Create implements [Checkouts]. All parameters follow from c, because Stripe replays a key only with the same ones.
func (p *Stripe) Create(ctx context.Context, c Checkout) (Session, error) {
	if slices.Contains(otherUnits, c.Currency) {
		return Session{}, &Error{Class: Refused, Operation: opCreate, Err: fmt.Errorf(
			"an amount in %s has another unit at Stripe than in the shop: sell in another currency", c.Currency)}
	}
	params := &stripe.CheckoutSessionCreateParams{
		Mode:               stripe.String(string(stripe.CheckoutSessionModePayment)),
		ClientReferenceID:  stripe.String(c.Attempt),
		Metadata:           c.metadata(),
		PaymentIntentData:  &stripe.CheckoutSessionCreatePaymentIntentDataParams{Metadata: c.metadata()},
		PaymentMethodTypes: []*string{stripe.String("card")}, // other methods may confirm a payment days later
		AdaptivePricing:    &stripe.CheckoutSessionCreateAdaptivePricingParams{Enabled: stripe.Bool(false)},
		ExpiresAt:          stripe.Int64(c.ExpiresAt.Unix()),
		SuccessURL:         stripe.String(c.ReturnURL),
		CancelURL:          stripe.String(c.ReturnURL),
		LineItems: []*stripe.CheckoutSessionCreateLineItemParams{{
			Quantity: stripe.Int64(1),
			PriceData: &stripe.CheckoutSessionCreateLineItemPriceDataParams{
				Currency:   stripe.String(c.Currency),
				UnitAmount: stripe.Int64(c.AmountCents),
				ProductData: &stripe.CheckoutSessionCreateLineItemPriceDataProductDataParams{
					Name: stripe.String(c.Title),
				},
			},
		}},
	}
	params.SetIdempotencyKey(c.Key)
	return readSession(opCreate)(p.stripe.V1CheckoutSessions.Create(ctx, params))
}

// Retrieve implements [Checkouts].
func (p *Stripe) Retrieve(ctx context.Context, session string) (Session, error) {
	return readSession(opRetrieve)(p.stripe.V1CheckoutSessions.Retrieve(ctx, session, nil))
}

// Expire implements [Checkouts]. Stripe refuses unless the session is open. stripe-go sends a new idempotency key with
// each call: with a key that was used before, Stripe would repeat an old answer.
func (p *Stripe) Expire(ctx context.Context, session string) (Session, error) {
	return readSession(OpExpire)(p.stripe.V1CheckoutSessions.Expire(ctx, session, nil))
}

// readSession returns a function that reads the answer of an operation.
func readSession(operation string) func(*stripe.CheckoutSession, error) (Session, error) {
	return func(s *stripe.CheckoutSession, err error) (read Session, _ error) {
		if err == nil {
			read, err = sessionOf(s)
		}
		return read, classify(operation, err)
	}
}

func refundOf(r *stripe.Refund) (Refund, error) {
	read := Refund{
		ID: r.ID, Refund: r.Metadata["refund"], AmountCents: r.Amount, Currency: string(r.Currency),
		State: Sent, Reason: string(r.FailureReason),
	}
	read.Try, _ = strconv.Atoi(r.Metadata["try"]) // 0: made by hand
	switch r.Status {
	case stripe.RefundStatusSucceeded:
		read.State = Confirmed
	case stripe.RefundStatusFailed, stripe.RefundStatusCanceled:
		read.State = Failed
	}
	if read.Reason == "" {
		read.Reason = string(r.PendingReason)
	}
	if read.Reason == "" && (r.Status == stripe.RefundStatusRequiresAction || r.Status == stripe.RefundStatusCanceled) {
		read.Reason = string(r.Status)
	}
	if read.ID == "" {
		return Refund{}, errUnusable
	}
	return read, nil
}

// Refunds implements [Returns].
func (p *Stripe) Refunds(ctx context.Context, intent string) (all []Refund, err error) {
	params := &stripe.RefundListParams{PaymentIntent: stripe.String(intent)}
	params.Limit = stripe.Int64(100)
	list := p.stripe.V1Refunds.List(ctx, params)
	for r, err := range list.All(ctx) {
		var read Refund
		if err == nil {
			read, err = refundOf(r)
		}
		if err != nil {
			return nil, classify(opRefunds, err)
		}
		all = append(all, read)
	}
	return all, checkList(opRefunds, list)
}

// checkList returns an error if an answer is not a list. One without rows would have a payment refunded once more, or
// would hide lost sessions, or would move the position in the books.
func checkList[T any](operation string, list *stripe.V1List[T]) error {
	err := list.Err()
	if err == nil && list.Meta().URL == "" {
		err = errUnusable
	}
	return classify(operation, err)
}

// Refund implements [Returns].
func (p *Stripe) Refund(ctx context.Context, r Return) (made Refund, err error) {
	params := &stripe.RefundCreateParams{PaymentIntent: stripe.String(r.Intent), Amount: stripe.Int64(r.AmountCents)}
	if r.Refund != "" {
		params.Metadata = map[string]string{"refund": r.Refund, "try": strconv.Itoa(r.Try)}
	}
	params.SetIdempotencyKey(r.Key)
	answer, err := p.stripe.V1Refunds.Create(ctx, params)
	if err == nil {
		made, err = refundOf(answer)
	}
	return made, classify(OpRefund, err)
}

// MinimumCents has the smallest amount of a payment at Stripe, by currency, in the currency's smallest unit. Stripe
// compares it with the amount in the account's currency of settlement: this table is right for an account that settles
// in the same currency.
var MinimumCents = map[string]int64{
	"AED": 200, "AUD": 50, "BGN": 100, "BRL": 50, "CAD": 50, "CHF": 50, "CZK": 1500, "DKK": 250, "EUR": 50, "GBP": 30,
	"HKD": 400, "HUF": 17500, "INR": 50, "JPY": 50, "MXN": 1000, "MYR": 200, "NOK": 300, "NZD": 50, "PLN": 200,
	"RON": 200, "SEK": 300, "SGD": 50, "THB": 1000, "USD": 50,
}
