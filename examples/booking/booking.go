package main

import (
	"context"
	_ "embed"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
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

// screening is a screening as everyone sees it.
type screening struct {
	ID       uuid.UUID `json:"id"`
	Title    string    `json:"title"`
	StartsAt time.Time `json:"starts_at"`
	Capacity int       `json:"capacity"` // how many seats it has
	Free     int       `json:"free"`     // how many of them are free

	// FreeSeats has the names of the free seats, in the answer with one screening.
	FreeSeats []string `json:"free_seats,omitempty" gorm:"serializer:json"`
}

//go:embed openapi.yaml
var contract []byte

// rows describes the bookings that time out. To time out a booking means to expire it. Its shared rows are its seats.
var rows = reconcile.Rows{Table: "bookings", Due: "expires_at", TimeOut: expireSQL, Free: freeSQL}

// addBookings adds bookings to a process: their routes, the kind of task that expires them, and their invariants.
func addBookings(p *app.Process, customers *rest.Tokens, o *options) error {
	expire, err := p.NewKind(expireKind)
	if err != nil {
		return err
	}
	bookings := newStore(p.DB, o)
	if p.Redis == nil {
		bookings.WithoutTasks()
	}
	if err := expire.Handle(rows, delay.WorkerConfig{}); err != nil {
		return err
	}
	p.Add(app.Part{
		Contract:  [][]byte{contract, rest.SignUpContract},
		Routes:    func(root, _ gin.IRouter) { addRoutes(root, customers, &service{bookings, expire.Publisher}) },
		Relations: []string{"bookings_idempotency_key", "bookings_pending_deadline", "seats_taken"},
		Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
			return app.FindViolations(ctx, p.DB, full, invariantsSQL, bound.Microseconds(), full)
		},
	})
	return nil
}
