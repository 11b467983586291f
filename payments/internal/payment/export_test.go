package payment

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

// Webhooks configures the receiver of webhooks.
type Webhooks struct {
	Deployment string
	Live       bool
	Secrets    string
}

// AddRoutes adds all routes of payments.
func AddRoutes(
	root, ops gin.IRouter, tokens *rest.Tokens, db *gorm.DB, attempts *attempt.Service, refunds *refund.Service, books *books.Reconciliation,
	w Webhooks, log *slog.Logger, reg prometheus.Registerer,
) {
	customerRoutes(root, tokens, attempts)
	root.POST(webhookPath, rest.Handle(newReceiver(attempts, w.Deployment, w.Live, w.Secrets, log, reg).receive))
	opsRoutes(ops, func(ctx context.Context) (json.RawMessage, error) { return stats(ctx, db) }, refunds, books)
}

// Invariants returns violations of the invariants of payments.
func Invariants(ctx context.Context, db *gorm.DB, bound time.Duration, full bool) ([]app.Violation, error) {
	return invariants(ctx, db, bound, full)
}

// NewCollector returns the collector of what has not ended, and of the last report of the books.
func NewCollector(db *gorm.DB, books *books.Reconciliation) prometheus.Collector {
	return &collector{db, books}
}

// WantedEvents are the types of event that the documentation must name.
var WantedEvents = provider.WantedEvents

// NewGuardedCalls returns calls that are guarded as those of a process with a name and a key.
func NewGuardedCalls(db *gorm.DB, p provider.Provider, name, key string, log *slog.Logger, reg prometheus.Registerer) *provider.Calls {
	return provider.NewCalls(p, provider.CallsConfig{
		MayWrite: provider.NewGuard(db, p, name, provider.ModeOf(key), log, reg).MayWrite,
	}, log, reg)
}

// StartGuard returns an error if a process with a name and a key must not start.
func StartGuard(ctx context.Context, db *gorm.DB, name, key string) error {
	return provider.NewGuard(db, provider.Identity(nil), name, provider.ModeOf(key), slog.New(slog.DiscardHandler), prometheus.NewRegistry()).Start(ctx)
}

// IsBlocked reports whether a call was not made because the process may not write.
func IsBlocked(err error) bool { return provider.IsClass(err, provider.Blocked) }
