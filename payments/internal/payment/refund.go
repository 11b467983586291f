package payment

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
)

var (
	//go:embed refund_pending.sql
	refundPendingSQL string
	//go:embed refund_left.sql
	refundLeftSQL string
	//go:embed refund_retry.sql
	refundRetrySQL string
	//go:embed refund_outside.sql
	refundOutsideSQL string
)

// RefundKind is the kind of the tasks that send refunds. The id of a task is the id of a refund.
const RefundKind = "refund.send"

// NotFailed is the class of the error about a refund that an operator cannot move.
var NotFailed = rest.Class{Code: "not-failed", Status: http.StatusConflict, Title: "Refund has not failed"}

// Reason is why a success does not pay its order, so that succeed.sql owes a refund of it.
type Reason string

// The reasons of refunds.
const (
	Late      Reason = "late"      // the order was cancelled, its hold had ended, or the attempt was closed before
	Duplicate Reason = "duplicate" // another payment has paid the order
	Mismatch  Reason = "mismatch"  // the amount or the currency is not that of the order
)

// Refund is the refund of an attempt whose success did not pay the order: of all of its money.
type Refund struct {
	State       RefundState `json:"state"`
	Reason      Reason      `json:"reason"`
	AmountCents int64       `json:"amount_cents"`
	EndedAt     *time.Time  `json:"ended_at,omitempty"`
}

// refundPublisher publishes messages whose outbox rows are committed. See [delay.Publisher].
type refundPublisher interface {
	Publish(ctx context.Context, msgs ...delay.Message) bool
}

// refundNotifier tells open pages that an order of a customer, or one of its payments, has changed.
type refundNotifier interface {
	Notify(customer, order string)
}

// Refunds returns money at the provider that did not pay an order.
type Refunds struct {
	db       *gorm.DB
	tasks    delay.TaskRows
	provider *Calls
	publish  refundPublisher // of [RefundKind]
	notify   refundNotifier
	log      *slog.Logger
	reasons  *prometheus.CounterVec
}

// NewRefunds returns the refunds of a database. It registers their metric with reg.
func NewRefunds(
	db *gorm.DB, tasks delay.TaskRows, calls *Calls, publish refundPublisher, notify refundNotifier,
	log *slog.Logger, reg prometheus.Registerer,
) *Refunds {
	reasons := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "payment_refunds_owed_total",
		Help: "Refunds owed for payments that did not pay their orders, by reason: late, duplicate or mismatch.",
	}, []string{"reason"})
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, reason := range []Reason{Late, Duplicate, Mismatch} {
		reasons.WithLabelValues(string(reason))
	}
	return &Refunds{db: db, tasks: tasks, provider: calls, publish: publish, notify: notify, log: log, reasons: reasons}
}

// Rows describes the rows of [RefundKind].
func (r *Refunds) Rows() reconcile.Rows {
	return checkedRows(r.db, refundPendingSQL, refundLeftSQL, r.send)
}

// owed counts a refund that succeed.sql has stored, and publishes its task.
func (r *Refunds) owed(ctx context.Context, id uuid.UUID, reason Reason, dueAt, serverTime time.Time) {
	r.reasons.WithLabelValues(string(reason)).Inc()
	r.publish.Publish(ctx, delay.At(id.String(), dueAt, serverTime))
}

// Retry sends a failed refund again, for an operator.
func (r *Refunds) Retry(ctx context.Context, id uuid.UUID) error {
	again, err := r.decide(ctx, refundRetrySQL, id, r.tasks.RowKind(RefundKind))
	if err != nil {
		return err
	}
	r.publish.Publish(ctx, delay.At(id.String(), again.DueAt, again.ServerTime))
	return nil
}

// SettleOutside records that an operator has settled a failed refund outside of the provider, for example by a
// transfer. Nothing moves the refund after that.
func (r *Refunds) SettleOutside(ctx context.Context, id uuid.UUID, actor, note string) error {
	settled, err := r.decide(ctx, refundOutsideSQL, id, note, actor)
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
func (r *Refunds) decide(ctx context.Context, statement string, id uuid.UUID, args ...any) (d decision, err error) {
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
