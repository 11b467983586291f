// Package shop builds the service: [New] is its composition root, and the table of contents of the program.
package shop

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/live"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/remind"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/timeout"
	"example.com/shop/internal/trace"
	"example.com/shop/migrations"
	"example.com/shop/web"
)

// New returns a process of the service, which is connected to its servers. more are parts that only this process has.
func New(
	ctx context.Context, cfg app.Config, o *Options, log *slog.Logger, more ...app.Part,
) (p *app.Process, err error) {
	b, err := app.Connect(ctx, cfg, trace.Logger(log))
	if err != nil {
		return nil, err
	}
	defer b.CloseOnError(&err)
	if err := checkModules(ctx, b); err != nil {
		return nil, err
	}
	store := order.NewStore(b.DB)
	tracer, err := trace.New(b, "shop", store.Spans)
	if err != nil {
		return nil, err
	}

	// The queue has the tasks that cancel orders. The publisher adds a task after the commit that wrote it into the
	// outbox, and the relay adds what the publisher has left there.
	queue, err := delay.NewQueue(b.Redis, order.CancelKind, b.QueueShards)
	if err != nil {
		return nil, err
	}
	outbox := delay.NewOutbox(b.Pool, order.CancelKind)
	publisher := delay.NewPublisher(queue, outbox, b.Log, b.Metrics)
	relay := delay.NewRelay(queue, outbox, b.Log, b.Metrics)

	notifications := live.New(b, NotificationNames)
	reminders, err := remind.New(b, RemindersOf(o.Order, notifications.Changed))
	if err != nil {
		return nil, err
	}
	orders := order.NewService(store, publisher, order.Config{
		Options: o.Order, Changed: notifications.Changed, Placed: reminders.Created,
		SpanOf: tracer.Span, BeginBatch: tracer.Batches("place orders"),
	}, b.Log, b.Metrics)

	// The worker times out the orders whose tasks are due, and the reconciler what the worker has left.
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
	pages, err := web.Part()
	if err != nil {
		return nil, err
	}
	parts := append(app.Parts{
		tracer.Part(), notifications.Part(customers), reminders.Part(), orders.Part(customers), pages,
	}, more...)
	parts = append(parts, ops.Part(b, o.Ops, kinds, parts, orders.Where))
	return app.New(b, kinds, parts...)
}

// NotificationNames are the names of the notifications of the pages.
var NotificationNames = live.Names{Channel: "order:feed", Row: "order", Broadcast: "products"}

// Customers returns the tokens of the customers, or nil if the process does not serve the API.
func (o *Options) Customers(b *app.Base) (*rest.Tokens, error) {
	if !b.Has(app.API) {
		return nil, nil
	}
	customers, err := NewTokens(o.TokenKey)
	if err != nil {
		return nil, app.Usage(err)
	}
	return customers, nil
}

// checkModules returns an error if a process with these roles must not use the database, because the database has the
// schema of another module. Orders may have to be paid in that module, and an API without the module would give goods
// away. The other roles may use the database, because they treat orders as in every program.
func checkModules(ctx context.Context, b *app.Base) error {
	others, err := migrations.OtherModules(ctx, b.Pool)
	if err != nil || len(others) == 0 {
		return err
	}
	modules := strings.Join(others, " and ")
	if b.Has(app.API) {
		return fmt.Errorf("the database has the schema of %[1]s, which this program lacks: with the role api it would "+
			"let customers pay orders at once that must be paid elsewhere: run the program that has %[1]s, or set "+
			"%[2]s to another database", modules, app.OptionName("database-url"))
	}
	b.Log.Warn("the database has the schema of a module that this program lacks; "+
		"its tables and tasks are left to the program that has it", "module", modules)
	return nil
}
