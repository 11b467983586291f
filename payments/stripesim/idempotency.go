package stripesim

import (
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"
)

// findAnswer returns the stored answer of an idempotency key, or nil. It locks the key until the transaction ends. It
// returns an [apiError] if another request holds the lock, or if the key belongs to another request. The key "" is no
// key.
//
// The lock, the effects of the request and the stored answer are in one transaction. So a crash leaves either all of
// them or none, and no key stays locked.
func findAnswer(ctx context.Context, tx pgx.Tx, key, request string) (*answer, error) {
	if key == "" {
		return nil, nil
	}
	var locked bool
	err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`, "key "+key).Scan(&locked)
	if err != nil {
		return nil, err
	}
	if !locked {
		return nil, &apiError{status: http.StatusConflict, Type: "idempotency_error", Code: "idempotency_key_in_use",
			Message: "There is currently another in-progress request using this Idempotent Key: " + key +
				". Please try again later."}
	}
	a := answer{replayed: true}
	var first string
	err = tx.QueryRow(ctx, `SELECT request, status, body FROM stripesim.idempotency_keys WHERE key = $1`, key).
		Scan(&first, &a.status, &a.body)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case first != request:
		return nil, &apiError{status: http.StatusBadRequest, Type: "idempotency_error",
			Message: "Keys for idempotent requests can only be used with the same endpoint and parameters they were " +
				"first used with. Try using a key other than '" + key + "' if you meant to execute a different " +
				"request."}
	}
	return &a, nil
}

// storeAnswer stores the answer of a request for its idempotency key, which [findAnswer] has locked.
func storeAnswer(ctx context.Context, tx pgx.Tx, key, request string, a answer) error {
	if key == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO stripesim.idempotency_keys (key, request, status, body) VALUES ($1, $2, $3, $4)`,
		key, request, a.status, a.body)
	return err
}

// deleteOldKeys deletes keys after 24 hours, the minimum time for which Stripe keeps them.
func (s *Simulator) deleteOldKeys(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `DELETE FROM stripesim.idempotency_keys WHERE created_at < now() - interval '24 hours'`)
	return err
}
