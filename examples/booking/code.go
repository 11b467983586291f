package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
)

// This file sends the code of each booking to its customer. It shows how to owe something: the transaction that makes
// it necessary, create.sql, writes a column that says that it is owed, and the outbox row of a task. A task comes at
// least once, so the column decides whether there is something to do. And the reconciler finds in the column what is
// overdue, so that nothing is lost if Redis is wiped.

// codeKind is the kind of the tasks that send codes. The id of a task is the id of its booking.
const codeKind = "booking.code"

const (
	codesAtOnce = 20               // that a call of the worker or of the reconciler claims, and then sends
	sendTimeout = 3 * time.Second  // of one message
	claimFor    = 20 * time.Second // longer than a claim and its sends take
	callTime    = 8 * time.Second  // after which a call claims no more codes, because the reconciler ends it after 15 s
)

// message is what a customer is sent.
type message struct {
	ID, CustomerID uuid.UUID // of the booking, and of its customer
	Code           string
}

// sender sends a message. A message is sent again if the process dies before it has stored that it was sent, so the
// sender gives the id of the booking to a provider that takes idempotency keys.
type sender func(ctx context.Context, m message) error

// logMessage returns a sender that only writes to the log. A service whose customers have addresses has another one:
// whoever reads the log can confirm the bookings.
func logMessage(log *slog.Logger) sender {
	return func(ctx context.Context, m message) error {
		if !log.Enabled(ctx, slog.LevelWarn) {
			return errors.New("the level of the log hides the code")
		}
		log.WarnContext(ctx, "a customer is sent a code", "code", m.Code, "id", m.ID, "customer", m.CustomerID)
		return nil
	}
}

// code.sql claims what is sent, because the worker and the reconciler may have the same task at the same time.
//
//go:embed code.sql
var claimSQL string

const sentSQL = `UPDATE bookings SET code_due_at = NULL WHERE id = $1`

// codes describes the codes that are owed, as rows that time out when they are due: then they are sent. A code that
// could not be sent is sent again when its claim ends.
func codes(db *gorm.DB, send sender, log *slog.Logger) timeout.Rows {
	c := &outgoing{db, send, log}
	return timeout.Rows{Table: "bookings", Due: "code_due_at", Ask: c.sendDue}
}

// outgoing sends the codes that are owed.
type outgoing struct {
	db   *gorm.DB
	send sender
	log  *slog.Logger
}

// sendDue is the Ask of the rows. The reconciler passes up to a thousand ids. Those for which there is no time are left
// to its next sweep.
func (c *outgoing) sendDue(ctx context.Context, ids []uuid.UUID, _ timeout.Caller) (results []timeout.Result, err error) {
	began := time.Now()
	for some := range slices.Chunk(ids, codesAtOnce) {
		if time.Since(began) > callTime {
			for _, id := range some {
				results = append(results, timeout.Result{ID: id.String(), State: timeout.Locked})
			}
			continue
		}
		sent, err := c.sendSome(ctx, some)
		if err != nil {
			return nil, err
		}
		results = append(results, sent...)
	}
	return results, nil
}

// sendSome claims codes, and sends those that it gets.
func (c *outgoing) sendSome(ctx context.Context, ids []uuid.UUID) ([]timeout.Result, error) {
	var owed []struct {
		Message message `gorm:"embedded"`
		Claimed bool
		LeftUs  int64
	}
	if _, err := postgres.Scan(ctx, c.db, &owed, claimSQL, ids, claimFor.Microseconds()); err != nil {
		return nil, fmt.Errorf("claim the codes that are owed: %w", err)
	}
	results := make([]timeout.Result, len(owed))
	var sends errgroup.Group
	found := map[uuid.UUID]bool{}
	for i, o := range owed {
		id := o.Message.ID
		found[id] = true
		left := time.Duration(o.LeftUs) * time.Microsecond
		switch {
		case o.Claimed:
			sends.Go(func() error { results[i] = c.deliver(ctx, o.Message); return nil })
		case left > 0: // somebody else has claimed it
			results[i] = timeout.Result{ID: id.String(), State: timeout.NotDue, Left: left}
		default:
			results[i] = timeout.Result{ID: id.String(), State: timeout.Locked}
		}
	}
	_ = sends.Wait() // the functions return no errors
	for _, id := range ids {
		if !found[id] {
			results = append(results, timeout.Result{ID: id.String(), State: timeout.AlreadyEnded})
		}
	}
	return results, nil
}

// deliver sends a code, and stores that it was sent, even if ctx has ended meanwhile.
func (c *outgoing) deliver(ctx context.Context, m message) timeout.Result {
	limited, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := c.send(limited, m)
	if err == nil {
		storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
		defer cancel()
		err = c.db.WithContext(storing).Exec(sentSQL, m.ID).Error
	}
	if err != nil {
		c.log.ErrorContext(ctx, "sending a code failed; it is repeated", "id", m.ID, "error", err)
		return timeout.Result{ID: m.ID.String(), State: timeout.NotDue, Left: claimFor}
	}
	return timeout.Result{ID: m.ID.String(), State: timeout.TimedOut}
}
