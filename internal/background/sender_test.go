package background_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"example.com/shop/internal/background"
)

// fakeReceiver receives batches. It is used by one goroutine, unless all others are blocked.
type fakeReceiver struct {
	batches [][]int
	block   time.Duration
	err     error
	closed  bool // the connection was closed while it was idle, so that the next batch fails
}

func (r *fakeReceiver) send(ctx context.Context, batch []int) error {
	if _, ok := ctx.Deadline(); !ok || ctx.Err() != nil {
		return errors.New("want a context with a deadline that has not ended")
	}
	if r.closed {
		r.closed = false
		return io.EOF
	}
	r.batches = append(r.batches, batch)
	<-time.After(r.block)
	return r.err
}

func (r *fakeReceiver) received() (n int) {
	for _, batch := range r.batches {
		n += len(batch)
	}
	return n
}

func newSender(r *fakeReceiver, log *strings.Builder) (*background.Sender[int], prometheus.Counter) {
	lost := prometheus.NewCounter(prometheus.CounterOpts{Name: "lost"})
	return background.NewSender(background.Config[int]{
		What: "numbers", Send: r.send, Waiting: 100, Batch: 30, Interval: time.Millisecond, Lost: lost,
	}, slog.New(slog.NewTextHandler(log, nil))), lost
}

// TestSenderBatches adds items while the receiver does not answer. Add does not wait, and the items beyond those that
// may wait are lost. Those that wait when the process stops are sent.
func TestSenderBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &fakeReceiver{block: time.Hour}
		sender, lost := newSender(receiver, new(strings.Builder))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- sender.Run(ctx) }()
		sender.Add(0)
		synctest.Wait() // the first batch is under way
		for i := range 110 {
			sender.Add(i)
		}
		if n := testutil.ToFloat64(lost); n != 10 {
			t.Errorf("%v items are lost, want the 10 for which there was no space", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := len(receiver.batches); n != 5 || receiver.received() != 101 {
			t.Errorf("%d items were sent in %d batches, want 101 in 5", receiver.received(), n)
		}
	})
}

// TestSenderLosesWhatFails has a receiver that fails for two batches, then closes its connection and succeeds, and then
// fails when the process stops.
func TestSenderLosesWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver, log := &fakeReceiver{err: errors.New("down")}, new(strings.Builder)
		sender, lost := newSender(receiver, log)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- sender.Run(ctx) }()
		send := func(err error) {
			receiver.err = err
			sender.Add(0)
			<-time.After(time.Second)
			synctest.Wait()
		}
		send(receiver.err)
		send(receiver.err)
		receiver.closed = true
		send(nil)
		if n := testutil.ToFloat64(lost); n != 2 {
			t.Errorf("%v items are lost, want 2", n)
		}
		text := log.String()
		if strings.Count(text, "numbers are lost until Redis answers") != 1 ||
			strings.Count(text, "numbers reach Redis again") != 1 {
			t.Errorf("the log is %q, want a line when sending fails and one when it succeeds again", text)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("a sender that has nothing to send ends with %v", err)
		}

		receiver.err = errors.New("away")
		for range 100 {
			sender.Add(0)
		}
		if err := sender.Run(ctx); !errors.Is(err, receiver.err) {
			t.Errorf("a sender that cannot send its last items ends with %v, want %v", err, receiver.err)
		}
		if n := testutil.ToFloat64(lost); n != 102 {
			t.Errorf("%v items are lost, want 102", n)
		}
	})
}
