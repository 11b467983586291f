// Package asynq times out orders with asynq, a task queue on Redis: https://github.com/hibiken/asynq.
//
// An order is a task with the order's id, scheduled for the time when the order is due. asynq keeps scheduled tasks in
// a sorted set. Its server polls that set, moves the tasks that are due to a list, polls the list, and runs a handler
// for each task.
//
// asynq drops the fraction of a second from a task's time, so a task may run up to a second early. This package
// therefore schedules a task for the first whole second at which the order is due. The two intervals of polling delay
// tasks further. A handler gets one task at a time, so each order is cancelled in a transaction of its own.
//
// If a process is killed, its tasks in progress run again some minutes later. Their leases end within 30 seconds, and
// asynq adds a margin of 30 seconds. A server looks for such tasks when it starts and then each minute, so a server
// that starts right after the kill finds them in its second look. A server that was running before may find them a
// minute later. The first retry of a task has a delay of 15 to 44 seconds.
package asynq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hibiken/asynq"

	"example.com/shop/bench/contender"
)

// Contenders has the two variants.
var Contenders = []contender.Info{
	info("asynq, as shipped",
		"the defaults: a task for each CPU, polls every 5 s; due times rounded up to a second",
		asynq.Config{}),
	info("asynq, tuned",
		"64 tasks at a time, polls every 100 ms; due times rounded up to a second",
		asynq.Config{
			Concurrency:              64,
			DelayedTaskCheckInterval: 100 * time.Millisecond,
			TaskCheckInterval:        100 * time.Millisecond,
		}),
}

func info(name, settings string, config asynq.Config) contender.Info {
	return contender.Info{
		Name:     name,
		Way:      "A scheduled task per order in a sorted set of Redis, which a server polls.",
		Source:   "https://github.com/hibiken/asynq/wiki/Getting-Started",
		Settings: settings,
		Servers:  []contender.Server{contender.Redis},
		Lease:    30 * time.Minute, // the default timeout of a task, because a server that lives extends the lease
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return &tasks{
				env:       env,
				config:    config,
				client:    asynq.NewClientFromRedisClient(env.Redis),
				inspector: asynq.NewInspectorFromRedisClient(env.Redis),
			}, nil
		},
	}
}

const (
	taskType  = "order:timeout"
	queueName = "default"
)

// tasks is the contender.
type tasks struct {
	env       contender.Env
	config    asynq.Config
	client    *asynq.Client
	inspector *asynq.Inspector
}

// Schedule enqueues a task for each order, each with a command of its own, because asynq has no bulk call.
func (t *tasks) Schedule(ctx context.Context, orders []contender.Order) error {
	return contender.Each(ctx, 16, orders, func(ctx context.Context, order contender.Order) error {
		err := t.enqueue(ctx, order)
		if errors.Is(err, asynq.ErrTaskIDConflict) {
			return t.move(ctx, order)
		}
		return err
	})
}

func (t *tasks) enqueue(ctx context.Context, order contender.Order) error {
	task := asynq.NewTask(taskType, []byte(order.ID))
	_, err := t.client.EnqueueContext(ctx, task, asynq.TaskID(order.ID), asynq.ProcessAt(roundUp(order.Due)))
	return err
}

// move deletes the order's task, and enqueues another one. asynq refuses to delete a task in progress. That task needs
// no move: its handler finds out that the order is due later.
func (t *tasks) move(ctx context.Context, order contender.Order) error {
	err := t.inspector.DeleteTask(queueName, order.ID)
	if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
		info, infoErr := t.inspector.GetTaskInfo(queueName, order.ID)
		if infoErr == nil && info.State == asynq.TaskStateActive {
			return nil
		}
		return err
	}
	return t.enqueue(ctx, order)
}

// roundUp returns the first whole second that is not before the time.
func roundUp(due time.Time) time.Time { return due.Add(time.Second - 1).Truncate(time.Second) }

// stopTimeout limits how long Run waits for asynq's server to stop. The server pauses for up to one and a half
// intervals between polls of the list, and does not stop during a pause. So it may stop after Run has returned.
const stopTimeout = 900 * time.Millisecond

// Run runs a server. The server itself survives failures of Redis.
func (t *tasks) Run(ctx context.Context, ready func()) error {
	config := t.config
	config.Logger = logger{t.env.Log}
	config.LogLevel = asynq.WarnLevel
	config.ShutdownTimeout = 500 * time.Millisecond
	config.RetryDelayFunc = retryDelay
	config.IsFailure = func(err error) bool { return !isEarly(err) }
	server := asynq.NewServerFromRedisClient(t.env.Redis, config)
	if err := server.Start(asynq.HandlerFunc(t.cancel)); err != nil {
		return fmt.Errorf("start asynq's server: %w", err)
	}
	ready()
	<-ctx.Done()
	contender.Stop(stopTimeout, server.Shutdown)
	return nil
}

// cancel cancels the order of a task. If it returns an error, asynq retries the task.
func (t *tasks) cancel(ctx context.Context, task *asynq.Task) error {
	early, err := t.env.Cancel(ctx, string(task.Payload()))
	if err != nil {
		return err
	}
	if len(early) > 0 {
		return earlyError{early[0].Due}
	}
	return nil
}

// earlyError says that an order is due later. It is not a failure, so asynq does not count it as an attempt.
type earlyError struct{ due time.Time }

func (e earlyError) Error() string { return "the order is due later" }

func isEarly(err error) bool {
	_, early := errors.AsType[earlyError](err)
	return early
}

// retryDelay returns the time until the order is due or, after a failure, asynq's default.
func retryDelay(n int, err error, task *asynq.Task) time.Duration {
	if early, ok := errors.AsType[earlyError](err); ok {
		return max(time.Until(roundUp(early.due)), 0)
	}
	return asynq.DefaultRetryDelayFunc(n, err, task)
}

// logger passes asynq's messages on.
type logger struct{ log *slog.Logger }

func (l logger) Debug(args ...any) { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l logger) Info(args ...any)  { l.log.Info("asynq: " + fmt.Sprint(args...)) }
func (l logger) Warn(args ...any)  { l.log.Warn("asynq: " + fmt.Sprint(args...)) }
func (l logger) Error(args ...any) { l.log.Error("asynq: " + fmt.Sprint(args...)) }

// Fatal ends the process, as asynq's interface demands.
func (l logger) Fatal(args ...any) {
	l.Error(args...)
	os.Exit(1)
}
