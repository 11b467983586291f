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

// NewScheduler returns a function that requests the reminder of a placed order, and returns at once. run schedules the
// requested reminders in a queue of the kind [Kind] until its context ends, and then those that wait. lead is the time
// between a reminder and the deadline. A crash loses the reminders that are not scheduled yet.
func NewScheduler(queue *delay.Queue, lead time.Duration, log *slog.Logger, reg prometheus.Registerer) (
	placed func(id string, left time.Duration), run func(context.Context) error,
) {
	sender := background.NewSender(background.Config[delay.Message]{
		What:    "reminders",
		Send:    func(ctx context.Context, batch []delay.Message) error { return queue.Schedule(ctx, batch...) },
		Waiting: 8192,
		Batch:   500,
		Timeout: time.Second,
		Lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "order_reminders_dropped_total",
			Help: "Reminders that were not scheduled, because Redis did not answer or too many were waiting.",
		}),
	}, log)
	placed = func(id string, left time.Duration) { sender.Add(delay.In(id, left-lead)) }
	return placed, sender.Run
}
