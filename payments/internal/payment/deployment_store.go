package payment

import (
	"context"
	"fmt"
)

// deployment returns whose payments the database has. The first process that calls it decides that.
func (s *Store) deployment(ctx context.Context, first deployment) (stored deployment, err error) {
	insert := s.db.WithContext(ctx).Exec(
		`INSERT INTO payment_deployment (deployment, mode) VALUES (?, ?) ON CONFLICT DO NOTHING`, first.Deployment, first.Mode)
	if insert.Error != nil {
		return stored, fmt.Errorf("store whose payments the database has: %w", insert.Error)
	}
	// A statement of its own: it sees the row of a process that was faster.
	return s.storedDeployment(ctx)
}

// storedDeployment returns whose payments the database has, or errNotStored.
func (s *Store) storedDeployment(ctx context.Context) (stored deployment, err error) {
	found, err := s.row(ctx, &stored, `SELECT deployment, mode, account FROM payment_deployment`)
	switch {
	case err != nil:
		return stored, fmt.Errorf("read whose payments the database has: %w", err)
	case !found:
		return stored, errNotStored
	}
	return stored, nil
}

// account stores the provider's account if none is stored yet, and returns whose payments the database has.
func (s *Store) account(ctx context.Context, account string) (stored deployment, err error) {
	found, err := s.row(ctx, &stored,
		`UPDATE payment_deployment SET account = coalesce(account, ?) RETURNING deployment, mode, account`, account)
	switch {
	case err != nil:
		return stored, fmt.Errorf("store the account of the payment provider: %w", err)
	case !found:
		return stored, errNotStored
	}
	return stored, nil
}

// forgetDeployment deletes whose payments the database has, and returns what is deleted. It returns an error if these are not those of
// the deployment with the name, if an attempt is live, or if a refund is owed or sent: after a change their sessions and payments
// would be looked for at the wrong account.
func (s *Store) forgetDeployment(ctx context.Context, name string) (deleted deployment, err error) {
	found, err := s.row(ctx, &deleted, `
		DELETE FROM payment_deployment
		WHERE deployment = ?
			AND NOT EXISTS (SELECT FROM payment_attempts WHERE state IN ('creating', 'open'))
			AND NOT EXISTS (SELECT FROM refunds WHERE state IN ('owed', 'sent'))
		RETURNING deployment, mode, account`, name)
	if err != nil {
		return deleted, fmt.Errorf("forget whose payments the database has: %w", err)
	}
	if found {
		return deleted, nil
	}
	if deleted, err = s.storedDeployment(ctx); err != nil {
		return deleted, err
	}
	if deleted.Deployment != name {
		return deleted, fmt.Errorf("the database has the payments of %v, and not of a deployment %q", deleted, name)
	}
	var u unsettled
	if _, err := s.row(ctx, &u, unsettledSQL); err != nil {
		return deleted, fmt.Errorf("count what is under way: %w", err)
	}
	return deleted, fmt.Errorf("the database keeps the payments of %v: %d attempts are live, and %d refunds are owed or sent; wait until they have ended",
		deleted, u.Creating+u.Open+u.Closing, u.Unconfirmed)
}
