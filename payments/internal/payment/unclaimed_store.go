package payment

import (
	"context"
	_ "embed"
	"fmt"
)

//go:embed unclaimed_claim.sql
var unclaimedClaimSQL string

// unclaimedDecision is the row that unclaimed_claim.sql returns.
type unclaimedDecision struct {
	State                      string // before the decision; "": the payment is not unclaimed
	Incident                   bool   // an incident is open
	Decided                    bool
	AmountCents, ReturnedCents int64
	Try                        int
}

// decideUnclaimed stores the decision about an unclaimed payment, if it is possible.
func (s *Store) decideUnclaimed(ctx context.Context, intent string, keep bool, note, actor string) (d unclaimedDecision, err error) {
	if _, err = s.row(ctx, &d, unclaimedClaimSQL, intent, keep, note, actor); err != nil {
		return d, fmt.Errorf("decide about payment %s: %w", intent, err)
	}
	return d, nil
}

// endUnclaimed stores that the money of an unclaimed payment is returned.
func (s *Store) endUnclaimed(ctx context.Context, intent, refund string) error {
	return s.booksExec(ctx, `UPDATE unclaimed_payments SET state = 'refunded', provider_id = $2, ended_at = clock_timestamp()
		WHERE intent = $1 AND state = 'refunding'`, intent, refund)
}

// reopenUnclaimed makes another decision about an unclaimed payment possible, of which this try has returned nothing. The
// next try has a new key.
func (s *Store) reopenUnclaimed(ctx context.Context, intent string, try int) error {
	return s.booksExec(ctx, `UPDATE unclaimed_payments SET state = 'open', amount_cents = NULL, try = try + 1
		WHERE intent = $1 AND state = 'refunding' AND try = $2`, intent, try)
}
