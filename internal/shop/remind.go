package shop

import (
	_ "embed"

	"example.com/shop/internal/order"
	"example.com/shop/internal/remind"
)

// remindKind is the kind of the tasks that remind customers of the deadlines of their orders. The id of a task is the
// id of its order.
const remindKind = "order.remind"

// remindSQL is the statement that package remind needs for orders. It adds the event of the reminder to the trail of an
// order.
//
//go:embed remind.sql
var remindSQL string

// RemindersOf configures the reminders of orders. notify is called after a reminder.
func RemindersOf(o order.Options, notify func(customer, order string)) remind.Config {
	return remind.Config{Kind: remindKind, Timeout: o.OrderTimeout, Statement: remindSQL, Notify: notify}
}
