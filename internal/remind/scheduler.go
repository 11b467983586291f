package remind

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/background"
	"example.com/shop/internal/delay"
)

// Scheduler schedules the reminders of placed orders in the background, so that a placement does not wait for them. A
// crash loses the reminders that are not scheduled yet.
type Scheduler struct {
	sender *background.Sender[delay.Message]
	lead   time.Duration
}

// NewScheduler returns a scheduler for a queue of the kind [Kind]. lead is the time between a reminder and the
// deadline. [Scheduler.Run] schedules the reminders.
func NewScheduler(queue *delay.Queue, lead time.Duration, log *slog.Logger, reg prometheus.Registerer) *Scheduler {
	return &Scheduler{lead: lead, sender: background.NewSender(background.Config[delay.Message]{
		What:    "reminders",
		Send:    func(ctx context.Context, batch []delay.Message) error { return queue.Schedule(ctx, batch...) },
		Waiting: 8192,
		Batch:   500,
		Timeout: time.Second,
		Lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "order_reminders_dropped_total",
			Help: "Reminders that were not scheduled, because Redis did not answer or too many were waiting.",
		}),
	}, log)}
}

// Add requests the reminder of the order id, which has the time left to its deadline. It returns at once.
func (s *Scheduler) Add(id string, left time.Duration) { s.sender.Add(delay.In(id, left-s.lead)) }

// Run schedules reminders until ctx ends, and then those that wait already.
func (s *Scheduler) Run(ctx context.Context) error { return s.sender.Run(ctx) }
