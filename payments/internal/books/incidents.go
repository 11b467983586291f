package books

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

// NotUnclaimed is the class of the error about a payment that is kept already, or whose money was returned.
var NotUnclaimed = rest.Class{Code: "not-unclaimed", Status: http.StatusConflict, Title: "Payment is not unclaimed"}

// sessionAge is longer than any session of the provider stays open, by an hour by which its clock may differ.
const sessionAge = 25 * time.Hour

// expireLost expires open sessions of this deployment whose attempts the database does not have, as after a restore:
// their tabs could pay next to a new order. It expires only sessions that an operator has known of, by an incident
// that is closed. Otherwise it opens the incident. It returns the numbers of both.
func (r *Reconciliation) expireLost(ctx context.Context) (expired, waiting int64, err error) {
	since := time.Now().Add(-sessionAge)
	read := func(after string) (provider.Page[provider.Session], error) {
		return r.provider.OpenSessions(ctx, since, after)
	}
	open, _, err := all(ctx, read, func(s provider.Session) string { return s.ID })
	if err != nil {
		return 0, 0, fmt.Errorf("list open sessions: %w", err)
	}
	sessions := map[uuid.UUID]provider.Session{}
	for _, s := range open {
		if id := provider.OptionalID(s.Attempt); id != nil && s.In(r.deployment) {
			sessions[*id] = s
		}
	}
	// Asked after the list, because attempts are committed before their sessions are made. An operator knows the
	// sessions up to the newest that an incident was about, unless an incident is open.
	var lost []struct {
		ID         uuid.UUID
		KnownUntil time.Time
	}
	_, err = r.scan(ctx, &lost, `
		SELECT id, (SELECT max(seen_until) FROM payment_incidents WHERE kind = 'lost_sessions'
			HAVING bool_and(closed_at IS NOT NULL)) AS known_until
		FROM unnest($1::uuid[]) AS id
		WHERE NOT EXISTS (SELECT FROM payment_attempts a WHERE a.id = id.id)`, slices.Collect(maps.Keys(sessions)))
	if err != nil {
		return 0, 0, err
	}
	var newest time.Time
	for _, row := range lost {
		s := sessions[row.ID]
		if s.CreatedAt.After(row.KnownUntil) {
			waiting++
			if s.CreatedAt.After(newest) {
				newest = s.CreatedAt
			}
			continue
		}
		if _, err := r.provider.Expire(ctx, s.ID); err != nil { // the next run tries again
			r.log.WarnContext(ctx, "a lost session was not expired", "session", s.ID, "attempt", s.Attempt, "error", err)
			continue
		}
		expired++
		r.log.WarnContext(ctx, "a lost session was expired: the database does not have its attempt",
			"session", s.ID, "attempt", s.Attempt)
	}
	if waiting == 0 {
		return expired, 0, nil
	}
	detail := fmt.Sprintf("%d open sessions at the provider belong to attempts that the database does not have", waiting)
	if err := r.db.WithContext(ctx).Exec(`
		INSERT INTO payment_incidents (id, kind, detail, seen_until) VALUES ($1, 'lost_sessions', $2, $3)
		ON CONFLICT (kind) WHERE closed_at IS NULL DO UPDATE SET detail = excluded.detail, seen_until = excluded.seen_until`,
		keyset.NewID(), detail, newest).Error; err != nil {
		return 0, 0, fmt.Errorf("open a payment incident: %w", err)
	}
	return expired, waiting, nil
}

// CloseIncident records that an operator has looked at an incident. After the last one, refunds are sent again. After
// one of lost sessions, the next run of the books expires the sessions that were lost before. A repeated call changes
// nothing.
func (r *Reconciliation) CloseIncident(ctx context.Context, id uuid.UUID, actor, note string) error {
	var row struct{ Kind string }
	found, err := r.scan(ctx, &row, `
		WITH closed AS (
			UPDATE payment_incidents SET closed_at = clock_timestamp(), actor = $2, note = $3
			WHERE id = $1::uuid AND closed_at IS NULL
		)
		SELECT kind FROM payment_incidents WHERE id = $1::uuid`, id, actor, note)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Repeat the request.")
	case !found:
		return rest.NotFound.Errorf("There is no incident %s.", id)
	}
	r.log.WarnContext(ctx, "an operator closed a payment incident",
		"incident", id, "kind", row.Kind, "actor", actor, "note", note)
	return nil
}

// Keep records that an operator keeps the money of an unclaimed payment, because its customer has the goods.
// Otherwise the operator returns the money in the provider's dashboard, and the next report finds that.
func (r *Reconciliation) Keep(ctx context.Context, intent, actor, note string) error {
	var row struct{ Found, Kept bool }
	_, err := r.scan(ctx, &row, `
		WITH kept AS (
			UPDATE unclaimed_payments SET kept_at = clock_timestamp(), actor = $2, note = $3
			WHERE intent = $1 AND kept_at IS NULL
			  AND (SELECT sum(net_cents) FROM provider_movements WHERE intent = $1 AND attempt_id IS NULL) > 0
			RETURNING intent
		)
		SELECT EXISTS (SELECT FROM unclaimed_payments WHERE intent = $1) AS found, EXISTS (SELECT FROM kept) AS kept`,
		intent, actor, note)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Look at the payment before you repeat the request.")
	case !row.Found:
		return rest.NotFound.Errorf("The provider's books have no unclaimed payment %s.", intent)
	case !row.Kept:
		return NotUnclaimed.Errorf("The payment %s is kept already, or its money was returned.", intent)
	}
	r.log.WarnContext(ctx, "an operator keeps the money of an unclaimed payment",
		"intent", intent, "actor", actor, "note", note)
	return nil
}
