// Package e2e breaks the program invite under load, with the fault tests of package faulttest.
package e2e

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

func TestMain(m *testing.M) { faulttest.Main(m, invitations) }

func TestInvitationsSurviveCrash(t *testing.T) {
	slow(t)
	faulttest.Crash(t, invitations)
}

func TestInvitationsWithoutRedis(t *testing.T) {
	slow(t)
	faulttest.RedisDown(t, invitations)
}

func TestInvitationsThatCannotExpire(t *testing.T) { faulttest.Stuck(t, invitations) }

func TestInvitationsUnderFaults(t *testing.T) {
	slow(t)
	faulttest.Faults(t, invitations, append(invitations.ProcessFaults(), invitations.RedisFaults()...)...)
}

func TestInvitationsInChaos(t *testing.T) { faulttest.Chaos(t, invitations) }

func TestBrokenInvitations(t *testing.T) { faulttest.Broken(t, invitations, module) }

// slow keeps go test fast in the original, whose own program runs the same tests. A service of your own does not call
// it.
func slow(t *testing.T) { testenv.Slow(t, "an example") }

// module is the directory of the module.
const module = "../../.."

// invitations is the program examples/invite. Invitations share no rows, and have no customers and no idempotency keys.
// The key of a row is a part of its e-mail address.
var invitations = &faulttest.Service{
	Program: "invite",
	Module:  module,
	Source:  "examples/invite",
	Migrate: []string{"migrate"},
	Kind:    "invitation.expire",
	Timeout: "TIMEOUT",

	Contract: sync.OnceValues(func() (*parttest.Contract, error) {
		return parttest.LoadPieces(module+"/internal/app/openapi.yaml", module+"/internal/ops/openapi.yaml", module+"/examples/invite/openapi.yaml")
	}),
	Collection: "/invitations",
	Actions: map[faulttest.Operation]func(row, secret string) faulttest.Request{
		faulttest.Confirm: faulttest.Post("accept"),
	},
	Create: func(body, key string) faulttest.Request {
		return faulttest.Request{Method: http.MethodPost, Path: "/invitations", Body: `{"email":"` + key + body + `"}`}
	},
	Bodies:     []string{"@example.com"},
	Decode:     decodeInvitation,
	Rejections: map[string]faulttest.Rejection{"/problems/invitation-expired": faulttest.RejectedLate},

	Table: "invitations",
	Rows: `
		SELECT split_part(email, '@', 1) AS key, id, expires_at AS deadline, ended_at,
		       CASE status WHEN 'accepted' THEN 'confirmed' WHEN 'expired' THEN 'timed out' ELSE status END AS status
		FROM invitations`,
	InsertBatch: `
		INSERT INTO invitations (id, email, created_at, expires_at)
		SELECT gen_random_uuid(), $1::text, now(), now() + $2 * interval '1 s'
		FROM generate_series(1, $3::bigint)
		RETURNING id`,
}

// decodeInvitation reads an invitation from the body of an answer.
func decodeInvitation(body []byte) (faulttest.Row, error) {
	var i struct {
		ID        string
		Status    string
		ExpiresAt time.Time `json:"expires_at"`
		EndedAt   time.Time `json:"ended_at"`
	}
	if err := json.Unmarshal(body, &i); err != nil {
		return faulttest.Row{}, err
	}
	decoded := faulttest.Row{State: faulttest.State{Status: faulttest.Status(i.Status), ID: i.ID}, Deadline: i.ExpiresAt}
	switch i.Status {
	case "accepted":
		decoded.Status = faulttest.Confirmed
	case "expired":
		decoded.Status, decoded.CancelledAt = faulttest.TimedOut, i.EndedAt
	}
	return decoded, nil
}
