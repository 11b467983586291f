package payment

import (
	"context"
	"fmt"
)

// hear stores an event about a session, and settles the attempt that the session belongs to, unless the event is known or
// tells nothing new. ours reports whether the event names this deployment. hear returns the outcome of the event; "": it was
// stored before.
func (s *Service) hear(ctx context.Context, e Event, ours bool) (outcome string, err error) {
	var row struct {
		Outcome string
		Attempt taken `gorm:"embedded"`
		Taken   bool
	}
	_, err = s.store.row(ctx, &row, hearSQL,
		e.ID, e.Type, optionalID(e.Attempt), e.Session, e.Complete, ours, maxCreating.Microseconds())
	if err != nil {
		return "", fmt.Errorf("store event %s: %w", e.ID, err)
	}
	if row.Taken {
		s.settleNow(ctx, row.Attempt)
	}
	return row.Outcome, nil
}
