package stripesim

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v85"
)

// record inserts an event about an object of an owner, which is sent to the merchant as the knobs say. c is the call
// that causes the event, or nil. See https://docs.stripe.com/api/events/object.
func (s *Simulator) record(ctx context.Context, tx pgx.Tx, eventType string, of owner, object fields, c *call) error {
	id := newID("evt_")
	request := fields{"id": nil, "idempotency_key": nil}
	if c != nil {
		request["id"] = c.requestID
	}
	if c != nil && c.key != "" {
		request["idempotency_key"] = c.key
	}
	body := encode(fields{
		"id":               id,
		"object":           "event",
		"api_version":      stripe.APIVersion,
		"created":          time.Now().Unix(),
		"data":             fields{"object": object},
		"livemode":         of.Livemode,
		"pending_webhooks": 1,
		"request":          request,
		"type":             eventType,
	})
	k := s.knobs.get()
	state, copies, delay := "waiting", 1, time.Duration(0)
	types := splitList(k.Events)
	if s.cfg.WebhookURL == "" || !slices.Contains(types, "*") && !slices.Contains(types, eventType) {
		state = "not_sent"
	}
	switch k.Webhooks {
	case "lost", "disabled":
		state = "not_sent"
	case "doubled":
		copies = 2
	case "late":
		delay = s.cfg.LateDelay
	case "reordered":
		delay = s.cfg.ReorderDelay
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO stripesim.events (id, type, body, state, due_at, held)
		SELECT $1, $2, $3, $4, clock_timestamp() + $5::interval, $6 FROM generate_series(1, $7)`,
		id, eventType, body, state, delay, k.Webhooks == "reordered", copies)
	return err
}
