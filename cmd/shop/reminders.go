package main

import (
	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
)

// addReminders adds the reminders of orders to a process. They are best effort, so they have no outbox and no
// reconciler.
func addReminders(p *app.Process, orders *order.Service) {
	queue := p.NewQueue(order.RemindKind)
	reminders := order.NewReminders(queue, p.Log, p.Metrics)
	orders.RemindWith(reminders)
	p.Go(app.API, reminders.Run)
	p.Work(queue, orders.Remind, delay.WorkerConfig{Loops: 1})
}
