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
