package remind

import (
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
)

// Add adds reminders of orders to a process. timeout is the time from the placement of an order to its deadline, and
// notify tells the pages of a customer that an order has changed. Add returns the function to call when an order was
// placed, with the time that is left to its deadline. Without Redis there are no reminders, and the function is nil.
func Add(
	p *app.Process, timeout time.Duration, notify func(customer, order string),
) (placed func(id string, left time.Duration), err error) {
	if p.Redis == nil {
		return nil, nil
	}
	lead := Lead(timeout)
	queue, err := p.NewQueue(Kind)
	if err != nil {
		return nil, err
	}
	placed, schedule := NewScheduler(queue, lead, p.Log, p.Metrics)
	p.Add(app.Part{Components: []app.Component{
		{Role: app.API, Run: schedule, Last: true}, // requests still place orders while the process stops
	}})
	p.Work(queue, NewService(p.DB, lead, notify, p.Log).Remind, delay.WorkerConfig{Loops: 1})
	return placed, nil
}
