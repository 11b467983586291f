package remind

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/app"
	"example.com/shop/internal/background"
	"example.com/shop/internal/delay"
)

// Add adds reminders of orders to a process. timeout is the time from the placement of an order to its deadline, and
// notify tells the pages of a customer that an order has changed. Add returns the function to call when an order was
// placed, with the time that is left to its deadline. Without Redis there are no reminders, and the function is nil.
func Add(
	p *app.Process, timeout time.Duration, notify func(customer, order string),
) (placed func(id string, left time.Duration), err error) {
	if p.Redis == nil {
		return nil, nil
	}
	lead := Lead(timeout)
	queue, err := p.NewQueue(Kind)
	if err != nil {
		return nil, err
	}
	placed, schedule := NewScheduler(queue, lead, p.Log, p.Metrics)
	p.Add(app.Part{Components: []app.Component{
		{Role: app.API, Run: schedule, Last: true}, // requests still place orders while the process stops
	}})
	p.Work(queue, NewService(p.DB, lead, notify, p.Log).Remind, delay.WorkerConfig{Loops: 1})
	return placed, nil
}

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
		Lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "order_reminders_dropped_total",
			Help: "Reminders that were not scheduled, because Redis did not answer or too many were waiting.",
		}),
	}, log)
	placed = func(id string, left time.Duration) { sender.Add(delay.In(id, left-lead)) }
	return placed, sender.Run
}
