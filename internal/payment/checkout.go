package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/option"
	"example.com/shop/internal/rest"
)

//go:embed returned.sql
var returnedSQL string

// CheckoutOptions are the options of the checkouts that customers pay at.
type CheckoutOptions struct {
	CheckoutTime time.Duration `name:"checkout-time" default:"3m" help:"The time after the opening of a checkout in which its customer can pay even if the order's deadline passes meanwhile. 0s: a checkout closes at the deadline."`
}

// Check returns an error if an option has a wrong value.
func (o CheckoutOptions) Check() error {
	if o.CheckoutTime < 0 || o.CheckoutTime > time.Hour {
		return fmt.Errorf("%s is %v, want 0s to 1h", option.Name("checkout-time"), o.CheckoutTime)
	}
	return nil
}

// minClockChange is the least change of the estimate of the provider's clock after which a session is requested again. The
// estimate is exact to about half a second: with a smaller change, the second request would fail like the first.
const minClockChange = 2 * time.Second

// createInTime makes the provider's session of an attempt. The time when it expires was computed by the provider's clock,
// as far as it was known. If it was not, because this is the first call of the process, the provider may refuse the time.
// Its refusal tells its clock: then createInTime moves the time, and tries once more. The provider stores no answer for
// the key of a request with a wrong parameter.
func (s *Service) createInTime(ctx context.Context, a *Attempt) (Session, error) {
	start, before := time.Now(), s.provider.Clock()
	made, err := s.provider.Create(ctx, s.checkout(a))
	change := s.provider.Clock().Sub(before) - time.Since(start)
	if !causeIs(err, BadExpiry) || change.Abs() < minClockChange {
		return made, err
	}
	moved, storeErr := s.store.moveSessionExpiry(ctx, a.ID, a.SessionExpiresAt, change)
	if storeErr != nil || moved == nil {
		return made, err
	}
	again := *a
	again.SessionExpiresAt = *moved
	return s.provider.Create(ctx, s.checkout(&again))
}

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

// Returned has the provider asked about the live attempt of one of a customer's orders, because the customer has come back
// from the checkout. It does nothing if there is no such attempt, or if the customer came back less than 10 s ago.
func (s *Service) Returned(ctx context.Context, customer, orderID uuid.UUID) error {
	kinds, publishers := []string{SettleKind, ConfirmKind}, []publisher{s.publish.Settle, s.publish.Confirm}
	var order struct {
		DueAt      *time.Time // nil: no check is due
		ServerTime time.Time
	}
	found, err := s.store.row(ctx, &order, returnedSQL, orderID, customer, kinds)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(fmt.Errorf("check the payment of order %s: %w", orderID, err), "Repeat the request.")
	case !found:
		return notFound(errNoOrder, orderID)
	case order.DueAt == nil:
		return nil
	}
	for _, p := range publishers {
		p.Publish(ctx, delay.At(orderID.String(), *order.DueAt, order.ServerTime))
	}
	return nil
}
