package payment

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// closeIncident closes an incident, unless it is closed, and returns its kind; "" if there is none with this id.
func (s *Store) closeIncident(ctx context.Context, id uuid.UUID, actor, note string) (kind string, err error) {
	var row struct{ Kind string }
	_, err = s.row(ctx, &row, `
		WITH closed AS (
			UPDATE payment_incidents SET closed_at = clock_timestamp(), actor = $2, note = $3
			WHERE id = $1::uuid AND closed_at IS NULL
		)
		SELECT kind FROM payment_incidents WHERE id = $1::uuid`, id, actor, note)
	if err != nil {
		return "", fmt.Errorf("close payment incident %s: %w", id, err)
	}
	return row.Kind, nil
}
