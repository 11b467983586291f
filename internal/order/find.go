package order

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/keyset"
)

// Find returns the order that has an id, or of which another package knows a row by this id. found is false if there is none.
func (s *Service) Find(ctx context.Context, text string) (id uuid.UUID, found bool, err error) {
	db := s.store.db.WithContext(ctx)
	if id, err := keyset.ParseID(text); err == nil {
		if err := db.Raw(`SELECT EXISTS (SELECT FROM orders WHERE id = $1)`, id).Scan(&found).Error; err != nil || found {
			return id, found, wrapFind(err)
		}
	}
	return orderOf(db, s.cfg.Dependents, text)
}

// orderOf returns the order of which another package knows a row by an id.
func orderOf(db *gorm.DB, dependents []Dependent, text string) (id uuid.UUID, found bool, err error) {
	for _, d := range dependents {
		if id, found, err = d.OrderOf(db, text); err != nil || found {
			return id, found, wrapFind(err)
		}
	}
	return uuid.Nil, false, nil
}

func wrapFind(err error) error {
	if err != nil {
		return fmt.Errorf("find an order: %w", err)
	}
	return nil
}
