package stripesim

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// eventObject is an event as the API answers it and webhooks carry it. See https://docs.stripe.com/api/events/object.
type eventObject struct {
	ID              string       `json:"id"`
	Object          string       `json:"object"`
	APIVersion      string       `json:"api_version"`
	Created         int64        `json:"created"`
	Data            eventData    `json:"data"`
	Livemode        bool         `json:"livemode"`
	PendingWebhooks int64        `json:"pending_webhooks"`
	Request         eventRequest `json:"request"`
	Type            string       `json:"type"`
}

type eventData struct {
	Object json.RawMessage `json:"object"`
}

// eventRequest is the API request that caused the event. Its fields are nil if no request did.
type eventRequest struct {
	ID             *string `json:"id"`
	IdempotencyKey *string `json:"idempotency_key"`
}

// record inserts an event about an object of an owner, and its deliveries. c is the call that causes the event, or nil.
func (s *Simulator) record(ctx context.Context, tx *sql.Tx, eventType string, of owner, object any, c *call) error {
	var request, key sql.NullString
	if c != nil {
		request, key = optionalText(c.requestID), optionalText(c.key)
	}
	d := s.delivery(eventType)
	_, err := tx.ExecContext(ctx, `
		WITH event AS (
			INSERT INTO stripesim.events (id, type, object, request_id, idempotency_key, account, livemode)
			VALUES ($1, $2, $3, $4, $5, $10, $11) RETURNING id
		)
		INSERT INTO stripesim.deliveries (event_id, state, due_at, held)
		SELECT id, $6, clock_timestamp() + $7 * interval '1 microsecond', $8 FROM event, generate_series(1, $9)`,
		newID("evt_"), eventType, encode(object), request, key, d.state, d.delay.Microseconds(), d.reordered, d.copies,
		of.account, of.live)
	return err
}

const eventColumns = `e.id, e.type, e.object, e.request_id, e.idempotency_key, e.created_at, e.livemode,
	(SELECT count(*) FROM stripesim.deliveries d WHERE d.event_id = e.id AND d.state <> 'delivered')`

func scanEvent(row interface{ Scan(...any) error }) (eventObject, error) {
	e := eventObject{Object: "event", APIVersion: stripe.APIVersion}
	var object []byte
	var createdAt time.Time
	err := row.Scan(&e.ID, &e.Type, &object, &e.Request.ID, &e.Request.IdempotencyKey, &createdAt, &e.Livemode, &e.PendingWebhooks)
	e.Data.Object, e.Created = object, createdAt.Unix()
	return e, err
}

// position returns the seq of an object, as the exclusive upper bound of the next page. The id "" stands for the first
// page. noun is what Stripe calls the object in messages.
func position(ctx context.Context, tx *sql.Tx, noun, id string) (int64, error) {
	if id == "" {
		return math.MaxInt64, nil
	}
	var seq int64
	err := tx.QueryRowContext(ctx, `SELECT seq FROM stripesim.`+strings.TrimPrefix(noun, "checkout.")+`s WHERE id = $1`, id).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, missing(noun, id, "starting_after")
	}
	return seq, err
}
