package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// wish is a request for a booking.
type wish struct {
	// key makes it safe to repeat the request: a request with the key of an earlier one returns the booking that the
	// earlier one created. "" means no key.
	key       string
	screening uuid.UUID
	seats     []string // their names; nil: any free ones
	count     int64    // of seats
}

// fingerprint returns a hash of the wish, to detect that an idempotency key is reused for another wish. It is nil
// without a key. A change of it makes requests fail that are repeated while the old and the new version run.
func (w wish) fingerprint() []byte {
	if w.key == "" {
		return nil
	}
	seats := slices.Sorted(slices.Values(w.seats)) // in whatever order the customer names them
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %q", w.screening, w.count, seats))
	return sum[:]
}

// decision is what create.sql has decided on a wish.
type decision struct {
	booking  *booking    // that has the wish's id or idempotency key; nil: none has
	rejected *string     // why no booking was created, as create.sql says it; nil: booking was created now
	open     []uuid.UUID // the customer's pending bookings
}

// create decides on a wish, in one transaction and one round trip.
func (s *store) create(ctx context.Context, customer uuid.UUID, w wish) (*decision, error) {
	leave, err := s.enter(ctx, w.screening)
	if err != nil {
		return nil, err
	}
	defer leave()
	id := keyset.NewID()
	var d *decision
	var key *string
	if w.key != "" {
		key = &w.key
	}
	err = postgres.Pipeline(ctx, s.db, func() *pgx.Batch {
		statements := new(pgx.Batch)
		d = new(decision)
		statements.Queue(lockSQL, w.screening, customer, s.lockTimeout)
		statements.Queue(createSQL, pgx.NamedArgs{
			"id": id, "customer": customer, "screening": w.screening, "seats": w.seats, "count": w.count,
			"code": rand.Text()[:8], "key": key, "fingerprint": w.fingerprint(),
			"timeout": s.options.Timeout.Microseconds(), "kind": s.RowKind(expireKind),
			"max_open_seats": s.options.MaxOpenSeats,
		}).QueryRow(func(row pgx.Row) error { return row.Scan(&d.rejected, &d.open) })
		statements.Queue(getSQL, id, customer, key).Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[booking])
			if len(found) > 0 {
				d.booking = found[0]
			}
			return err
		})
		return statements
	})
	if err != nil {
		return nil, fmt.Errorf("create booking: %w", err)
	}
	return d, nil
}
