package main

import (
	"context"
	"log/slog"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/live"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/remind"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/timeout"
	"example.com/shop/internal/trace"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/migrations"
	paymentsweb "example.com/shop/payments/web"
	"example.com/shop/web"
)

// newShop returns a process of the shop with payments, which is connected to its servers. It is the composition root of
// this program, as [shop.New] is that of the shop without payments. Without a key of the payment provider the process
// has no payments. more are parts that only this process has.
func newShop(
	ctx context.Context, cfg app.Config, o *shop.Options, pay payment.Options, log *slog.Logger, more ...app.Part,
) (p *app.Process, err error) {
	b, err := app.Connect(ctx, cfg, trace.Logger(log), migrations.Set)
	if err != nil {
		return nil, err
	}
	defer b.CloseOnError(&err)
	if err := pay.CheckPaid(ctx, b); err != nil {
		return nil, err
	}
	store := order.NewStore(b.DB)
	tracer, err := trace.New(b, "shop", store.Spans)
	if err != nil {
		return nil, err
	}

	queue, err := delay.NewQueue(b.Redis, order.CancelKind, b.QueueShards)
	if err != nil {
		return nil, err
	}
	outbox := delay.NewOutbox(b.Pool, order.CancelKind)
	publisher := delay.NewPublisher(queue, outbox, b.Log, b.Metrics)
	relay := delay.NewRelay(queue, outbox, b.Log, b.Metrics)

	notifications := live.New(b, shop.NotificationNames)
	reminders, err := remind.New(b, shop.RemindersOf(o.Order, notifications.Changed))
	if err != nil {
		return nil, err
	}
	configured := order.Config{
		Options: o.Order, Changed: notifications.Changed, Placed: reminders.Created,
		SpanOf: tracer.Span, BeginBatch: tracer.Batches("place orders"),
	}
	if pay.StripeKey != "" && !pay.PayAtOnce {
		configured.NoPayAtOnce, configured.NotChargeable = true, attempt.WhyNotChargeable
	}
	orders := order.NewService(store, publisher, configured, b.Log, b.Metrics)

	rows := orders.Rows()
	table := timeout.NewTable(b.DB, order.CancelKind, rows, b.Log)
	traced := tracer.Timeouts(order.CancelKind, table)
	worker := delay.NewWorker(queue, traced.Handle, delay.WorkerConfig{}, b.Log, b.Metrics)
	reconciler, err := reconcile.New(b.Pool, order.CancelKind, traced, queue, b.Reconcile, b.Log, b.Metrics)
	if err != nil {
		return nil, err
	}
	kinds := app.Kinds{{
		Name: order.CancelKind, Queue: queue, Outbox: outbox, Publisher: publisher, Relay: relay,
		Rows: rows, Table: table, Worker: worker, Reconciler: reconciler,
	}}

	customers, err := o.Customers(b)
	if err != nil {
		return nil, err
	}
	pages, err := web.Part(paymentsweb.Pages...)
	if err != nil {
		return nil, err
	}
	parts := append(app.Parts{
		tracer.Part(), notifications.Part(customers), reminders.Part(), orders.Part(customers), pages,
	}, more...)
	if pay.StripeKey != "" {
		payments, err := payment.New(ctx, b, pay, orders, tracer)
		if err != nil {
			return nil, err
		}
		kinds, parts = append(kinds, payments.Kinds...), append(parts, payments.Part(customers))
	}
	parts = append(parts, ops.Part(b, o.Ops, kinds, parts, orders.Where))
	return app.New(b, kinds, parts...)
}
