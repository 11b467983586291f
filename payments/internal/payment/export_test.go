package payment

import (
	"context"
	"log/slog"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/reconcile"
)

// The statements whose plans TestQueryPlans checks.
var (
	OpenSQL          = openSQL
	ReturnedSQL      = returnedSQL
	TakeSQL          = takeSQL
	LeftSQL          = leftSQL
	AnsweredSQL      = answeredSQL
	PendingSQL       = pendingSQL
	CloseSQL         = closeSQL
	SucceedSQL       = succeedSQL
	HearSQL          = hearSQL
	WebhookRefundSQL = webhookRefundSQL
	RefundTakeSQL    = refundTakeSQL
	RefundPendingSQL = refundPendingSQL
	UnsettledSQL     = unsettledSQL
	InvariantsSQL    = invariantsSQL
	OrderOfSQL       = orderOfSQL
	BooksSettleSQL   = booksSettleSQL
)

// Attempts returns the table of [SettleKind].
func (s *Service) Attempts() *reconcile.Table {
	return s.table(SettleKind, checkedRows(s.store.db, pendingSQL, leftSQL, s.settle))
}

// Refunds returns the table of [RefundKind].
func (s *Service) Refunds() *reconcile.Table { return s.table(RefundKind, s.refunds.Rows()) }

func (s *Service) table(kind string, rows reconcile.Rows) *reconcile.Table {
	return reconcile.NewTable(s.store.db, kind, rows, nil, s.log)
}

// SetCalls replaces the calls to the provider of a service.
func (s *Service) SetCalls(c *Calls) { s.provider, s.refunds.provider = c, c }

// RetryRefund sends a failed refund again.
func (s *Service) RetryRefund(ctx context.Context, id uuid.UUID) error {
	return s.refunds.Retry(ctx, id)
}

// SettleOutside settles a failed refund outside of the provider.
func (s *Service) SettleOutside(ctx context.Context, id uuid.UUID, actor, note string) error {
	return s.refunds.SettleOutside(ctx, id, actor, note)
}

// OpsRoutesOf adds the operators' API of refunds and of the books to that of a service.
func OpsRoutesOf(ops gin.IRouter, s *Service, books *Reconciliation) {
	s.OpsRoutes(ops)
	opsRoutes(ops, s.refunds, books)
}

// WantedEvents are the types of event that the documentation must name.
var WantedEvents = wantedEvents

// NewGuardedCalls returns calls that are guarded as those of a process with a name and a key.
func NewGuardedCalls(s *Store, p Provider, name, key string, log *slog.Logger, reg prometheus.Registerer) *Calls {
	return NewCalls(p, CallsConfig{
		MayWrite: newGuard(s.db, p, name, modeOf(key), log, reg).mayWrite,
	}, log, reg)
}

// StartGuard returns an error if a process with a name and a key must not start.
func StartGuard(ctx context.Context, s *Store, name, key string) error {
	return newGuard(s.db, Identity(nil), name, modeOf(key), slog.New(slog.DiscardHandler), prometheus.NewRegistry()).start(ctx)
}

// IsBlocked reports whether a call was not made because the process may not write.
func IsBlocked(err error) bool { return isClass(err, Blocked) }

// ClaimBooks reports whether a report of the books is due, and claims it.
func ClaimBooks(ctx context.Context, r *Reconciliation) (due bool, err error) { return r.claim(ctx) }

// DeleteOld deletes old events and reports, at most limit rows in a statement.
func DeleteOld(ctx context.Context, db *gorm.DB, limit int64) error { return deleteOld(ctx, db, limit) }
