package payment

import (
	_ "embed"
	"fmt"

	"github.com/google/uuid"
	"gorm.io/gorm"
)

// The statements of the removal of orders.
var (
	//go:embed removal_lock.sql
	removalLockSQL string
	//go:embed removal.sql
	removalSQL string
)

// PrepareRemoval is the [order.RemovalHook] of payments. It keeps the orders of which something is owed. Of the others it keeps the
// payments with captured money, without their orders.
func PrepareRemoval(tx *gorm.DB, ids []uuid.UUID) (keep []uuid.UUID, err error) {
	var locked, owed []struct{ ID uuid.UUID }
	if err := tx.Raw(removalLockSQL, ids).Scan(&locked).Error; err != nil {
		return nil, fmt.Errorf("lock the payments of old orders: %w", err)
	}
	if err := tx.Raw(removalSQL, ids).Scan(&owed).Error; err != nil {
		return nil, fmt.Errorf("remove the payments of old orders: %w", err)
	}
	for _, row := range owed {
		keep = append(keep, row.ID)
	}
	return keep, nil
}
