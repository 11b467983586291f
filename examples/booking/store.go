package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed seed.sql
	seedSQL string
	//go:embed lock.sql
	lockSQL string
	//go:embed create.sql
	createSQL string
	//go:embed confirm.sql
	confirmSQL string
	//go:embed expire.sql
	expireSQL string
	//go:embed free.sql
	freeSQL string
	//go:embed screenings.sql
	screeningsSQL string
	//go:embed invariants.sql
	invariantsSQL string
)

// The statements that return bookings end with bookingSQL. They name the bookings result, and the present clock.
const (
	bookingSQL = `
		SELECT r.id, r.screening_id, to_json(r.seats) AS seats, r.status, r.code, r.fingerprint,
		       r.created_at, r.expires_at, r.ended_at, clock.at AS server_time
		FROM result r CROSS JOIN clock`

	// $1 id · $2 customer id · $3 an idempotency key that also finds the booking, or NULL
	getSQL = `WITH clock AS (SELECT clock_timestamp() AS at), result AS (
			SELECT * FROM bookings WHERE customer_id = $2::uuid AND (id = $1::uuid OR idempotency_key = $3::text)
		)` + bookingSQL
)

// createTables creates the tables of bookings, unless they exist. With seed it adds sample screenings.
func createTables(ctx context.Context, db *gorm.DB, seed bool) error {
	statements := []string{schemaSQL}
	if seed {
		statements = append(statements, seedSQL)
	}
	for _, statement := range statements {
		if err := db.WithContext(ctx).Exec(statement).Error; err != nil {
			return fmt.Errorf("create the tables of bookings: %w", err)
		}
	}
	return nil
}

// store keeps bookings in PostgreSQL.
type store struct {
	db          *gorm.DB
	options     *options
	gate        *postgres.Gate    // for statements that may wait for locks
	turns       *postgres.KeyGate // for those of them that need the same screening
	lockTimeout string            // of those statements

	delay.TaskRows
}

// At most turnsAtATime statements work on a screening or wait for its locks. A statement that waits too long for its
// turn, or for a lock, is rejected, so that a lock on one screening does not stop the bookings of all others.
const (
	turnsAtATime = 3
	longestWait  = 200 * time.Millisecond
)

func newStore(db *gorm.DB, o *options) *store {
	return &store{
		db: db, options: o, gate: postgres.NewGate(db), turns: postgres.NewKeyGate(turnsAtATime, longestWait),
		lockTimeout: longestWait.String(),
	}
}

// enter waits for the turn of a statement that may wait for the rows of a screening. After the statement the caller
// must call leave.
func (s *store) enter(ctx context.Context, screening uuid.UUID) (leave func(), err error) {
	leaveTurn, err := s.turns.Enter(ctx, screening.String())
	if err != nil {
		return nil, err
	}
	leaveGate, err := s.gate.Enter(ctx)
	if err != nil {
		leaveTurn()
		return nil, err
	}
	return func() { leaveGate(); leaveTurn() }, nil
}

// errNotFound means that there is no such row, or that it belongs to another customer.
var errNotFound = errors.New("not found")

// one runs a statement that returns a booking.
func (s *store) one(ctx context.Context, statement string, args ...any) (*booking, error) {
	var b booking
	found, err := postgres.Scan(ctx, s.db, &b, statement, args...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read or change a booking: %w", err)
	case !found:
		return nil, errNotFound
	}
	return &b, nil
}

func (s *store) get(ctx context.Context, customer, id uuid.UUID) (*booking, error) {
	return s.one(ctx, getSQL, id, customer, nil)
}

// confirm returns the booking in its present state, confirmed or not.
func (s *store) confirm(ctx context.Context, customer, id uuid.UUID, code string) (*booking, error) {
	return s.one(ctx, confirmSQL+bookingSQL, id, customer, code)
}

// screenings returns the screening with an id and its free seats or, if id is nil, all screenings.
func (s *store) screenings(ctx context.Context, id *uuid.UUID) ([]screening, error) {
	screenings := []screening{}
	_, err := postgres.Scan(ctx, s.db, &screenings, screeningsSQL, id)
	return screenings, err
}
