package order

// The statements whose plans TestQueryPlans checks, and which benchmarks execute.
var (
	CancelDueSQL = cancelDueSQL
	PendingSQL   = pendingSQL
	LatenessSQL  = latenessSQL
	CloseSaleSQL = closeSaleSQL
	RemindSQL    = remindSQL
)
