package payment

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// returned takes the live attempt of a customer's order for a check, unless the customer has returned less than 10 s ago:
// then a is nil. It reports whether the customer has such an order.
func (s *Store) returned(ctx context.Context, customer, orderID uuid.UUID) (a *taken, found bool, err error) {
	var row struct {
		Attempt taken `gorm:"embedded"`
		Taken   bool
	}
	found, err = s.row(ctx, &row, returnedSQL, orderID, customer, maxCreating.Microseconds())
	if err != nil {
		return nil, false, fmt.Errorf("check the payment of order %s: %w", orderID, err)
	}
	if row.Taken {
		a = &row.Attempt
	}
	return a, found, nil
}
