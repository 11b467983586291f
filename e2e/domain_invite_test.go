package e2e

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"example.com/shop/internal/testenv/parttest"
)

// This file has what the fault tests know about invitations.

// invitations is the program examples/invite. Invitations share no rows, and have no customers and no idempotency keys.
// The key of an item is a part of its e-mail address.
var invitations = &service{

	program: "invite",
	module:  "..", source: "examples/invite",
	migrate: []string{"migrate"},
	kind:    "invitation.expire",
	timeout: "TIMEOUT",

	contract: sync.OnceValues(func() (*parttest.Contract, error) {
		return parttest.LoadPieces("../internal/app/openapi.yaml", "../internal/ops/openapi.yaml", "../examples/invite/openapi.yaml")
	}),
	collection: "/invitations",
	actions:    map[operation]string{confirm: "accept"},
	create: func(body, key string) request {
		return request{method: http.MethodPost, path: "/invitations", body: `{"email":"` + key + body + `"}`}
	},
	bodies:     []string{"@example.com"},
	decode:     decodeInvitation,
	rejections: map[string]rejection{"/problems/invitation-expired": rejectedLate},

	table: "invitations",
	batch: "email",
	items: `
		SELECT split_part(email, '@', 1) AS key, id, expires_at AS deadline,
		       CASE status WHEN 'expired' THEN ended_at END AS cancelled_at,
		       false AS held, false AS extended, email AS batch,
		       CASE status WHEN 'accepted' THEN 'confirmed' WHEN 'expired' THEN 'timed out' ELSE status END AS status
		FROM invitations`,
	timedOut:         `NEW.status = 'expired'`,
	timeoutStatement: `-- Expires those invitations of a batch%`, // the first words of expire.sql
	blockTimeouts:    `LOCK TABLE invitations IN SHARE MODE`,
	insertBatch: `
		WITH created AS (
			INSERT INTO invitations (id, email, created_at, expires_at)
			SELECT gen_random_uuid(), $1::text, now(), now() + $2 * interval '1 s'
			FROM generate_series(1, $3::bigint)
			RETURNING id, expires_at
		)
		INSERT INTO outbox (kind, task_id, due_at) SELECT 'invitation.expire', id::text, expires_at FROM created`,
}

func decodeInvitation(body []byte) (item, error) {
	var i struct {
		ID        string
		Status    string
		ExpiresAt time.Time `json:"expires_at"`
		EndedAt   time.Time `json:"ended_at"`
	}
	if err := json.Unmarshal(body, &i); err != nil {
		return item{}, err
	}
	decoded := item{state: state{status: status(i.Status), id: i.ID}, deadline: i.ExpiresAt}
	switch i.Status {
	case "accepted":
		decoded.status = confirmed
	case "expired":
		decoded.status, decoded.cancelledAt = timedOut, i.EndedAt
	}
	return decoded, nil
}
