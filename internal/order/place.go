package order

import (
	"bytes"
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

	"example.com/shop/internal/postgres"
)

// The statements of one transaction, which places a batch of orders: one or many.
var (
	//go:embed lock.sql
	lockSQL string
	//go:embed place.sql
	placeSQL string
	//go:embed held_products.sql
	heldProductsSQL string
)

// terms are the terms on which orders are placed.
type terms struct {
	timeout  time.Duration // from the placement of an order to its deadline
	maxOpen  int64         // the most open orders of a customer
	maxUnits int64         // the most units of a product in the open orders of a customer
}

// orNull returns a bound as an argument of place.sql, NULL for none.
func orNull(bound int64) any {
	if bound == 0 {
		return nil
	}
	return bound
}

// placing is a placement on its way through a batch. Of the fields at its end exactly one is set, once it is decided.
type placing struct {
	id       uuid.UUID // of the order, if the placement is accepted; so a repeated transaction places it once
	customer uuid.UUID
	Placement
	arrived time.Time
	decided chan struct{} // closed after the decision

	order  *Order     // the placed order
	before *uuid.UUID // the order that the customer placed before with the same idempotency key, or that an earlier try placed
	err    error      // the reason for which no order is placed
}

func newPlacing(customer uuid.UUID, p Placement) *placing {
	return &placing{id: newID(), customer: customer, Placement: p, arrived: time.Now(), decided: make(chan struct{})}
}

func (p *placing) isDecided() bool { return p.order != nil || p.before != nil || p.err != nil }

// placeBatch decides placements in order of arrival. It leaves those undecided that wait for longer than lockWait for a
// row that another session has locked, and returns them in batches, one for each product that is locked. A lockWait of 0
// means the lock_timeout of the session; then no placement is left undecided.
func (s *Store) placeBatch(ctx context.Context, batch []*placing, t terms, lockWait time.Duration) (held []heldBatch) {
	err := s.placeRounds(ctx, batch, t, lockWait)
	if err == nil {
		return nil
	}
	switch batch = undecided(batch); {
	case postgres.LockTimedOut(err) && lockWait > 0:
		return s.placeFree(ctx, batch, t, lockWait)
	case len(batch) == 1, postgres.Unavailable(err):
		reject(batch, err)
		return nil
	default: // a placement causes the error, and the others must not fail with it
		return s.placeHalves(ctx, batch, t, lockWait)
	}
}

// placeFree is [Store.placeBatch] after the batch has waited for a lock for too long. It places those whose products are
// free.
func (s *Store) placeFree(ctx context.Context, batch []*placing, t terms, lockWait time.Duration) []heldBatch {
	free, held, err := s.splitByProducts(ctx, batch)
	switch {
	case err != nil:
		reject(batch, err)
		return nil
	case len(held) > 0:
		return append(held, s.placeBatch(ctx, free, t, lockWait)...)
	case len(batch) == 1: // it waits for another row, for example for that of its customer
		return []heldBatch{{uuid.Nil, batch}}
	default:
		return s.placeHalves(ctx, batch, t, lockWait)
	}
}

// placeHalves is [Store.placeBatch] for the first and then for the second half of a batch.
func (s *Store) placeHalves(ctx context.Context, batch []*placing, t terms, lockWait time.Duration) []heldBatch {
	half := len(batch) / 2
	held := s.placeBatch(ctx, batch[:half], t, lockWait)
	return append(held, s.placeBatch(ctx, batch[half:], t, lockWait)...)
}

// heldBatch is a batch of placements that wait for a row that another session has locked.
type heldBatch struct {
	product uuid.UUID // the product that is locked; uuid.Nil if it is another row
	batch   []*placing
}

// waitForProduct waits until no other session has locked a product, for at most the lock_timeout of the session. It locks
// no other product meanwhile, because other placements may want that one.
func (s *Store) waitForProduct(ctx context.Context, id uuid.UUID) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Exec(`SELECT FROM products WHERE id = $1 FOR NO KEY UPDATE`, id).Error
	})
	if err != nil {
		return fmt.Errorf("wait for product %s, which another session has locked: %w", id, err)
	}
	return nil
}

func undecided(batch []*placing) []*placing {
	return slices.DeleteFunc(slices.Clone(batch), (*placing).isDecided)
}

func reject(batch []*placing, err error) {
	for _, p := range batch {
		p.err = fmt.Errorf("place order: %w", err)
	}
}

// placeRounds decides all placements of a batch, in as many transactions as that takes: mostly one. After an error some
// of them are undecided.
func (s *Store) placeRounds(ctx context.Context, batch []*placing, t terms, lockWait time.Duration) error {
	for len(batch) > 0 {
		round := distinctKeys(batch)
		for len(round) > 0 {
			if err := s.placeOnce(ctx, round, t, lockWait); err != nil {
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

// distinctKeys leaves out each placement whose customer has an earlier placement with the same idempotency key in the
// batch. It is decided after the others, when the decision on the earlier one is known.
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

// placeOnce runs the transaction for a batch, and decides those placements that it can decide. If the connection is lost,
// or if PostgreSQL ends the transaction to resolve a deadlock, placeOnce repeats the transaction. That is safe: place.sql
// finds the orders that the lost transaction has placed by their ids. placeOnce repeats it too if a process of another
// version, which does not lock customers, has used an idempotency key meanwhile.
func (s *Store) placeOnce(ctx context.Context, batch []*placing, t terms, lockWait time.Duration) (err error) {
	const attempts = 3
	for range attempts {
		var products map[uuid.UUID]Product
		var results []placeResult
		if products, results, err = s.place(ctx, batch, t, lockWait); err == nil {
			decide(batch, products, results, t)
			return nil
		}
		lost := postgres.Unavailable(err) && !postgres.LockTimedOut(err) && !postgres.TimedOut(err) && ctx.Err() == nil
		if !lost && !postgres.Duplicate(err) {
			return err
		}
		if lost {
			postgres.DropDead(ctx, s.db) // else each attempt may find another session that the server has ended
		}
	}
	return err
}

// placeResult is a row of place.sql.
type placeResult struct {
	Placed     bool
	TotalCents *int64 // nil, as the next three, if the statement placed no order
	Currency   *string
	CreatedAt  *time.Time
	ExpiresAt  *time.Time
	BeforeID   *uuid.UUID
	ServerTime time.Time
	OpenLines  []openLine // of the customer's open orders, the newest first, if the statement placed no order
}

// openLine is a line of an order that its customer has not paid yet.
type openLine struct {
	OrderID   uuid.UUID `json:"order_id"`
	ProductID uuid.UUID `json:"product_id"`
	Quantity  int64     `json:"quantity"`
}

// place runs the transaction for a batch. It returns the products as they were when the transaction had locked them, and
// a result for each placement.
func (s *Store) place(
	ctx context.Context, batch []*placing, t terms, lockWait time.Duration,
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
		t.timeout.Microseconds(), CancelKind, orNull(t.maxOpen), orNull(t.maxUnits),
	).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var r placeResult
			var n int
			var open []byte
			if err := rows.Scan(&n, &r.Placed, &r.TotalCents, &r.Currency, &r.CreatedAt, &r.ExpiresAt,
				&r.BeforeID, &r.ServerTime, &open); err != nil {
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

	// Of the lines. earlier counts the units of the product in the earlier placements of the batch, ownEarlier in those of
	// the same customer.
	numbers                         []int64 // of the placements that the lines belong to, from 1
	lineProducts                    []uuid.UUID
	quantities, earlier, ownEarlier []int64
}

func argumentsOf(batch []*placing) (a placeArguments) {
	type share struct{ customer, product uuid.UUID }
	units, ownUnits := make(map[uuid.UUID]int64), make(map[share]int64)
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
		for _, line := range p.Lines {
			own := share{p.customer, line.ProductID}
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

// decide decides the placements of a batch. It leaves a placement undecided if place.sql did not accept it only because of an
// earlier one, which was rejected.
func decide(batch []*placing, products map[uuid.UUID]Product, results []placeResult, t terms) {
	open := make(map[uuid.UUID][]openLine) // by customer, of the orders that this transaction placed, the newest first
	for i, p := range batch {
		r := results[i]
		switch {
		case r.Placed:
			p.order = r.order(p, products)
			for _, line := range p.Lines {
				product := products[line.ProductID]
				product.Available -= line.Quantity
				products[line.ProductID] = product
				open[p.customer] = slices.Insert(open[p.customer], 0, openLine{p.id, line.ProductID, line.Quantity})
			}
		case r.BeforeID != nil:
			p.before = r.BeforeID
		}
	}
	// A placement that is accepted leaves enough for all earlier ones. So one that does not fit after the whole transaction
	// did not fit at its turn either. The others are decided in the next round.
	for i, p := range batch {
		if !p.isDecided() {
			p.err = whyNotPlaced(p.Placement, products, slices.Concat(open[p.customer], results[i].OpenLines), t)
		}
	}
}

// order returns the order of a placement that place.sql has accepted.
func (r placeResult) order(p *placing, products map[uuid.UUID]Product) *Order {
	o := &Order{
		ID: p.id, CustomerID: p.customer, Status: Pending, TotalCents: *r.TotalCents, Currency: *r.Currency,
		CreatedAt: *r.CreatedAt, ExpiresAt: *r.ExpiresAt, DueAt: *r.ExpiresAt, ServerTime: r.ServerTime,
		Items: make([]Item, len(p.Lines)),
	}
	for i, line := range p.Lines {
		product := products[line.ProductID]
		o.Items[i] = Item{line.ProductID, product.Name, line.Quantity, product.PriceCents}
	}
	slices.SortFunc(o.Items, func(a, b Item) int { return bytes.Compare(a.ProductID[:], b.ProductID[:]) })
	return o
}

// splitByProducts separates the placements whose products are free from those with a product that another session holds
// right now. It groups the latter by such a product. It waits for no lock.
func (s *Store) splitByProducts(ctx context.Context, batch []*placing) (free []*placing, held []heldBatch, err error) {
	var products, locked []uuid.UUID
	for _, p := range batch {
		for _, line := range p.Lines {
			products = append(products, line.ProductID)
		}
	}
	err = s.db.WithContext(ctx).Raw(heldProductsSQL, products).Scan(&locked).Error
	if err != nil {
		return nil, nil, fmt.Errorf("find the products that are locked: %w", err)
	}
	groups := make(map[uuid.UUID][]*placing)
	for _, p := range batch {
		i := slices.IndexFunc(p.Lines, func(l Line) bool { return slices.Contains(locked, l.ProductID) })
		if i < 0 {
			free = append(free, p)
			continue
		}
		product := p.Lines[i].ProductID
		groups[product] = append(groups[product], p)
	}
	for product, group := range groups {
		held = append(held, heldBatch{product, group})
	}
	return free, held, nil
}
