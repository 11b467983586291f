package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

var (
	//go:embed lock.sql
	lockSQL string
	//go:embed create.sql
	createSQL string
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
// without a key. If a new version computes another hash, requests that are repeated during the update fail.
func (w wish) fingerprint() []byte {
	if w.key == "" {
		return nil
	}
	seats := slices.Sorted(slices.Values(w.seats)) // in whatever order the customer names them
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %q", w.screening, w.count, seats))
	return sum[:]
}

// create creates a booking. If the customer has created one with the same idempotency key before, create returns it in
// its present state, and replayed is true.
func (s *service) create(ctx context.Context, customer uuid.UUID, w wish) (b *booking, replayed bool, err error) {
	d, err := s.decide(ctx, customer, w)
	if errors.Is(err, postgres.ErrBusy) || postgres.LockTimedOut(err) {
		return nil, false, rest.Unavailable.Errorf("Many want these seats. Nothing has changed: repeat the request.")
	}
	if err != nil {
		const advice = "Repeat the request with the same Idempotency-Key: it then returns the same booking. " +
			"Without a key, it may create a second one."
		return nil, false, rest.OutcomeUnknown(fmt.Errorf("create booking: %w", err), advice)
	}
	switch d.rejected {
	case "":
		// The booking and its outbox row are committed. If Publish fails, the relay publishes the row.
		s.publisher.Publish(ctx, delay.At(d.booking.ID.String(), d.booking.ExpiresAt, d.booking.ServerTime))
		return d.booking, false, nil
	case "exists":
		if bytes.Equal(d.booking.Fingerprint, w.fingerprint()) {
			return d.booking, true, nil
		}
		err = rest.KeyReused.Errorf("The Idempotency-Key belongs to booking %s, which was another wish.", d.booking.ID)
	case "unknown":
		err = unknownScreening.Errorf("There is no screening %s, or it has begun.", w.screening)
	case "bound":
		e := tooManySeats.Errorf("You would have too many seats that are not confirmed: confirm a booking first.")
		e.Extensions = map[string]any{"open_bookings": d.open}
		err = e
	case "taken":
		err = seatsTaken.Errorf("Not all of these seats exist and are free.")
	default:
		err = fmt.Errorf("internal inconsistency: create.sql rejects with the unknown reason %q", d.rejected)
	}
	return nil, false, err
}

// decision is what create.sql has decided on a wish.
type decision struct {
	booking  *booking    // that has the wish's id or idempotency key; nil: none has
	rejected string      // why no booking was created, as create.sql says it; "": booking was created now
	open     []uuid.UUID // the customer's pending bookings
}

// decide runs the statements of a creation, in one transaction and one round trip.
func (s *service) decide(ctx context.Context, customer uuid.UUID, w wish) (*decision, error) {
	leaveTurn, err := s.turns.Enter(ctx, w.screening.String())
	if err != nil {
		return nil, err
	}
	defer leaveTurn()
	leaveGate, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leaveGate()

	id := keyset.NewID()
	var d *decision
	err = postgres.Transact(ctx, s.db, func(tx *postgres.Tx) error {
		d = new(decision)
		tx.Queue(lockSQL, w.screening, customer, s.lockTimeout)
		tx.Queue(createSQL, pgx.NamedArgs{
			"id": id, "customer": customer, "screening": w.screening, "seats": w.seats, "count": w.count,
			"code": rand.Text()[:8], "key": w.key, "fingerprint": w.fingerprint(),
			"timeout": s.options.Timeout.Microseconds(), "kind": expireKind,
			"max_open_seats": s.options.MaxOpenSeats,
		}).QueryRow(func(row pgx.Row) error { return row.Scan(&d.rejected, &d.open) })
		tx.Queue(getSQL, id, customer, w.key).Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[booking])
			if len(found) > 0 {
				d.booking = found[0]
			}
			return err
		})
		return nil
	})
	return d, err
}
