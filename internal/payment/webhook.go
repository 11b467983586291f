package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v85/webhook"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// maxWebhook is the largest size of a webhook's body, in bytes. A larger one would let a sender without a valid signature
// use more memory; with a smaller one, large events of the provider would be rejected.
const maxWebhook = 256 << 10

// receive is the handler of POST /webhooks/stripe. It stores the event's id and makes the event's attempt or refund due
// for a check, in one transaction. It answers 200 to every event with a valid signature: after any other answer the
// provider sends the event again, and in the end it disables the endpoint.
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
	signature := c.GetHeader("Stripe-Signature")
	err = errors.New("no webhook secret is configured")
	for _, secret := range s.cfg.WebhookSecrets {
		if err = webhook.ValidatePayload(body, signature, secret); err == nil {
			return s.readEvent(body), nil
		}
	}
	return nil, &rest.Error{Class: BadSignature, Err: err,
		Detail: "The header Stripe-Signature must have a signature of the body that is at most five minutes old, made with the webhook secret."}
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

// wantedEvents are the types of event that the webhook endpoint must receive. See docs/payments.md, Production.
var wantedEvents = []string{
	"checkout.session.completed", "checkout.session.expired",
	"refund.created", "refund.updated", "refund.failed",
	"charge.refund.updated", "charge.refunded",
	"charge.dispute.created", "charge.dispute.updated", "charge.dispute.closed",
	"charge.dispute.funds_withdrawn", "charge.dispute.funds_reinstated",
}

// hint is the part of a provider's event that the shop reads: which attempt or refund to ask the provider about.
type hint struct {
	id, kind string     // kind is the event's type
	outcome  string     // "": the database decides
	attempt  *uuid.UUID // of an event about a session, with the session's id
	session  string
	complete bool       // reports whether the event says that the session is complete: most likely its customer has paid
	intent   string     // of an event about a refund, a charge or a dispute: the payment
	refund   *uuid.UUID // the shop's refund, of an event about a refund that the shop has made
	ours     bool       // reports whether the object names this deployment
	about    string     // session, refund, charge or dispute; "": another object
}

// usableID matches the ids and types that PostgreSQL is asked to store. A NUL character or a huge id would be an error of
// the statement, and the provider would send the event again for days.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,255}$`)

// unusable reports whether an event has no id, no type, or one that cannot be stored.
func (h *hint) unusable() bool {
	optional := func(id string) bool { return id == "" || usableID.MatchString(id) }
	return !usableID.MatchString(h.id) || !usableID.MatchString(h.kind) || !optional(h.session) || !optional(h.intent)
}

// readEvent decodes only the fields that it needs, because the other fields differ between the versions of the API. The
// hint that it returns names no attempt and no payment if the event is about an object of another type. Its id is "" if
// the body is not an event.
func (s *Service) readEvent(body []byte) *hint {
	var read struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Livemode bool   `json:"livemode"`
		Data     struct {
			Object json.RawMessage `json:"object"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &read) != nil {
		return &hint{}
	}
	h := &hint{id: read.ID, kind: read.Type, about: subject(read.Type)}
	var object struct {
		ID                string            `json:"id"`
		ClientReferenceID string            `json:"client_reference_id"`
		PaymentIntent     objectID          `json:"payment_intent"`
		Metadata          map[string]string `json:"metadata"`
	}
	_ = json.Unmarshal(read.Data.Object, &object) // an object of another form names nothing
	deployment := object.Metadata["deployment"]
	h.ours = deployment != "" && deployment == s.cfg.Deployment
	switch {
	case s.cfg.Mode != "" && read.Livemode != (s.cfg.Mode == "live"):
		h.outcome = otherMode
	case h.about == "":
		h.outcome = otherType
	case deployment != "" && s.cfg.Deployment != "" && deployment != s.cfg.Deployment:
		h.outcome = foreign
	case h.about == "session":
		attempt, err := keyset.ParseID(object.ClientReferenceID)
		if err != nil {
			attempt, err = keyset.ParseID(object.Metadata["attempt"])
		}
		if err != nil || object.ID == "" {
			h.outcome = foreign
			break
		}
		h.attempt, h.session = &attempt, object.ID
		h.complete = h.kind == "checkout.session.completed"
	case object.PaymentIntent == "":
		h.outcome = foreign
	default:
		h.intent = string(object.PaymentIntent)
		if id, err := keyset.ParseID(object.Metadata["refund"]); err == nil && h.about == "refund" {
			h.refund = &id
		}
	}
	return h
}

// subject returns what an event of a type is about: a session, a refund, a charge or a dispute; "" for other objects.
func subject(kind string) string {
	switch {
	case strings.HasPrefix(kind, "checkout.session."):
		return "session"
	case strings.HasPrefix(kind, "refund."), kind == "charge.refund.updated":
		return "refund"
	case kind == "charge.refunded":
		return "charge"
	case strings.HasPrefix(kind, "charge.dispute."):
		return "dispute"
	}
	return ""
}

// takeEvent stores an event, and publishes the tasks that check its attempt or refunds. It returns the label of the
// event's result. An event that cannot be stored is no error: the provider would send it again, and it would fail again.
func (s *Service) takeEvent(ctx context.Context, h *hint) (result string, err error) {
	if h.unusable() {
		s.log.WarnContext(ctx, "a webhook has a valid signature, but no event with usable ids; it is ignored",
			"event", shorten(h.id), "type", shorten(h.kind), "session", shorten(h.session), "intent", shorten(h.intent))
		return "unusable", nil
	}
	kinds, publishers := []string{SettleKind}, []publisher{s.publish.Settle}
	switch {
	case h.intent != "":
		publishers = []publisher{s.publish.Refund}
	case h.complete: // somebody waits for the check
		kinds, publishers = append(kinds, ConfirmKind), append(publishers, s.publish.Confirm)
	}
	rows, err := s.store.storeEvent(ctx, h, kinds)
	if postgres.Rejected(err) {
		s.log.ErrorContext(ctx, "an event of the payment provider cannot be stored; it is ignored", "event", h.id, "type", h.kind, "error", err)
		return "unusable", nil
	}
	if err != nil {
		return "", err
	}
	for _, row := range rows {
		result = row.Outcome
		if row.Task == "" {
			continue
		}
		for _, p := range publishers {
			p.Publish(ctx, delay.At(row.Task, row.DueAt, row.ServerTime))
		}
	}
	switch result {
	case "":
		return "repeated", nil
	case unmatched:
		s.log.ErrorContext(ctx, "an event of the payment provider is this shop's, and matches nothing in the database: read docs/payments.md, PaymentEventUnmatched",
			"event", h.id, "type", h.kind, "attempt", h.attempt, "session", h.session, "intent", h.intent)
	case matched, otherType:
		return "stored", nil
	}
	return result, nil
}

// shorten returns the beginning of a text that a log line shows.
func shorten(text string) string {
	const most = 64 // characters: enough to recognize an id; more would fill the log
	return fmt.Sprintf("%.*q", most, text)
}

// modeOf returns the mode of an API key: "live" or "test".
func modeOf(key string) string {
	if strings.Contains(key, "_live_") {
		return "live"
	}
	return "test"
}
