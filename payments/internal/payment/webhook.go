package payment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// maxWebhook is the largest size of a webhook's body, in bytes. A larger one would let a sender without a valid signature
// use more memory; with a smaller one, large events of the provider would be rejected.
const maxWebhook = 256 << 10

// receive is the handler of POST /webhooks/stripe. It stores the event's id and makes the event's attempt or refund due
// for a check, in one transaction. It answers 200 to every event with a valid signature that it could store: after any
// other answer the provider sends the event again, and in the end it disables the endpoint.
func (a *api) receive(c *gin.Context) error {
	e, err := a.payments.verified(c)
	if err != nil {
		a.payments.metrics.webhooks.WithLabelValues("rejected").Inc()
		return err
	}
	result, err := a.payments.takeEvent(c.Request.Context(), e)
	if err != nil {
		return err
	}
	a.payments.metrics.webhooks.WithLabelValues(result).Inc()
	c.JSON(http.StatusOK, gin.H{"received": true})
	return nil
}

// verified returns the event of a webhook. It checks the signature and the age of the body before it reads the event.
func (s *Service) verified(c *gin.Context) (*hint, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxWebhook))
	if err != nil {
		return nil, unreadable(err)
	}
	if err := verifyEvent(body, c.GetHeader("Stripe-Signature"), s.cfg.WebhookSecrets); err != nil {
		return nil, &rest.Error{Class: BadSignature, Err: err,
			Detail: "The header Stripe-Signature must have a signature of the body that is at most five minutes old, made with the webhook secret."}
	}
	return s.hintOf(readEvent(body)), nil
}

// unreadable returns the error for a body that cannot be read.
func unreadable(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &rest.Error{Class: rest.BodyTooLarge, Detail: fmt.Sprintf("The body is larger than %d bytes.", maxWebhook), Err: err}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &rest.Error{Class: rest.RequestTimeout, Detail: "The body did not arrive in time. Send it at once, after the headers.", Err: err}
	}
	return &rest.Error{Class: rest.Malformed, Detail: "The service cannot read the body.", Err: err}
}

// The outcomes of an event, as provider_events stores them. An event that is stored already has none.
const (
	matched   = "matched"
	unmatched = "unmatched"  // this deployment's, and it names nothing that the database has
	foreign   = "foreign"    // of another application or deployment that uses the same account
	otherMode = "other_mode" // of test mode in a live shop, or the other way round
	otherType = "other_type" // of a type that the shop does not read
)

// hint is an event with what it means for the shop: which attempt or refund to ask the provider about.
type hint struct {
	Event
	outcome string     // "": the database decides
	attempt *uuid.UUID // of an event about a session
	refund  *uuid.UUID // the shop's refund, of an event about a refund that the shop has made
	ours    bool       // reports whether the object names this deployment
}

// usableID matches the ids and types that PostgreSQL is asked to store. A NUL character or a huge id would be an error of
// the statement, and the provider would send the event again for days.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,255}$`)

// unusable reports whether an event has no id, no type, or one that cannot be stored.
func (h *hint) unusable() bool {
	optional := func(id string) bool { return id == "" || usableID.MatchString(id) }
	return !usableID.MatchString(h.ID) || !usableID.MatchString(h.Type) || !optional(h.Session) || !optional(h.Intent)
}

// hintOf tells what an event means. An event that is not this deployment's, or names nothing, gets its outcome here.
func (s *Service) hintOf(e Event) *hint {
	h := &hint{Event: e, attempt: optionalID(e.Attempt), refund: optionalID(e.Refund)}
	h.ours = e.Deployment != "" && e.Deployment == s.cfg.Deployment
	switch {
	case s.cfg.Mode != "" && e.Live != (s.cfg.Mode == "live"):
		h.outcome = otherMode
	case e.About == "":
		h.outcome = otherType
	case e.Deployment != "" && s.cfg.Deployment != "" && !h.ours:
		h.outcome = foreign
	case e.About == "session" && (h.attempt == nil || e.Session == ""), e.About != "session" && e.Intent == "":
		h.outcome = foreign
	}
	return h
}

// takeEvent stores an event, and publishes the tasks that check its attempt or refunds. It returns the label of the
// event's result. An event that cannot be stored is no error: the provider would send it again, and it would fail again.
func (s *Service) takeEvent(ctx context.Context, h *hint) (result string, err error) {
	if h.unusable() {
		s.log.WarnContext(ctx, "a webhook has a valid signature, but no event with usable ids; it is ignored",
			"event", shorten(h.ID), "type", shorten(h.Type), "session", shorten(h.Session), "intent", shorten(h.Intent))
		return "unusable", nil
	}
	switch {
	case h.outcome != "":
		result = h.outcome
	case h.Intent != "":
		result, err = s.hearRefund(ctx, h)
	default:
		result, err = s.hear(ctx, h)
	}
	if postgres.Rejected(err) {
		s.log.ErrorContext(ctx, "an event of the payment provider cannot be stored; it is ignored", "event", h.ID, "type", h.Type, "error", err)
		return "unusable", nil
	}
	if err != nil {
		return "", err
	}
	switch result {
	case "":
		return "repeated", nil
	case unmatched:
		s.log.ErrorContext(ctx, "an event of the payment provider is this shop's, and matches nothing in the database: read docs/payments.md, PaymentEventUnmatched",
			"event", h.ID, "type", h.Type, "attempt", h.attempt, "session", h.Session, "intent", h.Intent)
	case matched, otherType:
		return "stored", nil
	}
	return result, nil
}

// hearRefund stores an event about a refund, a charge or a dispute, and publishes the tasks that check the refunds. It
// returns the outcome of the event; "": it was stored before.
func (s *Service) hearRefund(ctx context.Context, h *hint) (outcome string, err error) {
	rows, err := s.store.hearRefund(ctx, h)
	if err != nil {
		return "", err
	}
	for _, row := range rows {
		if row.Task != "" {
			s.publish.Refund.Publish(ctx, delay.At(row.Task, row.DueAt, row.ServerTime))
		}
	}
	return rows[0].Outcome, nil
}

// shorten returns the beginning of a text that a log line shows.
func shorten(text string) string {
	const most = 64 // characters: enough to recognize an id; more would fill the log
	return fmt.Sprintf("%.*q", most, text)
}
