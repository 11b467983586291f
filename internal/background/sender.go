// Package background has what a process does beside its requests. [Every] calls a job again and again. A [Sender] sends
// items that may be lost, such as notifications, so that no caller waits until they are sent.
package background

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config configures a [Sender].
type Config[T any] struct {
	What string // what is sent, in the plural, for the log
	// Send sends one batch, whose items may be sent twice. Its context ends after a second, and not when the process
	// stops.
	Send     func(ctx context.Context, batch []T) error
	Waiting  int                // the most items that wait in memory; further ones are lost
	Batch    int                // the most items of one batch
	Interval time.Duration      // the pause after each batch, in which items gather; may be 0
	Lost     prometheus.Counter // counts the items that were not sent
}

// Sender sends items in batches while [Sender.Run] runs. A crash loses the items that wait.
type Sender[T any] struct {
	cfg     Config[T]
	waiting chan T
	log     *slog.Logger
	failing bool // the last batch was lost; only Run uses it
}

// NewSender returns a sender.
func NewSender[T any](cfg Config[T], log *slog.Logger) *Sender[T] {
	return &Sender[T]{cfg: cfg, waiting: make(chan T, cfg.Waiting), log: log}
}

// Add queues an item, and returns at once. If too many items wait already, it drops this one.
func (s *Sender[T]) Add(item T) {
	select {
	case s.waiting <- item:
	default:
		s.cfg.Lost.Inc()
	}
}

// Run sends items until ctx ends. Then it sends those that wait; if a batch fails, it drops the others and returns the
// error. End ctx only after the last call of [Sender.Add], because a later item may be lost.
func (s *Sender[T]) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case first := <-s.waiting:
			s.logChange(ctx, s.send(ctx, first))
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.cfg.Interval):
		}
	}
	for len(s.waiting) > 0 {
		if err := s.send(ctx, <-s.waiting); err != nil {
			s.cfg.Lost.Add(float64(len(s.waiting)))
			return err
		}
	}
	return nil
}

// send sends one batch: the first item, and those that wait.
func (s *Sender[T]) send(ctx context.Context, first T) error {
	batch := []T{first}
	for len(batch) < s.cfg.Batch && len(s.waiting) > 0 { // nothing else receives
		batch = append(batch, <-s.waiting)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := s.cfg.Send(ctx, batch)
	if err != nil {
		err = s.cfg.Send(ctx, batch) // the other end may have closed a connection that was idle
	}
	if err != nil {
		s.cfg.Lost.Add(float64(len(batch)))
	}
	return err
}

// logChange logs that sending begins to fail, or succeeds again.
func (s *Sender[T]) logChange(ctx context.Context, err error) {
	failing := err != nil
	if failing == s.failing {
		return
	}
	s.failing = failing
	if failing {
		s.log.WarnContext(ctx, s.cfg.What+" are lost until Redis answers", "error", err)
	} else {
		s.log.InfoContext(ctx, s.cfg.What+" reach Redis again")
	}
}
