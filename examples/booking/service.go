package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// bookingSQL is the end of the statements that return bookings. They name the bookings result, and the present clock.
const bookingSQL = `
	SELECT r.id, r.screening_id, to_json(r.seats) AS seats, r.status, r.code, r.fingerprint,
	       r.created_at, r.expires_at, r.ended_at, clock.at AS server_time
	FROM result r CROSS JOIN clock`

// $1 id · $2 customer id · $3 an idempotency key that also finds the booking, or ""
const getSQL = `WITH clock AS (SELECT clock_timestamp() AS at), result AS (
		SELECT * FROM bookings WHERE customer_id = $2::uuid AND (id = $1::uuid OR idempotency_key = $3::text)
	)` + bookingSQL

//go:embed confirm.sql
var confirmSQL string

// The problems that package rest does not declare.
var (
	unknownScreening = rest.Class{
		Code: "unknown-screening", Status: http.StatusUnprocessableEntity, Title: "Unknown screening",
	}
	seatsTaken     = rest.Class{Code: "seats-taken", Status: http.StatusConflict, Title: "Seats taken"}
	tooManySeats   = rest.Class{Code: "too-many-seats", Status: http.StatusConflict, Title: "Too many seats"}
	wrongCode      = rest.Class{Code: "wrong-code", Status: http.StatusUnprocessableEntity, Title: "Wrong code"}
	bookingExpired = rest.Class{Code: "booking-expired", Status: http.StatusConflict, Title: "Booking expired"}
)

// service keeps bookings in PostgreSQL. It derives each answer from the state in which a statement has left a booking,
// so that a repeated request gets the same answer.
type service struct {
	db          *gorm.DB
	options     *options
	publisher   publisher
	gate        *postgres.Gate    // for creations, which may wait for locks
	turns       *postgres.KeyGate // for creations that need the same screening
	lockTimeout string            // of creations
}

type publisher interface {
	Publish(ctx context.Context, messages ...delay.Message) bool
}

// At most turnsAtATime creations work on a screening or wait for its locks. A creation that waits too long for its
// turn, or for a lock, is rejected, so that a lock on one screening does not stop the bookings of all others.
const (
	turnsAtATime = 3
	longestWait  = 200 * time.Millisecond
)

func newService(db *gorm.DB, o *options, p publisher) *service {
	return &service{
		db: db, options: o, publisher: p, gate: postgres.NewGate(db),
		turns: postgres.NewKeyGate(turnsAtATime, longestWait), lockTimeout: longestWait.String(),
	}
}

func (s *service) get(ctx context.Context, customer, id uuid.UUID) (*booking, error) {
	return s.one(ctx, getSQL, id, customer, "")
}

// confirm confirms a booking before its deadline. It is idempotent.
func (s *service) confirm(ctx context.Context, customer, id uuid.UUID, code string) (*booking, error) {
	b, err := s.one(ctx, confirmSQL+bookingSQL, id, customer, code)
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(err, "Repeat the request: a booking is confirmed once.")
	case b.Code != code:
		return nil, wrongCode.Errorf("This is not the code that the answer to the creation had.")
	case b.Status == "confirmed":
		return b, nil
	default: // expired, or pending past its deadline
		deadline := b.ExpiresAt.UTC().Format(time.RFC3339)
		return nil, bookingExpired.Errorf("The booking was not confirmed by its deadline, %s.", deadline)
	}
}

// one runs a statement that returns a booking, or no row if the customer has no such booking.
func (s *service) one(ctx context.Context, statement string, args ...any) (*booking, error) {
	var b booking
	found, err := postgres.Scan(ctx, s.db, &b, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("read or change a booking: %w", err)
	}
	if !found {
		return nil, rest.NotFound.Errorf("There is no booking with this id.")
	}
	return &b, nil
}
