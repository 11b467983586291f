package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
)

//go:embed returned.sql
var returnedSQL string

// moveSessionExpiry moves the time when the session of an attempt that is creating expires, and returns the new time. It
// returns nil if the attempt is in another state, or if the time is not from any more: another request has moved it.
func (s *Store) moveSessionExpiry(ctx context.Context, id uuid.UUID, from time.Time, by time.Duration) (*time.Time, error) {
	var moved struct{ SessionExpiresAt time.Time }
	found, err := s.row(ctx, &moved, `UPDATE payment_attempts SET session_expires_at = session_expires_at + $3::bigint * interval '1 microsecond'
		WHERE id = $1::uuid AND state = 'creating' AND session_expires_at = $2::timestamptz RETURNING session_expires_at`,
		id, from, by.Microseconds())
	switch {
	case err != nil:
		return nil, fmt.Errorf("move the expiry of the session of attempt %s: %w", id, err)
	case !found:
		return nil, nil
	}
	return &moved.SessionExpiresAt, nil
}

// dueCheck is a check of an attempt that the provider is to be asked for now.
type dueCheck struct {
	DueAt      *time.Time // nil: no check is due
	ServerTime time.Time
}

// returned makes the live attempt of a customer's order due for a check, which its tasks of [SettleKind] and [ConfirmKind]
// owe. It returns nil if the customer has no such order.
func (s *Store) returned(ctx context.Context, customer, orderID uuid.UUID) (*dueCheck, error) {
	var check dueCheck
	found, err := s.row(ctx, &check, returnedSQL, orderID, customer, []string{s.RowKind(SettleKind), s.RowKind(ConfirmKind)})
	if err != nil {
		return nil, fmt.Errorf("check the payment of order %s: %w", orderID, err)
	}
	if !found {
		return nil, nil
	}
	return &check, nil
}
