package remind

import (
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
)

// Orders are the orders whose customers are reminded.
type Orders interface {
	// OnPlaced makes the orders call placed after each placement, with the time that is left to the order's deadline.
	OnPlaced(placed func(id string, left time.Duration))
	// Timeout returns the time from the placement of an order to its deadline.
	Timeout() time.Duration
	// Notify tells the pages of a customer that an order has changed.
	Notify(customer, order string)
}

// Add adds reminders to a process. Without Redis there are none.
func Add(p *app.Process, orders Orders) {
	if p.Redis == nil {
		return
	}
	lead := Lead(orders.Timeout())
	queue := p.NewQueue(Kind)
	scheduler := NewScheduler(queue, lead, p.Log, p.Metrics)
	orders.OnPlaced(scheduler.Add)
	if p.Has(app.API) {
		p.GoTrailing(scheduler.Run) // requests still place orders while the process stops
	}
	p.Work(queue, NewService(p.DB, lead, orders.Notify, p.Log, p.Metrics).Remind, delay.WorkerConfig{Loops: 1})
}
