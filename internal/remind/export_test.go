package remind

// RemindSQL is the statement whose plans a test checks.
var RemindSQL = remindSQL
