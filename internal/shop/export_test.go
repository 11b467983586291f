package shop

// The kind and the statement of reminders.
const RemindKind = remindKind

var RemindSQL = remindSQL
