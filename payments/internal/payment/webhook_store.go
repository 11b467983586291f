package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
)

var (
	//go:embed webhook.sql
	webhookSQL string
	//go:embed webhook_refund.sql
	webhookRefundSQL string
	//go:embed forget.sql
	forgetSQL string
)

// received is a row that webhook.sql and webhook_refund.sql return.
type received struct {
	Outcome    string // of the event; "": it was stored before
	Task       string // "": nothing is due
	DueAt      time.Time
	ServerTime time.Time
}

// storeEvent stores an event, and makes the attempt or the refunds that it names due for a check, in one transaction. It
// returns at least one row. kinds are the kinds of the tasks that check an attempt.
func (s *Store) storeEvent(ctx context.Context, h *hint, kinds []string) (rows []received, err error) {
	if h.outcome == "" && h.Intent != "" {
		err = s.rows(ctx, &rows, webhookRefundSQL, h.ID, h.Type, h.Intent, s.RowKind(RefundKind), h.refund, h.ours, h.About)
	} else {
		var outcome any // NULL if ""
		if h.outcome != "" {
			outcome = h.outcome
		}
		err = s.rows(ctx, &rows, webhookSQL, h.ID, h.Type, h.attempt, h.Session, kinds, h.Complete, outcome, h.ours)
	}
	if err != nil {
		return nil, fmt.Errorf("store event %s: %w", h.ID, err)
	}
	return rows, nil
}

// forget ends the checks of a session that is not the attempt's.
func (s *Store) forget(ctx context.Context, id uuid.UUID, session string) error {
	if err := s.db.WithContext(ctx).Exec(forgetSQL, id, session).Error; err != nil {
		return fmt.Errorf("forget the session of attempt %s: %w", id, err)
	}
	return nil
}
