package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// The classes of error that package rest does not declare.
var (
	unknownScreening = rest.Class{
		Code: "unknown-screening", Status: http.StatusUnprocessableEntity, Title: "Unknown screening",
	}
	seatsTaken     = rest.Class{Code: "seats-taken", Status: http.StatusConflict, Title: "Seats taken"}
	tooManySeats   = rest.Class{Code: "too-many-seats", Status: http.StatusConflict, Title: "Too many seats"}
	wrongCode      = rest.Class{Code: "wrong-code", Status: http.StatusUnprocessableEntity, Title: "Wrong code"}
	bookingExpired = rest.Class{Code: "booking-expired", Status: http.StatusConflict, Title: "Booking expired"}
)

// service answers customers. It derives each answer from the state in which a statement has left a booking, so that a
// repeated request gets the same answer.
type service struct {
	store     *store
	publisher interface {
		Publish(ctx context.Context, messages ...delay.Message) bool
	}
}

// create creates a booking. If the customer has created one with the same idempotency key before, create returns it in
// its present state, and replayed is true.
func (s *service) create(ctx context.Context, customer uuid.UUID, w wish) (b *booking, replayed bool, err error) {
	d, err := s.store.create(ctx, customer, w)
	switch {
	case err != nil:
		return nil, false, rest.OutcomeUnknown(notExecuted(err), "Repeat the request with the same Idempotency-Key: "+
			"it then returns the same booking. Without a key, it may create a second one.")
	case d.rejected == nil:
		// The booking and its outbox row are committed. If Publish fails, the relay publishes the row.
		s.publisher.Publish(ctx, delay.At(d.booking.ID.String(), d.booking.ExpiresAt, d.booking.ServerTime))
		return d.booking, false, nil
	case *d.rejected == "exists" && bytes.Equal(d.booking.Fingerprint, w.fingerprint()):
		return d.booking, true, nil
	}
	return nil, false, d.reason(w)
}

// reason returns the error for a wish that was rejected.
func (d *decision) reason(w wish) error {
	switch *d.rejected {
	case "exists":
		return rest.KeyReused.Errorf("The Idempotency-Key belongs to booking %s, which was another wish.", d.booking.ID)
	case "unknown":
		return unknownScreening.Errorf("There is no screening %s, or it has begun.", w.screening)
	case "bound":
		e := tooManySeats.Errorf("You would have too many seats that are not confirmed: confirm a booking first.")
		e.Extensions = map[string]any{"open_bookings": d.open}
		return e
	case "taken":
		return seatsTaken.Errorf("Not all of these seats exist and are free.")
	default:
		return fmt.Errorf("internal inconsistency: create.sql rejects with the unknown reason %q", *d.rejected)
	}
}

func (s *service) get(ctx context.Context, customer, id uuid.UUID) (*booking, error) {
	b, err := s.store.get(ctx, customer, id)
	return b, notFound(err)
}

// confirm confirms a booking before its deadline. It is idempotent.
func (s *service) confirm(ctx context.Context, customer, id uuid.UUID, code string) (*booking, error) {
	b, err := s.store.confirm(ctx, customer, id, code)
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(notFound(err), "Repeat the request: a booking is confirmed once.")
	case b.Code != code:
		return nil, wrongCode.Errorf("This is not the code that the answer to the creation had.")
	case b.Status == "confirmed":
		return b, nil
	default: // expired, or pending past its deadline
		deadline := b.ExpiresAt.UTC().Format(time.RFC3339)
		return nil, bookingExpired.Errorf("The booking was not confirmed by its deadline, %s.", deadline)
	}
}

// notFound replaces errNotFound by the error for the client. It returns any other error, and nil, unchanged.
func notFound(err error) error {
	if errors.Is(err, errNotFound) {
		return rest.NotFound.Errorf("There is no booking with this id.")
	}
	return err
}

// notExecuted replaces the error of a statement that got no turn or no lock in time, and so has changed nothing. It
// returns any other error unchanged.
func notExecuted(err error) error {
	if errors.Is(err, postgres.ErrBusy) || postgres.LockTimedOut(err) {
		return rest.Unavailable.Errorf("Many want these seats. Nothing was changed: repeat the request in a moment.")
	}
	return err
}
