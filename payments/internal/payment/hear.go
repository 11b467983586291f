package payment

import (
	"context"
	"fmt"
)

// hear stores an event about a session, and settles the attempt that the session belongs to, unless the event is known or
// tells nothing new. It returns the outcome of the event; "": it was stored before.
func (s *Service) hear(ctx context.Context, h *hint) (outcome string, err error) {
	var row struct {
		Outcome string
		Attempt taken `gorm:"embedded"`
		Taken   bool
	}
	_, err = s.store.row(ctx, &row, hearSQL, h.ID, h.Type, h.attempt, h.Session, h.Complete, h.ours, maxCreating.Microseconds())
	if err != nil {
		return "", fmt.Errorf("store event %s: %w", h.ID, err)
	}
	if row.Taken {
		s.settleNow(ctx, row.Attempt)
	}
	return row.Outcome, nil
}
