package order

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/google/uuid"

	"example.com/shop/internal/deadline"
)

//go:embed where.sql
var whereSQL string

// Where returns what operators ask about the order that [Service.Find] finds. For the id "" it returns the orders that
// are overdue for the longest time, at most 20.
func (s *Service) Where(ctx context.Context, id string) (rows []deadline.Row, err error) {
	var order *uuid.UUID
	if id != "" {
		found, ok, err := s.Find(ctx, id)
		if err != nil || !ok {
			return nil, err
		}
		order = &found
	}
	if err := s.store.db.WithContext(ctx).Raw(whereSQL, order, CancelKind).Scan(&rows).Error; err != nil {
		return nil, fmt.Errorf("read where orders are: %w", err)
	}
	return rows, nil
}
