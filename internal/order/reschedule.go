package order

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

//go:embed reschedule.sql
var rescheduleSQL string

var rescheduleStatement = named(rescheduleSQL, move{}.arguments(uuid.Nil, Options{}, ""))

// move is a request to move a deadline: a customer extends it by the time in the options, and an operator sets it.
type move struct {
	customer *uuid.UUID
	deadline *time.Time
	reason   *string // of an operator
}

// arguments returns the arguments of reschedule.sql. kind is the kind of the outbox row.
func (m move) arguments(id uuid.UUID, o Options, kind string) map[string]any {
	return map[string]any{
		"id": id, "customer": m.customer, "deadline": m.deadline, "reason": m.reason,
		"extension": o.OrderExtension.Microseconds(), "max_extensions": o.MaxExtensions,
		"least": minDeadline.Microseconds(), "most": maxDeadline.Microseconds(), "kind": kind,
	}
}

func (s *Service) move(ctx context.Context, id uuid.UUID, m move) (*change, error) {
	arguments := m.arguments(id, s.cfg.Options, s.store.RowKind(CancelKind))
	return s.run(ctx, id, rescheduleStatement.text, rescheduleStatement.values(arguments)...)
}

// MaxExtension returns the time by which a customer can extend the deadline of an order in all; 0: not at all.
func (s *Service) MaxExtension() time.Duration {
	return s.cfg.OrderExtension * time.Duration(s.cfg.MaxExtensions)
}

// Extend extends the deadline of an order, before it passes, by the configured time, and at most the configured number
// of times. If the order is held, the end of the hold moves by the same time.
func (s *Service) Extend(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.move(ctx, id, move{customer: &customer})
	if err != nil {
		return nil, rest.OutcomeUnknown(err, "Look at the order before you repeat the request, "+
			"because each request extends the deadline again.")
	}
	if c.Changed {
		s.Notify(customer.String(), id.String())
		return &c.Order, nil
	}
	if err := c.whyNotMovable(); err != nil {
		return nil, err
	}
	if s.cfg.OrderExtension == 0 {
		return nil, NotExtendable.Errorf("Customers cannot extend deadlines in this shop.")
	}
	return nil, NotExtendable.Errorf("The deadline has been extended as often as it can be: %d times.", c.Extensions)
}

// The bounds of the time from now to a deadline that an operator sets. The longer one is also a bound of [Options].
const (
	minDeadline = time.Second
	maxDeadline = maxTimeout
)

// Reschedule moves the deadline of an order for an operator, before the deadline passes, to a time from a second to
// 30 days from now. The reason becomes part of the audit trail. It is idempotent. If the order is held, a later
// deadline moves the end of the hold by the same time, and an earlier one is rejected.
func (s *Service) Reschedule(ctx context.Context, id uuid.UUID, deadline time.Time, reason string) (*Order, error) {
	deadline = deadline.Round(time.Microsecond) // as the database stores it
	c, err := s.move(ctx, id, move{deadline: &deadline, reason: &reason})
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(err, "Repeat the request: it moves the deadline to the same time.")
	case c.Changed:
		s.Notify(c.CustomerID.String(), id.String())
		s.pub.Publish(ctx, delay.At(id.String(), c.DueAt, c.ServerTime)) // it may be due earlier now
		return &c.Order, nil
	}
	if err := c.whyNotMovable(); err != nil {
		return nil, err
	}
	left := deadline.Sub(c.ServerTime)
	switch {
	case deadline.Equal(c.ExpiresAt): // the request is a repetition
		return &c.Order, nil
	case left < minDeadline || left > maxDeadline:
		return nil, rest.InvalidFields(rest.FieldError{Pointer: "/deadline", Detail: fmt.Sprintf(
			"must be from a second to 30 days after the present, which is %s by the database's clock", stamp(c.ServerTime))})
	default:
		return nil, CheckoutOpen.Errorf("The order is held until %s, because its customer is paying it. "+
			"Its deadline, %s, can only be moved to a later time.", stamp(*c.HoldUntil), stamp(c.ExpiresAt))
	}
}

// whyNotMovable returns the reason why the deadline of an order cannot be moved at the time ServerTime, or nil if it
// can.
func (o *Order) whyNotMovable() error {
	switch {
	case o.Status == Paid:
		return AlreadyPaid.Errorf("The order was paid at %s.", stamp(*o.PaidAt))
	case o.CancelReason == ByCustomer:
		return AlreadyCancelled.Errorf("The order was cancelled by its customer at %s.", stamp(*o.CancelledAt))
	case o.Status == Cancelled || !o.ServerTime.Before(o.ExpiresAt):
		return o.tooLate("given another deadline")
	default:
		return nil
	}
}
