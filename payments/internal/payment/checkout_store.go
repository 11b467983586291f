package payment

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

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

// returned takes the live attempt of a customer's order for a check, unless the customer has returned less than 10 s ago:
// then a is nil. It reports whether the customer has such an order.
func (s *Store) returned(ctx context.Context, customer, orderID uuid.UUID) (a *taken, found bool, err error) {
	var row struct {
		Attempt taken `gorm:"embedded"`
		Taken   bool
	}
	found, err = s.row(ctx, &row, returnedSQL, orderID, customer, maxCreating.Microseconds())
	if err != nil {
		return nil, false, fmt.Errorf("check the payment of order %s: %w", orderID, err)
	}
	if row.Taken {
		a = &row.Attempt
	}
	return a, found, nil
}
