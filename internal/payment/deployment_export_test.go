package payment

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// NewGuardedCalls returns calls that are guarded as those of a process with a name and a key.
func NewGuardedCalls(s *Store, p Provider, name, key string, log *slog.Logger, reg prometheus.Registerer) *Calls {
	calls := NewCalls(p, Limits{}, log, reg)
	calls.SetGuard(newGuard(s, calls.Account, name, modeOf(key), log, reg).mayWrite)
	return calls
}

// IsBlocked reports whether a call was not made because the process may not write.
func IsBlocked(err error) bool { return isClass(err, Blocked) }

// DeleteOldEvents deletes old events, at most limit in a statement.
func DeleteOldEvents(ctx context.Context, s *Store, limit int64) error {
	return s.deleteOldEvents(ctx, limit)
}
