package order

// The statements, for the tests that look at their plans.
var (
	CancelDueSQL = cancelDueSQL
	PendingSQL   = pendingSQL
	OverdueSQL   = overdueSQL
	LatenessSQL  = latenessSQL
)

// Cancellable things that are not for other packages.
var (
	Unavailable = unavailable
	Problems    = problems
)
