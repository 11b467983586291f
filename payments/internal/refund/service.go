package refund

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
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

// publisher publishes messages whose outbox rows are committed. See [delay.Publisher].
type publisher interface {
	Publish(ctx context.Context, msgs ...delay.Message) bool
}

// notifier tells open pages that an order of a customer, or one of its payments, has changed.
type notifier interface {
	Notify(customer, order string)
}

// Service returns money at the provider that did not pay an order.
type Service struct {
	db       *gorm.DB
	provider *provider.Calls
	publish  publisher // of [Kind]
	notify   notifier
	log      *slog.Logger
	reasons  *prometheus.CounterVec
}

// NewService returns the refunds of a database. It registers their metric with reg.
func NewService(
	db *gorm.DB, calls *provider.Calls, publish publisher, notify notifier, log *slog.Logger, reg prometheus.Registerer,
) *Service {
	reasons := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "payment_refunds_owed_total",
		Help: "Refunds owed for payments that did not pay their orders, by reason: late, duplicate or mismatch.",
	}, []string{"reason"})
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, reason := range []Reason{Late, Duplicate, Mismatch} {
		reasons.WithLabelValues(string(reason))
	}
	return &Service{db: db, provider: calls, publish: publish, notify: notify, log: log, reasons: reasons}
}

// Rows describes the rows of [Kind].
func (r *Service) Rows() reconcile.Rows {
	return check.Rows(r.db, "refunds", r.send)
}

// Owed counts a refund that was stored at a time of the database's clock, and publishes its task, which is due.
func (r *Service) Owed(ctx context.Context, id uuid.UUID, reason Reason, at time.Time) {
	r.reasons.WithLabelValues(string(reason)).Inc()
	r.publish.Publish(ctx, delay.At(id.String(), at, at))
}

// Retry sends a failed refund again, for an operator.
func (r *Service) Retry(ctx context.Context, id uuid.UUID) error {
	again, err := r.decide(ctx, retrySQL, id, Kind)
	if err != nil {
		return err
	}
	r.publish.Publish(ctx, delay.At(id.String(), again.DueAt, again.ServerTime))
	return nil
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
	DueAt      time.Time // of a refund that is sent again
	ServerTime time.Time
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
