// Package erasure erases what the service has of a customer, at the customer's request.
//
// An operator's request is stored, and done at once as far as it can be. The orders that must stay for now are erased later, by a
// job in the role reconciler: pending orders after they have ended, and orders of which something is owed after that is settled.
package erasure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

// Orders are the orders of customers.
type Orders interface {
	// RemoveCustomer removes the orders of a customer that need not stay, and the customer's row if no order is left. It
	// returns the number of the orders that are left.
	RemoveCustomer(ctx context.Context, customer uuid.UUID) (left int64, err error)
}

// Service erases customers.
type Service struct {
	db     *gorm.DB
	orders Orders
	log    *slog.Logger
}

// NewService returns a service in a database that [postgres.Open] connected to.
func NewService(db *gorm.DB, orders Orders, log *slog.Logger) *Service {
	return &Service{db, orders, log}
}

// Erasure is the state of a request.
type Erasure struct {
	OrdersLeft int64 `json:"orders_left"` // orders that are erased later; 0: the customer's row is removed, too
}

// Erase erases a customer. It is idempotent. After an error, and while orders are left, [Service.Run] repeats it.
func (s *Service) Erase(ctx context.Context, customer uuid.UUID) (Erasure, error) {
	err := s.db.WithContext(ctx).Exec(`INSERT INTO erasures (customer_id) VALUES ($1) ON CONFLICT DO NOTHING`, customer).Error
	if err != nil {
		return Erasure{}, fmt.Errorf("store the request to erase a customer: %w", err)
	}
	left, err := s.try(ctx, customer)
	return Erasure{left}, err
}

// try erases what can be erased now, and ends the request if nothing is left.
func (s *Service) try(ctx context.Context, customer uuid.UUID) (left int64, err error) {
	left, err = s.orders.RemoveCustomer(ctx, customer)
	if err != nil || left > 0 {
		return left, err
	}
	if err := s.db.WithContext(ctx).Exec(`DELETE FROM erasures WHERE customer_id = $1`, customer).Error; err != nil {
		return 0, fmt.Errorf("end the request to erase a customer: %w", err)
	}
	return 0, nil
}

// every is the time between two attempts at the requests that are left. An order must stay for minutes at least.
const every = time.Minute

// Run tries the requests that are left again, until ctx ends, and then returns nil.
func (s *Service) Run(ctx context.Context) error {
	return reconcile.Every(ctx, every, s.log, func(ctx context.Context) {
		if err := s.TryAll(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "customers could not be erased; the next run tries again", "error", err)
		}
	})
}

// TryAll tries the requests that are left again, the oldest first. After an error with one customer it goes on with the next. It
// stops if the database is away.
func (s *Service) TryAll(ctx context.Context) error {
	var customers []uuid.UUID
	if err := s.db.WithContext(ctx).Raw(`SELECT customer_id FROM erasures ORDER BY requested_at`).Scan(&customers).Error; err != nil {
		return fmt.Errorf("read the requests to erase customers: %w", err)
	}
	var errs []error
	for _, customer := range customers {
		if ctx.Err() != nil {
			break
		}
		_, err := s.try(ctx, customer)
		errs = append(errs, err)
		if postgres.Away(err) {
			break
		}
	}
	return errors.Join(errs...)
}
