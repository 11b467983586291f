// Package remind reminds the owners of pending rows before the rows time out.
//
// Reminders are best effort. A task has no outbox row and no reconciler: it is lost if Redis does not answer when the
// row is created, or if Redis is wiped.
package remind

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/background"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// Config says which rows have reminders.
type Config struct {
	Kind    string        // of the tasks; the id of a task is that of its row
	Timeout time.Duration // from the creation of a row to its deadline

	// Statement reminds of those rows of a batch that are pending and have their deadlines within the lead time, each
	// once. $1 is the ids, $2 the lead time in microseconds. It returns for each id:
	//	id, owner
	//	reminded  whether it has reminded the owner
	//	again_us  the microseconds until the task is due again; NULL: the task is done
	Statement string
	Notify    func(owner, row string) // is called after a reminder
}

const maxLead = 5 * time.Minute // the longest time between a reminder and the deadline

// lead returns the time between a reminder and the deadline.
func (c Config) lead() time.Duration { return min(c.Timeout/3, maxLead) }

// Reminders schedules the reminders of a process, and reminds.
type Reminders struct {
	cfg    Config
	queue  *delay.Queue
	sender *background.Sender[delay.Message]
	worker *delay.Worker
}

// New returns the reminders of a process. Its error says that the name of the kind is wrong.
func New(b *app.Base, cfg Config) (*Reminders, error) {
	queue, err := delay.NewQueue(b.Redis, cfg.Kind, b.QueueShards)
	if err != nil {
		return nil, err
	}
	sender := background.NewSender(background.Config[delay.Message]{
		What:    "reminders",
		Send:    func(ctx context.Context, batch []delay.Message) error { return queue.Schedule(ctx, batch...) },
		Waiting: 8192,
		Batch:   500,
		Lost: promauto.With(b.Metrics).NewCounter(prometheus.CounterOpts{
			Name: "reminders_dropped_total",
			Help: "Reminders that were not scheduled, because Redis did not answer or too many were waiting.",
		}),
	}, b.Log)
	worker := delay.NewWorker(queue, Handler(b.DB, cfg, b.Log), delay.WorkerConfig{Loops: 1}, b.Log, b.Metrics)
	return &Reminders{cfg, queue, sender, worker}, nil
}

// Created schedules the reminder of a row that was created, with the time that is left to its deadline. It returns at
// once, and a crash loses the reminders that are not scheduled yet.
func (r *Reminders) Created(id string, left time.Duration) {
	r.sender.Add(delay.In(id, left-r.cfg.lead()))
}

// Part is what reminders add to a process.
func (r *Reminders) Part() app.Part {
	return app.Part{
		Checks: []app.Check{{
			Subject: "reminders", Good: "each key of their queue has the right type", Run: r.queue.CheckKeys,
		}},
		Components: []app.Component{
			{Role: app.API, Run: r.sender.Run, Last: true}, // requests still create rows while the process stops
			{Role: app.Worker, Run: r.worker.Run},
		},
	}
}

// Handler returns the handler of the tasks. A task that came early, for instance because the deadline was extended, is
// due again later. The task of a row that has ended is done.
//
// A task that alone causes an error is dropped, unless the cause is probably outside the task: see [delay.Outage].
func Handler(db *gorm.DB, cfg Config, log *slog.Logger) delay.Handler {
	return func(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
		texts := make([]string, len(tasks))
		for i, task := range tasks {
			texts[i] = task.ID
		}
		ids, _ := keyset.ParseIDs(texts)
		outcomes := make([]delay.Outcome, len(tasks))
		var rows []struct {
			ID, Owner uuid.UUID
			Reminded  bool
			AgainUs   *int64
		}
		_, err := postgres.Scan(ctx, db, &rows, cfg.Statement, ids, cfg.lead().Microseconds())
		switch {
		case postgres.Unavailable(err):
			return nil, delay.Outage(err, postgres.Classify(err) == postgres.Postponed)
		case err != nil && len(tasks) > 1:
			return nil, fmt.Errorf("add reminders: %w", err) // the worker searches for the task that causes the error
		case err != nil:
			log.ErrorContext(ctx, "a reminder was dropped because its row causes an error",
				"id", texts[0], "error", err)
			return outcomes, nil
		}
		for _, row := range rows {
			id := row.ID.String()
			if row.Reminded {
				cfg.Notify(row.Owner.String(), id)
			}
			if row.AgainUs != nil {
				again := time.Duration(max(*row.AgainUs, 0)) * time.Microsecond
				outcomes[slices.Index(texts, id)] = delay.RetryIn(again)
			}
		}
		return outcomes, nil
	}
}
