package order

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
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

var placeStatement = named(placeSQL, placeArguments(nil, Config{}))

// The bounds of the batches of placements. [batch.Config] says what they mean.
const (
	placementLanes = 2
	maxBatch       = 200
	// maxPlacementWait is how long the first placement in the queue may wait before further ones are rejected: a
	// client gets its order or a rejection within about a second.
	maxPlacementWait = 500 * time.Millisecond
	// maxUnderWay placements keep a machine busy for some tenths of a second, for which cancellations may wait.
	maxUnderWay = 1000
	// productLockWait is longer than a session usually keeps the locks of its products.
	productLockWait = 200 * time.Millisecond
	// batchTimeout is between the statement_timeout and the time limit of a client's request.
	batchTimeout = 7 * time.Second
)

// placementQueue returns the bounds and the functions of the queue in which placements wait for their batches.
func (s *Service) placementQueue() (batch.Config, batch.Table[*placing, uuid.UUID]) {
	cfg := batch.Config{
		Lanes: placementLanes, Size: maxBatch, MaxWait: maxPlacementWait, MaxUnderWay: maxUnderWay,
		LockWait: productLockWait, Timeout: batchTimeout,
		OnReject: func(reason string) {
			s.log.Warn("placements are rejected, because more arrive than can be placed", "reason", reason,
				"max_wait", maxPlacementWait.String(), "max_under_way", maxUnderWay)
		},
	}
	table := batch.Table[*placing, uuid.UUID]{
		Handle:  s.placeBatch,
		Handled: s.publishTasks,
		Rows:    (*placing).products,
		Locked:  s.store.lockedProducts,
		WaitFor: s.store.waitForProduct,
		Gate:    s.store.gate,
	}
	return cfg, table
}

// placing is a placement in a batch, and the decision on it.
type placing struct {
	id       uuid.UUID // of the order; a repeated transaction finds the order by its id, and places no second one
	customer uuid.UUID
	span     []byte // of the request's trace; nil: the request is not traced
	Placement

	// The decision. When the placement is decided, exactly one of these fields is set.
	order     *Order      // the placed order
	existing  *uuid.UUID  // the order with the same idempotency key, or the order that a lost transaction has placed
	rejection *rest.Error // the reason why no order is placed

	task delay.Message // cancels the placed order at its deadline
}

func (p *placing) isDecided() bool { return p.order != nil || p.existing != nil || p.rejection != nil }

func undecided(batch []*placing) []*placing {
	return slices.DeleteFunc(slices.Clone(batch), (*placing).isDecided)
}

// products returns the ids of the products that a placement locks.
func (p *placing) products() []uuid.UUID {
	ids := make([]uuid.UUID, len(p.Lines))
	for i, line := range p.Lines {
		ids[i] = line.ProductID
	}
	return ids
}

// placeBatch is the Handle of [batch.Table]: it places a batch. After an error it returns the placements that are not
// decided.
func (s *Service) placeBatch(
	ctx context.Context, placings []*placing, lockWait time.Duration,
) (left []*placing, err error) {
	if s.cfg.Tracer != nil {
		var end func(error)
		ctx, end = s.cfg.Tracer.StartBatch(ctx, "place orders", spansOf(placings))
		defer func() { end(err) }()
	}
	err = s.placeInRounds(ctx, placings, lockWait)
	if err == nil {
		s.metrics.batchSize.Observe(float64(len(placings)))
	}
	for _, p := range placings {
		if o := p.order; o != nil {
			s.Notify(o.CustomerID.String(), o.ID.String())
			s.cfg.Placed(o.ID.String(), o.ExpiresAt.Sub(o.ServerTime))
		}
	}
	return undecided(placings), err
}

func spansOf(placings []*placing) [][]byte {
	spans := make([][]byte, len(placings))
	for i, p := range placings {
		spans[i] = p.span
	}
	return spans
}

// placeInRounds decides the placements of a batch in their order of arrival. It usually needs one transaction. It
// needs more if some placements cannot be decided before others: see distinctKeys and decide. After an error some
// placements may be undecided. It waits at most lockWait for a lock; 0 means the lock_timeout of the session, and
// then the caller must have entered the gate.
func (s *Service) placeInRounds(ctx context.Context, batch []*placing, lockWait time.Duration) error {
	for len(batch) > 0 {
		round := distinctKeys(batch)
		for len(round) > 0 {
			if err := s.placeRound(ctx, round, lockWait); err != nil {
				return err
			}
			left := undecided(round)
			if len(left) == len(round) {
				return fmt.Errorf("internal inconsistency: place.sql decided none of %d placements, "+
					"the first of lines %+v", len(round), round[0].Lines)
			}
			round = left
		}
		batch = undecided(batch)
	}
	return nil
}

// distinctKeys returns the batch without each placement whose customer has an earlier placement with the same
// idempotency key in the batch. Such a placement is decided later, when the decision on the earlier one is known.
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

// placeRound runs the transaction for a batch, and repeats it if the connection is lost. That is safe, because
// place.sql finds the orders that the lost transaction has placed by their ids. placeRound also repeats the transaction
// if a session that takes none of its locks has used one of the idempotency keys meanwhile. After a deadlock,
// [postgres.Pipeline] has repeated the transaction already.
func (s *Service) placeRound(ctx context.Context, batch []*placing, lockWait time.Duration) (err error) {
	const maxRuns = 3 // one repetition usually suffices
	for range maxRuns {
		err = s.lockAndPlace(ctx, batch, lockWait)
		lost := postgres.Away(err) && ctx.Err() == nil
		if !lost && !postgres.Duplicate(err) {
			return err
		}
	}
	return err
}

// lockAndPlace runs the transaction for a batch, and decides those placements that it can decide.
func (s *Service) lockAndPlace(ctx context.Context, batch []*placing, lockWait time.Duration) error {
	arguments := placeArguments(batch, s.cfg)
	lockTimeout := pgtype.Text{String: strconv.FormatInt(lockWait.Milliseconds(), 10), Valid: lockWait > 0}
	var products map[uuid.UUID]Product // as lock.sql returns them, before place.sql changes them
	var results []placeResult
	err := postgres.Pipeline(ctx, s.store.db, func() *pgx.Batch {
		products, results = make(map[uuid.UUID]Product), make([]placeResult, len(batch))
		var statements pgx.Batch
		lock := statements.Queue(lockSQL, arguments["line_products"], arguments["customers"], lockTimeout)
		lock.Query(func(rows pgx.Rows) error {
			var p Product
			columns := []any{&p.ID, &p.Name, &p.PriceCents, &p.Currency, &p.Available}
			_, err := pgx.ForEachRow(rows, columns, func() error {
				products[p.ID] = p
				return nil
			})
			return err
		})
		place := statements.Queue(placeStatement.text, placeStatement.values(arguments)...)
		place.Query(func(rows pgx.Rows) error {
			var r placeResult
			_, err := pgx.ForEachRow(rows, []any{
				&r.N, &r.Placed, &r.TotalCents, &r.Currency, &r.CreatedAt, &r.ExpiresAt,
				&r.ExistingID, &r.ServerTime, &r.OpenLines,
			}, func() error {
				results[r.N-1] = r
				r = placeResult{} // the next row shares no memory with this one
				return nil
			})
			return err
		})
		return &statements
	})
	if err != nil {
		return err
	}
	decide(batch, products, results, s.cfg)
	return nil
}

// placeArguments returns the arguments of place.sql by their names, which the comment of place.sql explains.
func placeArguments(batch []*placing, cfg Config) map[string]any {
	type customerProduct struct{ customer, product uuid.UUID }
	units, ownUnits := make(map[uuid.UUID]int64), make(map[customerProduct]int64)
	placements := make(map[uuid.UUID]int64) // by customer

	var ids, customers, lineProducts pgtype.FlatArray[pgtype.UUID] // which pgx sends without reflection
	var nth, linePlacements, lineQuantities, lineEarlier, lineOwnEarlier []int64
	var keys []*string
	var fingerprints [][]byte
	for i, p := range batch {
		placements[p.customer]++
		ids = append(ids, pgtype.UUID{Bytes: p.id, Valid: true})
		customers = append(customers, pgtype.UUID{Bytes: p.customer, Valid: true})
		nth = append(nth, placements[p.customer])
		var key *string
		if p.IdempotencyKey != "" {
			key = &p.IdempotencyKey
		}
		keys = append(keys, key)
		fingerprints = append(fingerprints, p.fingerprint())
		for _, line := range p.Lines {
			own := customerProduct{p.customer, line.ProductID}
			linePlacements = append(linePlacements, int64(i)+1)
			lineProducts = append(lineProducts, pgtype.UUID{Bytes: line.ProductID, Valid: true})
			lineQuantities = append(lineQuantities, line.Quantity)
			lineEarlier = append(lineEarlier, units[line.ProductID])
			lineOwnEarlier = append(lineOwnEarlier, ownUnits[own])
			units[line.ProductID] += line.Quantity
			ownUnits[own] += line.Quantity
		}
	}
	return map[string]any{
		"ids": ids, "customers": customers, "nth": nth,
		"keys": keys, "fingerprints": fingerprints, "spans": spansOf(batch),
		"line_placements": linePlacements, "line_products": lineProducts, "line_quantities": lineQuantities,
		"line_earlier": lineEarlier, "line_own_earlier": lineOwnEarlier,
		"time_to_pay": cfg.OrderTimeout.Microseconds(), "kind": CancelKind,
		"max_open_orders": pgtype.Int8{Int64: cfg.MaxOpenOrders, Valid: cfg.MaxOpenOrders > 0},
		"max_open_units":  pgtype.Int8{Int64: cfg.MaxOpenUnits, Valid: cfg.MaxOpenUnits > 0},
		"charges":         pgtype.Text{String: cfg.Charges, Valid: cfg.Charges != ""},
	}
}

// publishTasks is the Handled of [batch.Table]: it publishes the tasks of the orders that a batch has placed. The
// callers of Place do not wait for Redis: the orders and the outbox rows of their tasks are committed.
func (s *Service) publishTasks(ctx context.Context, placings []*placing) {
	var msgs []delay.Message
	for _, p := range placings {
		if p.order != nil {
			msgs = append(msgs, p.task)
		}
	}
	if len(msgs) > 0 {
		s.pub.Publish(ctx, msgs...)
	}
}

// lockedProducts is the Locked of [batch.Table]: it returns those of the products that another session has locked
// right now. It waits for no lock.
func (s *Store) lockedProducts(ctx context.Context, products []uuid.UUID) (locked []uuid.UUID, err error) {
	if err := s.db.WithContext(ctx).Raw(lockedProductsSQL, products).Scan(&locked).Error; err != nil {
		return nil, fmt.Errorf("find the products that are locked: %w", err)
	}
	return locked, nil
}

// waitForProduct is the WaitFor of [batch.Table]: it waits until no other session has locked a product, for at most the
// lock_timeout of the session. It locks no other product meanwhile, so that placements of other products go on.
func (s *Store) waitForProduct(ctx context.Context, id uuid.UUID) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Exec(`SELECT FROM products WHERE id = $1 FOR NO KEY UPDATE`, id).Error
	})
	if err != nil {
		return fmt.Errorf("wait for product %s, which another session has locked: %w", id, err)
	}
	return nil
}
