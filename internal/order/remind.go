package order

import _ "embed"

// RemindKind is the kind of the tasks that remind customers of the deadlines of their orders. The id of a task is the
// id of its order.
const RemindKind = "order.remind"

// RemindSQL is the statement that package remind needs for orders. It adds the event of the reminder to the trail of an
// order.
//
//go:embed remind.sql
var RemindSQL string
