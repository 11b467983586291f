package order

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// RemindKind is the kind of the tasks that remind customers of deadlines. The id of a task is the id of its order.
//
// Reminders are best effort. A task has no outbox row and no reconciler: it is lost if Redis does not answer when the
// order is placed, or if Redis is wiped.
const RemindKind = "order.remind"

//go:embed remind.sql
var remindSQL string

// maxReminderLead is the longest time between a reminder and the deadline.
const maxReminderLead = 5 * time.Minute

// reminderLead returns the time between a reminder and the deadline.
func (s *Service) reminderLead() time.Duration { return min(s.cfg.Timeout/3, maxReminderLead) }

// Remind is the [delay.Handler] of [RemindKind]. It adds the event of the reminder, once, to the trail of each of the
// tasks' orders that is pending shortly before its deadline, and notifies the customer's pages. A task that came early,
// for instance because the deadline was extended, is due again later. The task of an order that has ended is done.
//
// The tasks never become dead letters: while the database is unavailable they are tried again, and a task that alone
// causes an error is dropped.
func (s *Service) Remind(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	reminders, err := s.store.remind(ctx, ids, s.reminderLead())
	switch {
	case postgres.Unavailable(err):
		s.log.WarnContext(ctx, "the database cannot add reminders now; their tasks are postponed", "tasks", len(tasks), "error", err)
		outcomes := make([]delay.Outcome, len(tasks))
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
	outcomes := make([]delay.Outcome, len(tasks))
	for i, id := range ids {
		r := reminders[id] // zero for an id that is no order's: the task is done
		if r.Reminded {
			s.metrics.reminded.Inc()
			s.Notify(r.CustomerID.String(), id)
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

// remind adds the events of reminders, and returns the rows of remind.sql by the ids of their orders.
func (s *Store) remind(ctx context.Context, ids []string, lead time.Duration) (map[string]reminder, error) {
	orders, _ := keyset.ParseIDs(ids)
	var rows []reminder
	_, err := s.row(ctx, &rows, remindSQL, orders, lead.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("add reminders: %w", err)
	}
	byID := make(map[string]reminder, len(rows))
	for _, r := range rows {
		byID[r.ID.String()] = r
	}
	return byID, nil
}

// scheduler is a queue of tasks.
type scheduler interface {
	Schedule(ctx context.Context, msgs ...delay.Message) error
}

// Reminders schedules the reminders of placed orders in the background, so that a placement does not wait for them. A
// crash loses the reminders that are not scheduled yet.
type Reminders struct {
	queue   scheduler
	waiting chan delay.Message
	log     *slog.Logger
	dropped prometheus.Counter
	failing bool // the last batch could not be scheduled; only Run uses it
}

const (
	// remindersWaiting is the number of reminders that can wait to be scheduled. It must hold those that are added while
	// one batch is under way.
	remindersWaiting = 8192
	remindersBatch   = 500
	// reminderBudget limits the time to schedule a batch: a Redis that does not answer must not let the next reminders
	// wait beyond their due times.
	reminderBudget = time.Second
)

// NewReminders returns reminders for a queue of the kind [RemindKind]. [Reminders.Run] schedules them.
func NewReminders(queue scheduler, log *slog.Logger, reg prometheus.Registerer) *Reminders {
	return &Reminders{
		queue: queue, waiting: make(chan delay.Message, remindersWaiting), log: log.With("kind", RemindKind),
		dropped: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "order_reminders_dropped_total",
			Help: "Reminders that were not scheduled, because Redis did not answer or too many were waiting.",
		}),
	}
}

// Add requests the reminder of the order id after the duration in. It returns at once. If too many reminders wait
// already, it drops this one.
func (r *Reminders) Add(id string, in time.Duration) {
	select {
	case r.waiting <- delay.In(id, in):
	default:
		r.dropped.Inc()
	}
}

// Run schedules reminders until ctx ends. Then it schedules those that wait already, and returns nil.
func (r *Reminders) Run(ctx context.Context) error {
	for {
		select {
		case m := <-r.waiting:
			r.schedule(ctx, r.collect(m))
		case <-ctx.Done():
			for len(r.waiting) > 0 {
				r.schedule(ctx, r.collect(<-r.waiting))
			}
			return nil
		}
	}
}

// collect returns a batch of the first message and of those that wait.
func (r *Reminders) collect(first delay.Message) []delay.Message {
	batch := []delay.Message{first}
	for len(batch) < remindersBatch {
		select {
		case m := <-r.waiting:
			batch = append(batch, m)
		default:
			return batch
		}
	}
	return batch
}

// schedule schedules a batch. If Redis does not answer, it drops the batch.
func (r *Reminders) schedule(ctx context.Context, batch []delay.Message) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reminderBudget)
	defer cancel()
	err := r.queue.Schedule(ctx, batch...)
	if err != nil {
		r.dropped.Add(float64(len(batch)))
	}
	if failing := err != nil; failing != r.failing {
		r.failing = failing
		if failing {
			r.log.WarnContext(ctx, "reminders cannot be scheduled and are dropped", "error", err)
		} else {
			r.log.InfoContext(ctx, "reminders are scheduled again")
		}
	}
}
