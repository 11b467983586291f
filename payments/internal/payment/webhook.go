package payment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
)

// BadSignature is the class of the error of a webhook that is not the provider's.
var BadSignature = rest.Class{Code: "bad-signature", Status: http.StatusBadRequest, Title: "Signature not valid"}

// webhookPath is where the shop receives webhooks.
const webhookPath = "/webhooks/stripe"

// maxWebhook is the largest size of a webhook's body, in bytes. It bounds the memory that a sender without a valid
// signature can use. Events of the provider are some kilobytes.
const maxWebhook = 256 << 10

// receiver receives the webhooks of the provider.
type receiver struct {
	attempts   *attempt.Service
	deployment string   // events about objects of other deployments are ignored
	live       bool     // the mode of the key; events of the other mode are ignored
	secrets    []string // each of them verifies webhooks, so that a secret can be replaced without a gap
	log        *slog.Logger
	results    *prometheus.CounterVec
}

// newReceiver returns a receiver that verifies webhooks with a list of secrets, separated by commas.
func newReceiver(
	attempts *attempt.Service, deployment string, live bool, secrets string,
	log *slog.Logger, reg prometheus.Registerer,
) *receiver {
	r := &receiver{attempts: attempts, deployment: deployment, live: live, log: log,
		results: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "payment_webhooks_total",
			Help: "Webhooks of the payment provider, by result: matched, unmatched (this shop's, and the database has no " +
				"such attempt), ignored (another application's, deployment's or mode's, of a type that the shop does not " +
				"read, or without usable ids) or rejected (the signature is wrong or old).",
		}, []string{"result"}),
	}
	for secret := range strings.SplitSeq(secrets, ",") {
		if secret = strings.TrimSpace(secret); secret != "" {
			r.secrets = append(r.secrets, secret)
		}
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, result := range []string{"matched", "unmatched", "ignored", "rejected"} {
		r.results.WithLabelValues(result)
	}
	return r
}

// receive is the handler of POST /webhooks/stripe. It answers 200 to every event with a valid signature, unless the
// database fails: after any other answer the provider sends the event again, and in the end it disables the endpoint.
func (r *receiver) receive(c *gin.Context) error {
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxWebhook))
	if err != nil {
		err = unreadable(err)
	} else if wrong := provider.VerifyEvent(body, c.GetHeader("Stripe-Signature"), r.secrets); wrong != nil {
		err = &rest.Error{Class: BadSignature, Err: wrong, Detail: "The header Stripe-Signature must have a signature of " +
			"the body that is at most five minutes old, made with the webhook secret."}
	}
	if err != nil {
		r.results.WithLabelValues("rejected").Inc()
		return err
	}
	result, err := r.take(c.Request.Context(), provider.ReadEvent(body))
	if err != nil {
		return err
	}
	r.results.WithLabelValues(result).Inc()
	c.JSON(http.StatusOK, gin.H{"received": true})
	return nil
}

// unreadable returns the error for a body that cannot be read.
func unreadable(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &rest.Error{Class: rest.BodyTooLarge, Err: err,
			Detail: fmt.Sprintf("The body is larger than %d bytes.", maxWebhook)}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &rest.Error{Class: rest.RequestTimeout, Err: err,
			Detail: "The body did not arrive in time. Send it at once, after the headers."}
	}
	return &rest.Error{Class: rest.Malformed, Detail: "The service cannot read the body.", Err: err}
}

// usableID matches the ids that PostgreSQL and the log get. A NUL character or a huge id would be an error of the
// statement, and the provider would send the event again for days.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,255}$`)

// concerns reports whether an event is about a session of this shop, in its mode, with ids that can be used.
func (r *receiver) concerns(e provider.Event) bool {
	return e.Live == r.live && e.Wanted && (e.Deployment == "" || e.In(r.deployment)) &&
		provider.OptionalID(e.Attempt) != nil && usableID.MatchString(e.ID) && usableID.MatchString(e.Session)
}

// take has the attempt of an event checked, and returns the label of the event's result. An event that the shop cannot
// use is no error: the provider would send it again, and it would fail again.
func (r *receiver) take(ctx context.Context, e provider.Event) (result string, err error) {
	if !r.concerns(e) {
		return "ignored", nil
	}
	known, err := r.attempts.Hear(ctx, e)
	switch {
	case err != nil:
		return "", err
	case known:
		return "matched", nil
	case !e.In(r.deployment):
		return "ignored", nil
	}
	r.log.ErrorContext(ctx, "an event of the payment provider is this shop's, and matches nothing in the database: "+
		"read docs/payments.md, PaymentEventUnmatched",
		"event", e.ID, "type", e.Type, "attempt", e.Attempt, "session", e.Session)
	return "unmatched", nil
}
