package remind_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/remind"
	"example.com/shop/internal/testenv/parttest"
)

// scheduled is a queue that records the tasks. Schedule waits for open, and returns err.
type scheduled struct {
	mu      sync.Mutex
	batches [][]delay.Message
	open    chan struct{} // nil: Schedule does not wait
	err     error
}

func (q *scheduled) Schedule(ctx context.Context, msgs ...delay.Message) error {
	if q.open != nil {
		<-q.open
	}
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("the context has no deadline")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batches = append(q.batches, slices.Clone(msgs))
	return q.err
}

func (q *scheduled) ids() (ids []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range q.batches {
		for _, m := range b {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// dropped returns the number of reminders that were not scheduled.
func dropped(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	return parttest.Counter(t, reg, "order_reminders_dropped_total")
}

// TestRemindersAreScheduledInBatches adds reminders while the queue does not answer. Add does not wait, and the reminders
// that do not fit into the buffer are dropped. Those that wait when the process stops are scheduled.
func TestRemindersAreScheduledInBatches(t *testing.T) {
	const added = 10_000
	queue, reg := &scheduled{open: make(chan struct{})}, prometheus.NewRegistry()
	r := remind.NewScheduler(queue, 0, slog.New(slog.DiscardHandler), reg)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for i := range added {
		r.Add(fmt.Sprint(i), time.Minute)
	}
	lost := dropped(t, reg)
	if lost == 0 || lost > added/2 {
		t.Errorf("%v of %d reminders were dropped, want some, but less than half", lost, added)
	}
	stop()
	close(queue.open)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(queue.ids()); float64(n)+lost != added {
		t.Errorf("%d reminders scheduled and %v dropped, want %d in all", n, lost, added)
	}
	if n := len(queue.batches); n > 100 {
		t.Errorf("%d batches for %d reminders, want at most 100", n, len(queue.ids()))
	}
	if left := queue.batches[0][0].Left(); !ordertest.Near(left, time.Minute) {
		t.Errorf("the first reminder is due in %v, want about a minute", left)
	}
}

// TestRemindersAreDroppedOnError has a queue that fails.
func TestRemindersAreDroppedOnError(t *testing.T) {
	queue, reg := &scheduled{err: errors.New("down")}, prometheus.NewRegistry()
	r := remind.NewScheduler(queue, 0, slog.New(slog.DiscardHandler), reg)
	r.Add("a", 0)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(stopped); err != nil || dropped(t, reg) != 1 {
		t.Errorf("Run returns %v, %v reminders were dropped; want no error and 1", err, dropped(t, reg))
	}
}
