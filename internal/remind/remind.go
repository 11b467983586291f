// Package remind reminds customers of the deadlines of their orders.
//
// Reminders are best effort. A task has no outbox row and no reconciler: it is lost if Redis does not answer when the
// order is placed, or if Redis is wiped.
package remind

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// Kind is the kind of the tasks that remind customers of deadlines. The id of a task is the id of its order.
const Kind = "order.remind"

//go:embed remind.sql
var remindSQL string

// maxLead is the longest time between a reminder and the deadline.
const maxLead = 5 * time.Minute

// Lead returns the time between a reminder and the deadline, for orders with this time from the placement to the
// deadline.
func Lead(timeout time.Duration) time.Duration { return min(timeout/3, maxLead) }

// Service reminds customers.
type Service struct {
	db     *gorm.DB
	lead   time.Duration
	notify func(customer, order string)
	log    *slog.Logger
}

// NewService returns a service for the orders of a database. lead is the time between a reminder and the deadline.
// After a reminder the service calls notify.
func NewService(db *gorm.DB, lead time.Duration, notify func(customer, order string), log *slog.Logger) *Service {
	return &Service{db: db, lead: lead, notify: notify, log: log}
}

// Remind is the [delay.Handler] of [Kind]. It adds the event of the reminder, once, to the trail of each of the
// tasks' orders that is pending shortly before its deadline, and notifies the customer's pages. A task that came
// early, for instance because the deadline was extended, is due again later. The task of an order that has ended is
// done.
//
// No error makes a task a dead letter: while the database is unavailable the tasks are tried again, and a task that
// alone causes an error is dropped.
func (s *Service) Remind(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	outcomes := make([]delay.Outcome, len(tasks))
	reminders, err := s.addEvents(ctx, ids)
	switch {
	case postgres.Unavailable(err):
		s.log.WarnContext(ctx, "the database cannot add reminders now; their tasks are postponed", "tasks", len(tasks), "error", err)
		for i := range outcomes {
			outcomes[i] = delay.RetrySoon(ctx)
		}
		return outcomes, nil
	case err != nil && len(tasks) > 1:
		return nil, err // the worker searches for the task that causes the error
	case err != nil:
		s.log.ErrorContext(ctx, "a reminder was dropped because its order causes an error", "order_id", ids[0], "error", err)
		return []delay.Outcome{delay.Done()}, nil
	}
	for i, id := range ids {
		r := reminders[id] // zero for an id that is no order's: the task is done
		if r.Reminded {
			s.notify(r.CustomerID.String(), id)
		}
		if r.AgainUs != nil {
			outcomes[i] = delay.RetryIn(time.Duration(max(*r.AgainUs, 0)) * time.Microsecond)
		}
	}
	return outcomes, nil
}

// reminder is a row of remind.sql.
type reminder struct {
	ID         uuid.UUID
	CustomerID uuid.UUID
	Reminded   bool   // the statement added the event
	AgainUs    *int64 // the microseconds until the task is due again; nil: the task is done
}

// addEvents adds the events of reminders, and returns the rows of remind.sql by the ids of their orders.
func (s *Service) addEvents(ctx context.Context, ids []string) (map[string]reminder, error) {
	orders, _ := keyset.ParseIDs(ids)
	var rows []reminder
	if _, err := postgres.Scan(ctx, s.db, &rows, remindSQL, orders, s.lead.Microseconds()); err != nil {
		return nil, fmt.Errorf("add reminders: %w", err)
	}
	byID := make(map[string]reminder, len(rows))
	for _, r := range rows {
		byID[r.ID.String()] = r
	}
	return byID, nil
}
