package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// Stripe is a [Provider]: it calls Stripe's API. It is safe for concurrent use.
type Stripe struct {
	stripe  *stripe.Client
	backend stripe.Backend
	key     string
	clock   *answerClock
}

// NewStripe returns a client of Stripe's API at an address, with a secret key. It sends nothing.
func NewStripe(address, key string) *Stripe {
	clock := &answerClock{next: http.DefaultTransport.(*http.Transport).Clone()}
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:        stripe.String(address),
		HTTPClient: &http.Client{Transport: clock}, // the contexts of the calls have a timeout
		// The tasks repeat what failed. The retries of stripe-go sleep without regard to the context.
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // the callers log errors
	})
	client := stripe.NewClient(key, stripe.WithBackends(backends))
	return &Stripe{stripe: client, backend: backends.API, key: key, clock: clock}
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
		failed.Class = Refused
	}
	return failed
}

// errUnusable is the error of an answer that reports success and lacks what it must have, such as `200 {}` of a proxy.
var errUnusable = errors.New("the answer reports success, but lacks the object's id or another part that it must have")

// sessionAnswer has the fields of a session that the shop reads. The types of stripe-go, which have all fields, took a
// tenth of the processor time of a paid order.
type sessionAnswer struct {
	stripe.APIResource
	ID                string                              `json:"id"`
	URL               string                              `json:"url"`
	Status            stripe.CheckoutSessionStatus        `json:"status"`
	PaymentStatus     stripe.CheckoutSessionPaymentStatus `json:"payment_status"`
	PaymentIntent     *stripe.PaymentIntent               `json:"payment_intent"`
	AmountTotal       int64                               `json:"amount_total"`
	Currency          string                              `json:"currency"`
	Created           int64                               `json:"created"`
	ExpiresAt         int64                               `json:"expires_at"`
	ClientReferenceID string                              `json:"client_reference_id"`
	Metadata          map[string]string                   `json:"metadata"`
}

// session makes a call about a session, and reads the answer. key is the idempotency key; "": a new one. A session
// that is not open is not necessarily expired, and a complete one is not necessarily paid: a delayed payment method
// may still fail.
func (p *Stripe) session(ctx context.Context, operation, method, path, key string, form url.Values) (Session, error) {
	params := &stripe.Params{Context: ctx}
	if key != "" {
		params.SetIdempotencyKey(key)
	}
	var s sessionAnswer
	if err := p.backend.CallRaw(method, path, p.key, []byte(form.Encode()), params, &s); err != nil {
		return Session{}, classify(operation, err)
	}
	read := Session{
		Owner: ownerOf(s.Metadata), ID: s.ID, URL: s.URL,
		Expired:     s.Status == stripe.CheckoutSessionStatusExpired,
		Paid:        s.PaymentStatus == stripe.CheckoutSessionPaymentStatusPaid,
		AmountCents: s.AmountTotal, Currency: s.Currency,
		CreatedAt: time.Unix(s.Created, 0), ExpiresAt: time.Unix(s.ExpiresAt, 0),
	}
	read.Attempt = s.ClientReferenceID
	if s.PaymentIntent != nil {
		read.Intent = s.PaymentIntent.ID
	}
	isOpen := s.Status == stripe.CheckoutSessionStatusOpen
	if read.ID == "" || isOpen && read.URL == "" || read.Paid && read.Intent == "" {
		return Session{}, classify(operation, errUnusable)
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

// Create implements [Checkouts]. All parameters follow from c, because Stripe replays a key only with the same ones.
func (p *Stripe) Create(ctx context.Context, c Checkout) (Session, error) {
	const price, payment = "line_items[0][price_data]", "payment_intent_data"
	form := url.Values{
		"mode":                         {"payment"},
		"client_reference_id":          {c.Attempt},
		"payment_method_types[0]":      {"card"}, // other methods may confirm a payment days later
		"adaptive_pricing[enabled]":    {"false"},
		"expires_at":                   {strconv.FormatInt(c.ExpiresAt.Unix(), 10)},
		"success_url":                  {c.ReturnURL},
		"cancel_url":                   {c.ReturnURL},
		"line_items[0][quantity]":      {"1"},
		price + "[currency]":           {c.Currency},
		price + "[unit_amount]":        {strconv.FormatInt(c.AmountCents, 10)},
		price + "[product_data][name]": {c.Title},
	}
	for key, value := range c.metadata() {
		form.Set("metadata["+key+"]", value)
		form.Set(payment+"[metadata]["+key+"]", value)
	}
	return p.session(ctx, opCreate, http.MethodPost, "/v1/checkout/sessions", c.Key, form)
}

// Retrieve implements [Checkouts].
func (p *Stripe) Retrieve(ctx context.Context, session string) (Session, error) {
	return p.session(ctx, opRetrieve, http.MethodGet, stripe.FormatURLPath("/v1/checkout/sessions/%s", session), "", nil)
}

// Expire implements [Checkouts]. Stripe refuses unless the session is open. stripe-go sends a new idempotency key with
// each call: with a key that was used before, Stripe would repeat an old answer.
func (p *Stripe) Expire(ctx context.Context, session string) (Session, error) {
	path := stripe.FormatURLPath("/v1/checkout/sessions/%s/expire", session)
	return p.session(ctx, OpExpire, http.MethodPost, path, "", nil)
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
	params.Metadata = map[string]string{"refund": r.Refund, "try": strconv.Itoa(r.Try)}
	params.SetIdempotencyKey(r.Key)
	answer, err := p.stripe.V1Refunds.Create(ctx, params)
	if err == nil {
		made, err = refundOf(answer)
	}
	return made, classify(OpRefund, err)
}
