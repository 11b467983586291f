package refund

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/timeout"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
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
func (r *Service) Rows() timeout.Rows {
	return check.Rows(r.db, "refunds", r.send)
}

// Retry sends a failed refund again, with a new key, for an operator.
func (r *Service) Retry(ctx context.Context, id uuid.UUID) error {
	_, err := r.decide(ctx, id, func(tx *postgres.Tx, now time.Time) {
		tx.Queue(`UPDATE refunds SET state = 'owed', try = try + 1, ended_at = NULL, next_check = $2 WHERE id = $1`, id, now)
		tx.Queue(delay.OweSQL, Kind, id.String(), now)
	})
	return err
}

// SettleOutside records that an operator has settled a failed refund outside of the provider, for example by a
// transfer. Nothing moves the refund after that.
func (r *Service) SettleOutside(ctx context.Context, id uuid.UUID, actor, note string) error {
	order, err := r.decide(ctx, id, func(tx *postgres.Tx, now time.Time) {
		tx.Queue(`
			UPDATE refunds SET state = 'settled_outside', actor = $2, note = $3, ended_at = $4, next_check = NULL
			WHERE id = $1`, id, actor, note, now)
	})
	if err == nil {
		r.log.WarnContext(ctx, "a failed refund was settled outside of the payment provider",
			"refund", id, "order_id", order, "actor", actor, "note", note)
	}
	return err
}

// decide locks a refund, and has write queue the statements of an operator's decision if the refund has failed. It
// returns the id of the order.
func (r *Service) decide(
	ctx context.Context, id uuid.UUID, write func(tx *postgres.Tx, now time.Time),
) (order uuid.UUID, err error) {
	const read = `
		SELECT r.state, a.order_id, o.customer_id, clock_timestamp()
		FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id JOIN orders o ON o.id = a.order_id
		WHERE r.id = $1 FOR UPDATE OF r`
	var customer uuid.UUID
	var rejected error
	err = postgres.Transact(ctx, r.db, func(tx *postgres.Tx) error {
		var state provider.RefundState
		var now time.Time
		rejected = nil
		tx.Queue(read, id).Query(func(rows pgx.Rows) error {
			if !rows.Next() {
				rejected = rest.NotFound.Errorf("There is no refund %s.", id)
				return rows.Err()
			}
			return rows.Scan(&state, &order, &customer, &now)
		})
		if err := tx.Send(ctx); err != nil || rejected != nil {
			return err
		}
		if state != provider.Failed {
			rejected = NotFailed.Errorf(
				"The refund %s has not failed. It has ended in another way, or is sent without your help.", id)
			return nil
		}
		write(tx, now)
		return nil
	})
	switch {
	case err != nil:
		return order, rest.OutcomeUnknown(fmt.Errorf("decide about refund %s: %w", id, err), "Look at the state of the refund.")
	case rejected != nil:
		return order, rejected
	}
	r.notify.Notify(customer.String(), order.String())
	return order, nil
}
