package refund

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

var (
	//go:embed retry.sql
	retrySQL string
	//go:embed outside.sql
	outsideSQL string
)

// notifier tells open pages that an order of a customer, or one of its payments, has changed.
type notifier interface {
	Notify(customer, order string)
}

// Service returns money at the provider that did not pay an order.
type Service struct {
	db       *gorm.DB
	provider *provider.Calls
	notify   notifier
	log      *slog.Logger
}

// NewService returns the refunds of a database.
func NewService(db *gorm.DB, calls *provider.Calls, notify notifier, log *slog.Logger) *Service {
	return &Service{db: db, provider: calls, notify: notify, log: log}
}

// Rows describes the rows of [Kind].
func (r *Service) Rows() reconcile.Rows {
	return check.Rows(r.db, "refunds", r.send)
}

// Retry sends a failed refund again, for an operator.
func (r *Service) Retry(ctx context.Context, id uuid.UUID) error {
	_, err := r.decide(ctx, retrySQL, id, Kind)
	return err
}

// SettleOutside records that an operator has settled a failed refund outside of the provider, for example by a
// transfer. Nothing moves the refund after that.
func (r *Service) SettleOutside(ctx context.Context, id uuid.UUID, actor, note string) error {
	settled, err := r.decide(ctx, outsideSQL, id, note, actor)
	if err != nil {
		return err
	}
	r.log.WarnContext(ctx, "a failed refund was settled outside of the payment provider",
		"refund", id, "order_id", settled.OrderID, "actor", actor, "note", note)
	return nil
}

// decision is the row that the statements of an operator's decisions about failed refunds return.
type decision struct {
	Found      bool
	Moved      bool // false, and the fields below are zero: the refund had not failed
	OrderID    uuid.UUID
	CustomerID uuid.UUID
}

// decide moves a failed refund by a statement, whose first argument is the id of the refund.
func (r *Service) decide(ctx context.Context, statement string, id uuid.UUID, args ...any) (d decision, err error) {
	_, err = postgres.Scan(ctx, r.db, &d, statement, append([]any{id}, args...)...)
	switch {
	case err != nil:
		return d, rest.OutcomeUnknown(fmt.Errorf("decide about refund %s: %w", id, err), "Look at the state of the refund.")
	case !d.Found:
		return d, rest.NotFound.Errorf("There is no refund %s.", id)
	case !d.Moved:
		return d, NotFailed.Errorf(
			"The refund %s has not failed. It has ended in another way, or is sent without your help.", id)
	}
	r.notify.Notify(d.CustomerID.String(), d.OrderID.String())
	return d, nil
}
