package attempt

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/timeout"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

// Config configures the service.
type Config struct {
	Grace      time.Duration // from the end of a checkout to the end of the hold of its order
	Checkout   time.Duration // from the opening of an attempt, in which its customer may pay even after the deadline
	Deployment string        // written on sessions and payments, to tell whose they are; see [provider.Owner]
	Pages      string        // the base URL of the shop's pages, where browsers return to from the checkout
}

// Service opens attempts for customers, and settles them for customers, for the provider's webhooks, for the workers
// and for the reconcilers.
type Service struct {
	db       *gorm.DB
	provider *provider.Calls
	orders   *order.Service
	cfg      Config
	log      *slog.Logger
	metrics  metrics
}

// NewService returns a service for the attempts in a database. It registers its metrics with reg.
func NewService(
	db *gorm.DB, calls *provider.Calls, orders *order.Service, cfg Config, log *slog.Logger, reg prometheus.Registerer,
) *Service {
	return &Service{db: db, provider: calls, orders: orders, cfg: cfg, log: log, metrics: newMetrics(reg)}
}

// Rows describes the rows of [Kind].
func (s *Service) Rows() timeout.Rows {
	return check.Rows(s.db, "payment_attempts", s.settle)
}

// one runs a statement that returns at most one row, and returns the row, or nil. what says in an error what it does.
func one[T any](ctx context.Context, db *gorm.DB, what, statement string, args ...any) (*T, error) {
	var row T
	found, err := postgres.Scan(ctx, db, &row, statement, args...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case !found:
		return nil, nil
	}
	return &row, nil
}
