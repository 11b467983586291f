package remind

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/delay"
)

// queue is where a [Scheduler] schedules tasks, a [delay.Queue].
type queue interface {
	Schedule(ctx context.Context, msgs ...delay.Message) error
}

// Scheduler schedules the reminders of placed orders in the background, so that a placement does not wait for them. A
// crash loses the reminders that are not scheduled yet.
type Scheduler struct {
	queue   queue
	lead    time.Duration
	waiting chan delay.Message
	log     *slog.Logger
	dropped prometheus.Counter
	failing bool // the last batch could not be scheduled; only Run uses it
}

const (
	// maxWaiting is the largest number of reminders that can wait to be scheduled. With fewer, reminders would be dropped
	// that are added while one batch is under way. More would need more memory.
	maxWaiting = 8192
	// maxBatch is the largest number of reminders in a batch. More would keep Redis busy for longer at a time.
	maxBatch = 500
	// batchTimeout is the time limit for the scheduling of a batch. With a longer one the next reminders would wait beyond
	// their due times while Redis does not answer.
	batchTimeout = time.Second
)

// NewScheduler returns a scheduler for a queue of the kind [Kind]. lead is the time between a reminder and the deadline.
// [Scheduler.Run] schedules the reminders.
func NewScheduler(queue queue, lead time.Duration, log *slog.Logger, reg prometheus.Registerer) *Scheduler {
	return &Scheduler{
		queue: queue, lead: lead, waiting: make(chan delay.Message, maxWaiting), log: log.With("kind", Kind),
		dropped: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "order_reminders_dropped_total",
			Help: "Reminders that were not scheduled, because Redis did not answer or too many were waiting.",
		}),
	}
}

// Add requests the reminder of the order id, which has the time left to its deadline. It returns at once. If too many
// reminders wait already, it drops this one.
func (s *Scheduler) Add(id string, left time.Duration) {
	select {
	case s.waiting <- delay.In(id, left-s.lead):
	default:
		s.dropped.Inc()
	}
}

// Run schedules reminders until ctx ends. Then it schedules those that wait already, and returns nil.
func (s *Scheduler) Run(ctx context.Context) error {
	for {
		select {
		case m := <-s.waiting:
			s.schedule(ctx, s.collect(m))
		case <-ctx.Done():
			for len(s.waiting) > 0 {
				s.schedule(ctx, s.collect(<-s.waiting))
			}
			return nil
		}
	}
}

// collect returns a batch of the first message and of those that wait.
func (s *Scheduler) collect(first delay.Message) []delay.Message {
	batch := []delay.Message{first}
	for len(batch) < maxBatch {
		select {
		case m := <-s.waiting:
			batch = append(batch, m)
		default:
			return batch
		}
	}
	return batch
}

// schedule schedules a batch. If Redis does not answer, it drops the batch.
func (s *Scheduler) schedule(ctx context.Context, batch []delay.Message) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	err := s.queue.Schedule(ctx, batch...)
	if err != nil {
		s.dropped.Add(float64(len(batch)))
	}
	if failing := err != nil; failing != s.failing {
		s.failing = failing
		if failing {
			s.log.WarnContext(ctx, "reminders cannot be scheduled and are dropped", "error", err)
		} else {
			s.log.InfoContext(ctx, "reminders are scheduled again")
		}
	}
}
