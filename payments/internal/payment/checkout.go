package payment

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

// minimumJSON is [minimumCents] as an argument of open.sql.
var minimumJSON = func() string {
	text, _ := json.Marshal(minimumCents) // a map of numbers always has a JSON text
	return string(text)
}()

// tooSmall returns the reason why the provider does not charge the total of an order, nil if it does.
func tooSmall(o *order.Order) error {
	if o.TotalCents >= minimumCents[o.Currency] {
		return nil
	}
	return TotalTooSmall.Errorf(
		"The order costs %s, and the payment provider charges no less than %s: cancel the order, and order more.",
		Amount(o.TotalCents, o.Currency), Amount(minimumCents[o.Currency], o.Currency))
}

// Returned asks the provider about the live attempt of one of a customer's orders, because the customer has come back from
// the checkout. It does nothing if there is no such attempt, or if the customer came back less than 10 s ago.
func (s *Service) Returned(ctx context.Context, customer, orderID uuid.UUID) error {
	a, found, err := s.store.returned(ctx, customer, orderID)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Repeat the request.")
	case !found:
		return notFound(errNoOrder, orderID)
	case a != nil:
		s.settleNow(ctx, *a)
	}
	return nil
}
