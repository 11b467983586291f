package payment

import (
	_ "embed"
	"fmt"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/order"
	"example.com/shop/payments/internal/provider"
)

// The statements of the removal of orders, and of the search for one.
var (
	//go:embed removal_lock.sql
	removalLockSQL string
	//go:embed removal_owed.sql
	removalOwedSQL string
	//go:embed removal.sql
	removalSQL string
	//go:embed order_of.sql
	orderOfSQL string
)

// PaymentsOfOrders are the payments that refer to orders. A removed order leaves behind its payments with captured
// money, because the provider may still move that money.
type PaymentsOfOrders struct{}

var _ order.Dependent = PaymentsOfOrders{}

// Owed locks the payments of orders, and returns the orders of which something is owed. A refund is stored with the
// lock of its payment, so none is stored between this answer and the removal.
func (PaymentsOfOrders) Owed(tx *gorm.DB, ids []uuid.UUID) (owed []uuid.UUID, err error) {
	var locked []struct{ ID uuid.UUID }
	if err := tx.Raw(removalLockSQL, ids).Scan(&locked).Error; err != nil {
		return nil, fmt.Errorf("lock the payments of old orders: %w", err)
	}
	if err := tx.Raw(removalOwedSQL, ids).Scan(&owed).Error; err != nil {
		return nil, fmt.Errorf("look for what is owed of old orders: %w", err)
	}
	return owed, nil
}

// Remove takes the orders from the payments with captured money, and deletes the other attempts.
func (PaymentsOfOrders) Remove(tx *gorm.DB, ids []uuid.UUID) error {
	if err := tx.Exec(removalSQL, ids).Error; err != nil {
		return fmt.Errorf("remove the payments of old orders: %w", err)
	}
	return nil
}

// OrderOf returns the order of a payment or refund, by its id, by the provider's, or by that of its session.
func (PaymentsOfOrders) OrderOf(db *gorm.DB, id string) (order uuid.UUID, found bool, err error) {
	var orders []uuid.UUID
	if err := db.Raw(orderOfSQL, id, provider.OptionalID(id)).Scan(&orders).Error; err != nil {
		return uuid.Nil, false, fmt.Errorf("look for the order of a payment: %w", err)
	}
	if len(orders) == 0 {
		return uuid.Nil, false, nil
	}
	return orders[0], true, nil
}
