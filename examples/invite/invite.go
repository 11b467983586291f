package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
)

// expireKind is the kind of the tasks that expire invitations. The id of a task is the id of its invitation.
const expireKind = "invitation.expire"

// invitation is an invitation as clients see it. All times are read from the database's clock.
type invitation struct {
	ID         uuid.UUID  `json:"id"`
	Email      string     `json:"email"`
	Status     string     `json:"status"` // pending, accepted or expired
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	ServerTime time.Time  `json:"server_time"`
}

// Each step of an invitation's life is one statement.
var (
	//go:embed create.sql
	createSQL string
	//go:embed accept.sql
	acceptSQL string
	//go:embed expire.sql
	expireSQL string
	//go:embed invariants.sql
	invariantsSQL string
)

//go:embed openapi.yaml
var contract []byte

// rows describes the invitations that time out, that is, expire. Invitations share no rows.
var rows = timeout.Rows{Table: "invitations", Due: "expires_at", TimeOut: expireSQL}

// part is what invitations add to a process. An invitation expires after timeout.
func part(b *app.Base, expire *app.Kind, timeout time.Duration) app.Part {
	invitations := &store{db: b.DB}
	return app.Part{
		Contract:  [][]byte{contract},
		Routes:    func(root, _ gin.IRouter) { addRoutes(root, invitations, expire.Publisher, timeout) },
		Relations: []string{"invitations", "invitations_pending_deadline"},
		Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
			return app.FindViolations(ctx, b.DB, full, invariantsSQL, bound.Microseconds(), full)
		},
	}
}

// store keeps invitations in PostgreSQL.
type store struct {
	db *gorm.DB
}

// errUnknown means that there is no invitation with this id.
var errUnknown = errors.New("there is no invitation with this id")

func (s *store) create(ctx context.Context, email string, timeout time.Duration) (*invitation, error) {
	var i invitation
	err := s.db.WithContext(ctx).
		Raw(createSQL, keyset.NewID(), email, timeout.Microseconds(), expireKind).Scan(&i).Error
	if err != nil {
		return nil, fmt.Errorf("create invitation: %w", err)
	}
	return &i, nil
}

func (s *store) get(ctx context.Context, id uuid.UUID) (*invitation, error) {
	return s.one(ctx, id, `SELECT id, email, status, created_at, expires_at, ended_at, clock_timestamp() AS server_time
		FROM invitations WHERE id = ?`)
}

// accept returns the invitation in its present state, accepted or not.
func (s *store) accept(ctx context.Context, id uuid.UUID) (*invitation, error) {
	return s.one(ctx, id, acceptSQL)
}

func (s *store) one(ctx context.Context, id uuid.UUID, statement string) (*invitation, error) {
	var i invitation
	err := postgres.RetryDeadlock(func() error { return s.db.WithContext(ctx).Raw(statement, id).Scan(&i).Error })
	switch {
	case err != nil:
		return nil, fmt.Errorf("read or change invitation %s: %w", id, err)
	case i.ID == uuid.Nil:
		return nil, errUnknown
	}
	return &i, nil
}
