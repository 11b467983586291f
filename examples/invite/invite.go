package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
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
	//go:embed schema.sql
	schemaSQL string
	//go:embed create.sql
	createSQL string
	//go:embed accept.sql
	acceptSQL string
	//go:embed expire.sql
	expireSQL string
	//go:embed pending.sql
	pendingSQL string
	//go:embed unknown.sql
	unknownSQL string
)

// store keeps invitations in PostgreSQL. It is a [reconcile.Table]; its Timeouts provide the method TimeOut.
type store struct {
	*delay.Timeouts
	db *gorm.DB
}

var _ reconcile.Table = (*store)(nil)

// errUnknown means that there is no invitation with this id.
var errUnknown = errors.New("there is no invitation with this id")

func (s *store) create(ctx context.Context, email string, timeout time.Duration) (*invitation, error) {
	var i invitation
	err := s.db.WithContext(ctx).Raw(createSQL, keyset.NewID(), email, timeout.Microseconds(), expireKind).Scan(&i).Error
	if err != nil {
		return nil, fmt.Errorf("create invitation: %w", err)
	}
	return &i, nil
}

func (s *store) get(ctx context.Context, id uuid.UUID) (*invitation, error) {
	return s.one(ctx, id, `SELECT *, clock_timestamp() AS server_time FROM invitations WHERE id = ?`)
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

// expire is the TimeOut of [delay.TimeoutTable]. Invitations share no rows, so there is no lock to wait for.
func (s *store) expire(ctx context.Context, ids []string, _ delay.Actor, _ time.Duration) ([]delay.Verdict, error) {
	var rows []struct {
		ID     string
		State  delay.RowState
		LateUs int64
		LeftUs int64
	}
	if err := s.db.WithContext(ctx).Raw(expireSQL, ids).Scan(&rows).Error; err != nil {
		return nil, fmt.Errorf("expire invitations: %w", err)
	}
	verdicts := make([]delay.Verdict, len(rows))
	for i, row := range rows {
		verdicts[i] = delay.Verdict{ID: row.ID, State: row.State, Late: micros(row.LateUs), Left: micros(row.LeftUs)}
	}
	return verdicts, nil
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Pending implements [reconcile.Table]. A cursor is the deadline and the id of the last invitation of a page.
func (s *store) Pending(ctx context.Context, after string, within time.Duration, limit int) ([]delay.Message, string, error) {
	at, id, found := strings.Cut(after, " ")
	if !found {
		at, id = "-infinity", uuid.Nil.String()
	}
	var rows []struct {
		ID        string
		ExpiresAt string
		Micros    int64
	}
	if err := s.db.WithContext(ctx).Raw(pendingSQL, at, id, within.Microseconds(), limit).Scan(&rows).Error; err != nil {
		return nil, "", fmt.Errorf("read pending invitations: %w", err)
	}
	page := make([]delay.Message, len(rows))
	next := ""
	for i, row := range rows {
		page[i] = delay.In(row.ID, micros(row.Micros))
		if i == limit-1 {
			next = row.ExpiresAt + " " + row.ID
		}
	}
	return page, next, nil
}

// Unknown implements [reconcile.Table].
func (s *store) Unknown(ctx context.Context, ids []string) (unknown []string, err error) {
	err = s.db.WithContext(ctx).Raw(unknownSQL, ids).Scan(&unknown).Error
	if err != nil {
		return nil, fmt.Errorf("look for unknown invitations: %w", err)
	}
	return unknown, nil
}
