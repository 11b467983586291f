package attempt

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

//go:embed live.sql
var liveSQL string

// live is the row that live.sql returns: an order, and its live attempt, whose ID is zero if there is none.
type live struct {
	Status  order.Status
	PaidAt  *time.Time
	Attempt taken `gorm:"embedded"`
}

// Close has the provider close the checkout of one of a customer's orders, and ends the hold of the order, so that the
// customer can cancel it. It does nothing if the order has no open checkout, and returns [order.AlreadyPaid] if the
// customer has paid. It is idempotent.
//
// If the provider does not answer, nothing has changed in the database, but it may have closed the checkout. Then its
// event, or the next check of the attempt, closes the attempt.
func (s *Service) Close(ctx context.Context, customer, orderID uuid.UUID) error {
	const maxTries = 5 // another session may settle the attempt, or open one, between two statements
	for range maxTries {
		o, err := s.live(ctx, customer, orderID)
		switch {
		case err != nil:
			return err
		case o.Status == order.Paid:
			return order.AlreadyPaid.Errorf("The order was paid at %s.", o.PaidAt.UTC().Format(time.RFC3339))
		case o.Attempt.ID == uuid.Nil:
			return nil
		}
		answer, step, err := s.settleOne(ctx, o.Attempt, provider.ClassExpire, order.Customer)
		switch {
		case err != nil:
			return notClosed(err)
		case step == Wait:
			return whyOpen(answer)
		}
	}
	return order.CheckoutOpen.Errorf("Other requests change the payments of the order. Repeat the request.")
}

// notClosed returns the error for a checkout that could not be closed.
func notClosed(err error) error {
	if _, ok := errors.AsType[*provider.Error](err); !ok {
		return rest.OutcomeUnknown(err, "Repeat the request: a checkout is closed once.")
	}
	class := ProviderAway
	if provider.IsClass(err, provider.Blocked) {
		class = PaymentsBlocked
	}
	return &rest.Error{Class: class, Err: err, Detail: "The payment provider has not answered. " +
		"The order is not cancelled, and may still be paid in its checkout."}
}

// whyOpen returns the reason why a checkout stays open after an answer of the provider.
func whyOpen(a Answer) error {
	switch a {
	case NoSession:
		return order.CheckoutOpen.Errorf("The checkout is being opened. Try again in half a minute.")
	case UnknownSession:
		return order.CheckoutOpen.Errorf("The payment provider does not know the checkout now, so that it cannot be " +
			"closed. The order is cancelled when its hold ends, unless it is paid before.")
	default:
		return PaymentInProgress.Errorf("The payment provider is deciding on a payment of the order. " +
			"The order is paid, or can be cancelled, when it has decided.")
	}
}
