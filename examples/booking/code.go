package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
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
	codesAtOnce = 20              // in a batch of the worker, which has 8 s for it
	codeRetry   = 5 * time.Second // after a code could not be sent
)

// message is what a customer is sent.
type message struct {
	ID, CustomerID uuid.UUID // of the booking, and of its customer
	Code           string
}

// sender sends a message. A message is sent again if the process dies before it has stored that it was sent.
type sender func(ctx context.Context, m message) error

// logMessage returns a sender that only writes to the log. A service whose customers have addresses has another one.
func logMessage(log *slog.Logger) sender {
	return func(ctx context.Context, m message) error {
		log.InfoContext(ctx, "a customer is sent a code", "code", m.Code, "booking", m.ID, "customer", m.CustomerID)
		return nil
	}
}

// The code of a booking that has ended is not owed any more.
const (
	messageSQL = `
		SELECT id, customer_id, code FROM bookings
		WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN code_due_at IS NOT NULL END`
	sentSQL = `UPDATE bookings SET code_due_at = NULL WHERE id = $1`
)

// codes describes the codes that are owed, as rows that time out when they are due: then they are sent, one by one.
func codes(db *gorm.DB, send sender, log *slog.Logger) timeout.Rows {
	ask := func(ctx context.Context, ids []uuid.UUID, _ timeout.Caller) ([]timeout.Result, error) {
		var owed []message
		if _, err := postgres.Scan(ctx, db, &owed, messageSQL, ids); err != nil {
			return nil, fmt.Errorf("read the codes that are owed: %w", err)
		}
		states := map[uuid.UUID]timeout.RowState{}
		for _, m := range owed {
			if ctx.Err() != nil { // the rest is sent by a later call
				return nil, ctx.Err()
			}
			err := send(ctx, m)
			if err == nil {
				err = db.WithContext(ctx).Exec(sentSQL, m.ID).Error
			}
			states[m.ID] = timeout.TimedOut
			if err != nil {
				log.WarnContext(ctx, "a code may not have been sent; it is sent again", "booking", m.ID, "error", err)
				states[m.ID] = timeout.NotDue
			}
		}
		results := make([]timeout.Result, len(ids))
		for i, id := range ids {
			state := cmp.Or(states[id], timeout.AlreadyEnded)
			results[i] = timeout.Result{ID: id.String(), State: state, Left: codeRetry}
		}
		return results, nil
	}
	return timeout.Rows{Table: "bookings", Due: "code_due_at", Ask: ask}
}
