package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v85/webhook"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
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
	stored, err := a.payments.takeEvent(c.Request.Context(), e)
	if err != nil {
		return err
	}
	result := "repeated"
	if stored {
		result = "stored"
	}
	a.payments.metrics.webhooks.WithLabelValues(result).Inc()
	c.JSON(http.StatusOK, gin.H{"received": true})
	return nil
}

// verified returns the event of a webhook. It checks the signature and the age of the body before it reads the event.
func (s *Service) verified(c *gin.Context) (*event, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxWebhook))
	if err != nil {
		return nil, unreadable(err)
	}
	signature := c.GetHeader("Stripe-Signature")
	err = errors.New("no webhook secret is configured")
	for _, secret := range s.cfg.WebhookSecrets {
		if err = webhook.ValidatePayload(body, signature, secret); err == nil {
			return readEvent(body), nil
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

// event is the part of a provider's event that the shop reads: which attempt or refund to ask the provider about.
type event struct {
	id, eventType string
	attempt       *uuid.UUID // of an event about a session, with the session's id
	session       string
	intent        string // of an event about a refund: the payment that the refund returns
}

// readEvent decodes only the fields that it needs, because the other fields differ between the versions of the API. The
// event that it returns names no attempt and no payment if it is about an object of another type. Its id is "" if the body
// is not an event.
func readEvent(body []byte) *event {
	var read struct {
		ID   string `json:"id"`
		Type string `json:"type"`
		Data struct {
			Object json.RawMessage `json:"object"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &read) != nil || read.ID == "" {
		return &event{}
	}
	e := &event{id: read.ID, eventType: read.Type}
	switch {
	case strings.HasPrefix(e.eventType, "checkout.session."):
		var s struct {
			ID                string `json:"id"`
			ClientReferenceID string `json:"client_reference_id"`
		}
		if json.Unmarshal(read.Data.Object, &s) == nil && s.ID != "" {
			if id, err := keyset.ParseID(s.ClientReferenceID); err == nil {
				e.attempt, e.session = &id, s.ID
			}
		}
	case strings.HasPrefix(e.eventType, "refund."):
		var r struct {
			PaymentIntent objectID `json:"payment_intent"`
		}
		if json.Unmarshal(read.Data.Object, &r) == nil && r.PaymentIntent != "" {
			e.intent = string(r.PaymentIntent)
		}
	}
	return e
}

// takeEvent stores an event, and publishes the task that checks its attempt or refund. It reports whether the event is
// new.
func (s *Service) takeEvent(ctx context.Context, e *event) (stored bool, err error) {
	if e.id == "" {
		s.log.WarnContext(ctx, "a webhook has a valid signature, but no event with an id; it is ignored")
		return false, nil
	}
	row, err := s.store.storeEvent(ctx, e)
	if err != nil {
		return false, err
	}
	publish := s.publish.Settle
	if e.intent != "" {
		publish = s.publish.Refund
	}
	if row.Task != "" {
		publish.Publish(ctx, delay.At(row.Task, row.DueAt, row.ServerTime))
	}
	return row.Stored, nil
}
