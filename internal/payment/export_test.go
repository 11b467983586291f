package payment

// The statements whose plans TestQueryPlans checks.
var (
	OpenSQL          = openSQL
	ReturnedSQL      = returnedSQL
	TakeSQL          = takeSQL
	LeftSQL          = leftSQL
	PendingSQL       = pendingSQL
	CloseSQL         = closeSQL
	SucceedSQL       = succeedSQL
	WebhookSQL       = webhookSQL
	WebhookRefundSQL = webhookRefundSQL
	RefundTakeSQL    = refundTakeSQL
	RefundPendingSQL = refundPendingSQL
	UnsettledSQL     = unsettledSQL
)

// SetCalls replaces the calls to the provider of a service.
func (s *Service) SetCalls(c *Calls) { s.provider = c }
