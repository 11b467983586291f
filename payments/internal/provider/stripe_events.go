package provider

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"github.com/stripe/stripe-go/v85/webhook"
)

// WantedEvents are the types of event that the webhook endpoint must receive. See docs/payments.md, Production.
var WantedEvents = []string{"checkout.session.completed", "checkout.session.expired"}

// VerifyEvent checks that one of the secrets has signed the body of a webhook in the last five minutes.
func VerifyEvent(body []byte, signature string, secrets []string) error {
	err := errors.New("no webhook secret is configured")
	for _, secret := range secrets {
		if err = webhook.ValidatePayload(body, signature, secret); err == nil {
			return nil
		}
	}
	return err
}

// ReadEvent reads the body of a webhook. It decodes only the fields that it needs, because the other fields differ
// between the versions of the API. The event's ID is "" if the body is not an event.
func ReadEvent(body []byte) Event {
	var read struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Livemode bool   `json:"livemode"`
		Data     struct {
			Object json.RawMessage `json:"object"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &read) != nil {
		return Event{}
	}
	var object struct {
		ID                string            `json:"id"`
		ClientReferenceID string            `json:"client_reference_id"`
		Metadata          map[string]string `json:"metadata"`
	}
	_ = json.Unmarshal(read.Data.Object, &object) // an object of another form names nothing
	e := Event{ID: read.ID, Type: read.Type, Live: read.Livemode, Owner: ownerOf(object.Metadata)}
	if e.Wanted = slices.Contains(WantedEvents, read.Type); e.Wanted {
		e.Attempt = cmp.Or(e.Attempt, object.ClientReferenceID)
		e.Session, e.Complete = object.ID, read.Type == "checkout.session.completed"
	}
	return e
}
