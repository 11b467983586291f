package order

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// lock.sql and place.sql are the statements of one transaction, which places a batch of orders: one or many.
var (
	//go:embed lock.sql
	lockSQL string
	//go:embed place.sql
	placeSQL string
	//go:embed locked_products.sql
	lockedProductsSQL string
)

// placeOptions are the time to pay and the bounds of a placed order.
type placeOptions struct {
	timeout  time.Duration // from the placement of an order to its deadline
	maxOpen  int64         // the most open orders of a customer; 0: no bound
	maxUnits int64         // the most units of a product in the open orders of a customer; 0: no bound
}

// orNull returns a bound as an argument of place.sql, NULL for none.
func orNull(bound int64) any {
	if bound == 0 {
		return nil
	}
	return bound
}

// placing is a placement in a batch, and the decision on it.
type placing struct {
	id       uuid.UUID // of the order, if the placement is accepted; a transaction that is repeated places no second order
	customer uuid.UUID
	span     []byte // that of the request; nil: it is not traced
	Placement

	// The decision. When the placement is decided, exactly one of these fields is set.
	order     *Order     // the placed order
	existing  *uuid.UUID // the order with the same idempotency key, or the order that a lost transaction has placed
	rejection error      // the reason why no order is placed

	task delay.Message // cancels the placed order at its deadline
}

func newPlacing(customer uuid.UUID, p Placement) *placing {
	return &placing{id: keyset.NewID(), customer: customer, Placement: p}
}

func (p *placing) isDecided() bool { return p.order != nil || p.existing != nil || p.rejection != nil }

// products returns the ids of the products that a placement locks.
func (p *placing) products() []uuid.UUID {
	ids := make([]uuid.UUID, len(p.Lines))
	for i, line := range p.Lines {
		ids[i] = line.ProductID
	}
	return ids
}

func undecided(batch []*placing) []*placing {
	return slices.DeleteFunc(slices.Clone(batch), (*placing).isDecided)
}

// place decides the placements of a batch in their order of arrival. It usually needs one transaction. It needs more if
// some placements cannot be decided before others: see distinctKeys and decide. After an error some placements may be
// undecided. It waits at most lockWait for a lock; 0 means the lock_timeout of the session, and then the caller must have
// entered the gate.
func (s *Store) place(ctx context.Context, batch []*placing, o placeOptions, lockWait time.Duration) error {
	for len(batch) > 0 {
		round := distinctKeys(batch)
		for len(round) > 0 {
			if err := s.placeRound(ctx, round, o, lockWait); err != nil {
				return err
			}
			left := undecided(round)
			if len(left) == len(round) {
				return fmt.Errorf("internal inconsistency: place.sql decided none of %d placements, the first of lines %+v",
					len(round), round[0].Lines)
			}
			round = left
		}
		batch = undecided(batch)
	}
	return nil
}

// distinctKeys returns the batch without each placement whose customer has an earlier placement with the same idempotency
// key in the batch. Such a placement is decided later, when the decision on the earlier one is known.
func distinctKeys(batch []*placing) []*placing {
	type key struct {
		customer uuid.UUID
		key      string
	}
	seen := make(map[key]bool, len(batch))
	return slices.DeleteFunc(slices.Clone(batch), func(p *placing) bool {
		k := key{p.customer, p.IdempotencyKey}
		repeated := p.IdempotencyKey != "" && seen[k]
		seen[k] = true
		return repeated
	})
}

// placeRound runs the transaction for a batch, and decides those placements that it can decide. If the connection is lost,
// or if PostgreSQL ends the transaction to resolve a deadlock, placeRound repeats the transaction. That is safe: place.sql
// finds the orders that the lost transaction has placed by their ids. placeRound also repeats the transaction if a
// session that takes none of its locks has used one of the idempotency keys meanwhile.
func (s *Store) placeRound(ctx context.Context, batch []*placing, o placeOptions, lockWait time.Duration) (err error) {
	// maxRuns is the largest number of times that the transaction runs. One repetition usually suffices. With a larger
	// number, the callers of Place would wait longer for the error while the database is away.
	const maxRuns = 3
	for range maxRuns {
		var products map[uuid.UUID]Product
		var results []placeResult
		if products, results, err = s.lockAndPlace(ctx, batch, o, lockWait); err == nil {
			decide(batch, products, results, o)
			return nil
		}
		lost := postgres.Away(err) && ctx.Err() == nil
		if !lost && !postgres.Duplicate(err) {
			return err
		}
	}
	return err
}

// placeResult is a row of place.sql.
type placeResult struct {
	Placed     bool
	TotalCents *int64 // nil, like Currency, CreatedAt and ExpiresAt, if the statement placed no order
	Currency   *string
	CreatedAt  *time.Time
	ExpiresAt  *time.Time
	ExistingID *uuid.UUID // see placing.existing
	ServerTime time.Time
	OpenLines  []openLine // of the customer's open orders, the newest first; nil if the order is placed now or exists
}

// openLine is a line of an order that its customer has not paid yet.
type openLine struct {
	OrderID   uuid.UUID `json:"order_id"`
	ProductID uuid.UUID `json:"product_id"`
	Quantity  int64     `json:"quantity"`
}

// lockAndPlace runs the transaction for a batch. It returns the products as they were after the transaction had locked
// them and before it changed them, and a result for each placement.
func (s *Store) lockAndPlace(
	ctx context.Context, batch []*placing, o placeOptions, lockWait time.Duration,
) (products map[uuid.UUID]Product, results []placeResult, err error) {
	a := argumentsOf(batch)
	products = make(map[uuid.UUID]Product, len(a.products))
	results = make([]placeResult, len(batch))
	var statements pgx.Batch
	var lockTimeout *string // nil: that of the session
	if lockWait > 0 {
		ms := strconv.FormatInt(lockWait.Milliseconds(), 10)
		lockTimeout = &ms
	}
	customers := uuids(a.customers)
	statements.Queue(lockSQL, uuids(a.products), customers, lockTimeout).Query(func(rows pgx.Rows) error {
		var p Product
		_, err := pgx.ForEachRow(rows, []any{&p.ID, &p.Name, &p.PriceCents, &p.Currency, &p.Available}, func() error {
			products[p.ID] = p
			return nil
		})
		return err
	})
	statements.Queue(placeSQL, uuids(a.ids), customers, a.nth, a.keys, a.fingerprints,
		a.numbers, uuids(a.lineProducts), a.quantities, a.earlier, a.ownEarlier,
		o.timeout.Microseconds(), s.RowKind(CancelKind), orNull(o.maxOpen), orNull(o.maxUnits), a.spans,
	).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var r placeResult
			var n int
			var open []byte
			if err := rows.Scan(&n, &r.Placed, &r.TotalCents, &r.Currency, &r.CreatedAt, &r.ExpiresAt,
				&r.ExistingID, &r.ServerTime, &open); err != nil {
				return err
			}
			if open != nil {
				if err := json.Unmarshal(open, &r.OpenLines); err != nil {
					return err
				}
			}
			results[n-1] = r
		}
		return rows.Err()
	})
	err = postgres.Pipeline(ctx, s.db, &statements)
	return products, results, err
}

// uuids returns ids in a form that pgx sends without reflection and without their text.
func uuids(ids []uuid.UUID) pgtype.FlatArray[pgtype.UUID] {
	array := make(pgtype.FlatArray[pgtype.UUID], len(ids))
	for i, id := range ids {
		array[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	return array
}

// placeArguments are the arguments of lock.sql and place.sql.
type placeArguments struct {
	products []uuid.UUID // of all lines, each once

	ids, customers []uuid.UUID
	nth            []int64   // the number of the placement among those of its customer, from 1
	keys           []*string // nil: no key
	fingerprints   [][]byte
	spans          [][]byte // nil: not traced

	// These have one element for each line of each placement. earlier counts the units of the line's product in the earlier
	// placements of the batch. ownEarlier counts those in the earlier placements of the same customer.
	numbers                         []int64 // the number of the placement that the line belongs to, from 1
	lineProducts                    []uuid.UUID
	quantities, earlier, ownEarlier []int64
}

func argumentsOf(batch []*placing) (a placeArguments) {
	type customerProduct struct{ customer, product uuid.UUID }
	units, ownUnits := make(map[uuid.UUID]int64), make(map[customerProduct]int64)
	placements := make(map[uuid.UUID]int64) // by customer
	for i, p := range batch {
		placements[p.customer]++
		a.ids = append(a.ids, p.id)
		a.customers = append(a.customers, p.customer)
		a.nth = append(a.nth, placements[p.customer])
		var key *string
		var fingerprint []byte
		if p.IdempotencyKey != "" {
			key, fingerprint = &p.IdempotencyKey, p.fingerprint()
		}
		a.keys = append(a.keys, key)
		a.fingerprints = append(a.fingerprints, fingerprint)
		a.spans = append(a.spans, p.span)
		for _, line := range p.Lines {
			own := customerProduct{p.customer, line.ProductID}
			a.numbers = append(a.numbers, int64(i)+1)
			a.lineProducts = append(a.lineProducts, line.ProductID)
			a.quantities = append(a.quantities, line.Quantity)
			a.earlier = append(a.earlier, units[line.ProductID])
			a.ownEarlier = append(a.ownEarlier, ownUnits[own])
			units[line.ProductID] += line.Quantity
			ownUnits[own] += line.Quantity
		}
	}
	a.products = slices.Collect(maps.Keys(units))
	return a
}

// fingerprint returns the fingerprint of the placement that an order was placed with, nil if it had no idempotency key.
func (s *Store) fingerprint(ctx context.Context, id uuid.UUID) (fingerprint []byte, err error) {
	err = s.db.WithContext(ctx).Raw(`SELECT fingerprint FROM orders WHERE id = $1`, id).Row().Scan(&fingerprint)
	if err != nil {
		return nil, fmt.Errorf("read the order with the same idempotency key: %w", err)
	}
	return fingerprint, nil
}

// lockedProducts is the Locked of [batch.Table]: it returns those of the products that another session has locked right
// now. It waits for no lock.
func (s *Store) lockedProducts(ctx context.Context, products []uuid.UUID) (locked []uuid.UUID, err error) {
	if err := s.db.WithContext(ctx).Raw(lockedProductsSQL, products).Scan(&locked).Error; err != nil {
		return nil, fmt.Errorf("find the products that are locked: %w", err)
	}
	return locked, nil
}

// waitForProduct is the WaitFor of [batch.Table]: it waits until no other session has locked a product, for at most the
// lock_timeout of the session. It locks no other product meanwhile, because other placements may want that one.
func (s *Store) waitForProduct(ctx context.Context, id uuid.UUID) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Exec(`SELECT FROM products WHERE id = $1 FOR NO KEY UPDATE`, id).Error
	})
	if err != nil {
		return fmt.Errorf("wait for product %s, which another session has locked: %w", id, err)
	}
	return nil
}
