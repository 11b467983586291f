// Package notify times out orders with a timer for the earliest due order. PostgreSQL's LISTEN and NOTIFY tell the
// process with the timer that an earlier order was placed, so that it need not poll.
//
// PostgreSQL delivers notifications only to sessions that listen at the time. So the process reads the earliest due
// time from the table when it starts, after it has cancelled orders, and when it connects again.
//
// A notification can be missing: the placing process died before it sent one, or the connection broke without an
// error. The process does not notice that. An order that is due before all others is then late, until the timer fires.
// Commits that notify wait for each other, because each takes a lock that the whole server shares. So one notification
// announces a batch.
package notify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/pending"
)

// Contenders is the one variant.
var Contenders = []contender.Info{{
	Name:     "LISTEN/NOTIFY + timer",
	Way:      "A process sleeps until the earliest due time in the table, and NOTIFY wakes it for an earlier one.",
	Source:   "https://www.postgresql.org/docs/current/sql-notify.html",
	Settings: "one notification for each batch of placed orders; cancels pages of 500 orders",
	Cannot:   pending.Cannot,
	Loads:    true,
	New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
		return &listener{env: env}, nil
	},
}}

const channel = "bench_order_due"

type listener struct{ env contender.Env }

// Schedule notifies of the earliest due time of the orders.
func (l *listener) Schedule(ctx context.Context, orders []contender.Order) error {
	if len(orders) == 0 {
		return nil
	}
	earliest := orders[0].Due
	for _, order := range orders[1:] {
		earliest = earlier(earliest, order.Due)
	}
	payload := strconv.FormatInt(earliest.UnixMicro(), 10)
	if _, err := l.env.DB.ExecContext(ctx, `SELECT pg_notify($1, $2)`, channel, payload); err != nil {
		return fmt.Errorf("notify of placed orders: %w", err)
	}
	return nil
}

func (l *listener) Run(ctx context.Context, ready func()) error {
	readyOnce := sync.OnceFunc(ready)
	contender.Repeat(ctx, l.env.Log, func(ctx context.Context) error { return l.listen(ctx, readyOnce) })
	return nil
}

// listen cancels orders until ctx ends or the connection fails.
func (l *listener) listen(ctx context.Context, ready func()) error {
	conn, err := pgx.Connect(ctx, l.env.DatabaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ready()
	for {
		next, err := l.cancelDue(ctx)
		if err != nil {
			return err
		}
		if err := wait(ctx, conn, next); err != nil {
			return err
		}
	}
}

// wait returns nil at the earliest of next and the due times in the notifications that arrive meanwhile.
func wait(ctx context.Context, conn *pgx.Conn, next time.Time) error {
	for {
		notified, err := waitForNotification(ctx, conn, next)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		next = earlier(next, notified)
	}
}

// waitForNotification returns the due time in the next notification, or [context.DeadlineExceeded] at the deadline. The
// connection stays usable after the deadline.
func waitForNotification(ctx context.Context, conn *pgx.Conn, deadline time.Time) (time.Time, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	notification, err := conn.WaitForNotification(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("wait for a notification: %w", err)
	}
	micros, err := strconv.ParseInt(notification.Payload, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse the notification: %w", err)
	}
	return time.UnixMicro(micros), nil
}

// cancelDue cancels the orders that are due and returns when to look again.
func (l *listener) cancelDue(ctx context.Context) (next time.Time, err error) {
	again, err := pending.CancelDue(ctx, l.env)
	if err != nil {
		return next, err
	}
	next, err = l.earliest(ctx)
	if err != nil || len(again) == 0 || next.After(time.Now()) {
		return next, err
	}
	// The earliest order may be one that was tried just now. It would be tried again without a pause.
	next = again[0].Due
	for _, order := range again[1:] {
		next = earlier(next, order.Due)
	}
	return next, nil
}

// earliest returns the earliest due time of the pending orders, or a time far away if there are none.
func (l *listener) earliest(ctx context.Context) (time.Time, error) {
	var micros int64
	err := l.env.DB.QueryRowContext(ctx, `
		SELECT coalesce((extract(epoch FROM min(due_at) - clock_timestamp()) * 1000000)::bigint, 86400000000)
		FROM orders
		WHERE status = 'pending'`).Scan(&micros)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the earliest due time: %w", err)
	}
	return time.Now().Add(time.Duration(micros) * time.Microsecond), nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
