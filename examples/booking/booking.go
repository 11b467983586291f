package main

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/timeout"
)

// expireKind is the kind of the tasks that expire bookings. The id of a task is the id of its booking.
const expireKind = "booking.expire"

// booking is a booking as its customer sees it. All times are read from the database's clock.
type booking struct {
	ID          uuid.UUID  `json:"id"`
	ScreeningID uuid.UUID  `json:"screening_id"`
	Seats       []string   `json:"seats" gorm:"serializer:json"`
	Status      string     `json:"status"` // pending, confirmed or expired
	Code        string     `json:"-"`      // only the answer to the creation shows it
	Fingerprint []byte     `json:"-"`      // of the creation; nil: it had no idempotency key
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   time.Time  `json:"expires_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	ServerTime  time.Time  `json:"server_time"`
}

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed seed.sql
	seedSQL string
	//go:embed expire.sql
	expireSQL string
	//go:embed free.sql
	freeSQL string
	//go:embed invariants.sql
	invariantsSQL string
	//go:embed openapi.yaml
	contract []byte
)

// rows describes the bookings that time out. To time out a booking means to expire it. Its shared rows are its seats.
var rows = timeout.Rows{Table: "bookings", Due: "expires_at", TimeOut: expireSQL, Free: freeSQL}

// part is what bookings add to a process.
func part(b *app.Base, expire *app.Kind, o *options) (app.Part, error) {
	var customers *rest.Tokens // nil: the process does not serve the API
	if b.Has(app.API) {
		var err error
		customers, err = rest.NewTokens(rest.TokenConfig{
			Key: []byte(o.TokenKey), Issuer: "booking", Audience: "booking-customers",
			Cookie: "booking_token", CookiePath: "/api", SignUp: "sign up with POST /api/customers",
		})
		if err != nil {
			return app.Part{}, app.Usage(err)
		}
	}
	bookings := newService(b.DB, o, expire.Publisher)
	return app.Part{
		Contract:  [][]byte{contract, rest.CustomerContract},
		Routes:    func(root, _ gin.IRouter) { addRoutes(root, customers, bookings) },
		Relations: []string{"bookings_idempotency_key", "bookings_pending_deadline", "seats_taken"},
		Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
			return app.FindViolations(ctx, b.DB, full, invariantsSQL, bound.Microseconds(), full)
		},
	}, nil
}

// createTables creates the tables of bookings, unless they exist. With seed it adds sample screenings.
func createTables(ctx context.Context, db *gorm.DB, seed bool) error {
	statements := schemaSQL
	if seed {
		statements += seedSQL
	}
	if err := db.WithContext(ctx).Exec(statements).Error; err != nil {
		return fmt.Errorf("create the tables of bookings: %w", err)
	}
	return nil
}
