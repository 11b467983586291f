package order

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"maps"
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

// The statements of the transaction that places a batch of orders: one or many.
var (
	//go:embed lock.sql
	lockSQL string
	//go:embed lock_customers.sql
	lockCustomersSQL string
	//go:embed existing.sql
	existingSQL string
	//go:embed open.sql
	openSQL string
	//go:embed place.sql
	placeSQL string
)

// The bounds of placements.
const (
	placementLanes = 2
	maxBatch       = 200
	// maxPlacements keep a machine busy for some tenths of a second: a client gets its order or a rejection within about
	// a second, and cancellations wait no longer.
	maxPlacements = 1000
	// placementTimeout is between the statement_timeout and the time limit of a client's request.
	placementTimeout = 7 * time.Second
	// placementLockWait is longer than a session usually keeps the locks of its products.
	placementLockWait = 200 * time.Millisecond
)

// newBatcher returns the batcher in which placements wait for their batches.
func (s *Service) newBatcher() *batch.Batcher[*placing] {
	return &batch.Batcher[*placing]{
		Run: s.placeBatch, Await: s.awaitProducts, AfterCommit: s.publishTasks,
		Lanes: placementLanes, Size: maxBatch, MaxItems: maxPlacements, Timeout: placementTimeout,
	}
}

// placing is a placement in a batch, and the decision on it.
type placing struct {
	id       uuid.UUID // of the order; a repeated transaction finds the order by its id, and places no second one
	customer uuid.UUID
	Placement
	tried bool // a transaction has begun, and may have placed the order although it has lost its connection

	locked bool // nothing is decided, because another session has locked one of the products

	// The decision. When the placement is decided, exactly one of these fields is set.
	order     *Order      // the placed order
	existing  uuid.UUID   // the order with the same idempotency key, or the order that a lost transaction has placed
	rejection *rest.Error // the reason why no order is placed

	task delay.Message // cancels the placed order at its deadline
}

// placeBatch is the Run of the batcher: it runs the transaction for a batch, and repeats it if the connection is lost.
// That is safe, because a placement that was tried finds the order that a lost transaction has placed by its id. It also
// repeats the transaction if another program has used one of the idempotency keys meanwhile, without the lock of the
// customer.
func (s *Service) placeBatch(
	ctx context.Context, placings []*placing, skipLocked bool,
) (locked []*placing, err error) {
	ctx, end := s.cfg.BeginBatch(ctx, spansOf(placings))
	defer func() { end(err) }()
	const maxRuns = 3 // one repetition usually suffices
	for range maxRuns {
		err = s.placeOnce(ctx, placings, skipLocked)
		lost := postgres.Classify(err) == postgres.Outage && ctx.Err() == nil
		if !lost && !postgres.Duplicate(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	s.metrics.batchSize.Observe(float64(len(placings)))
	for _, p := range placings {
		switch o := p.order; {
		case p.locked:
			locked = append(locked, p)
		case o != nil:
			s.Notify(o.CustomerID.String(), o.ID.String())
			s.cfg.Placed(o.ID.String(), p.task.Left())
		}
	}
	return locked, nil
}

// awaitProducts is the Await of the batcher: it waits until no other session has locked the products of a placement, for
// at most the lock_timeout of a session. All placements that wait for a product share one session.
func (s *Service) awaitProducts(ctx context.Context, p *placing) error {
	for _, line := range p.Lines {
		id := line.ProductID.String()
		_, err, _ := s.waits.Do(id, func() (any, error) {
			leave, err := s.store.gate.Enter(ctx)
			if err != nil {
				return nil, err
			}
			defer leave()
			return nil, s.store.awaitProduct(ctx, id)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitProduct locks a product in a transaction that ends at once.
func (s *Store) awaitProduct(ctx context.Context, id string) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Exec(`SELECT FROM products WHERE id = $1 FOR NO KEY UPDATE`, id).Error
	})
	if err != nil {
		return fmt.Errorf("wait for product %s, which another session has locked: %w", id, err)
	}
	return nil
}

func (p *placing) key() customerKey { return customerKey{p.customer, p.IdempotencyKey} }

func spansOf(placings []*placing) [][]byte {
	spans := make([][]byte, len(placings))
	for i, p := range placings {
		spans[i] = p.Span
	}
	return spans
}

// placeOnce runs the transaction for a batch: it locks and reads what the placements need, decides them in their order
// of arrival, and writes the orders.
func (s *Service) placeOnce(ctx context.Context, batch []*placing, skipLocked bool) error {
	return postgres.Transact(ctx, s.store.db, func(tx *postgres.Tx) error {
		tx.Queue(`SELECT set_config('lock_timeout', $1, true)`, strconv.FormatInt(placementLockWait.Milliseconds(), 10))
		needs := readNeeds(tx, batch, skipLocked)
		bounded := s.cfg.MaxOpenOrders > 0 || s.cfg.MaxOpenUnits > 0
		if bounded {
			needs.readOpen(tx, batch)
		}
		if err := tx.Send(ctx); err != nil {
			return err
		}
		accepted := needs.decide(batch, s.cfg)
		if short := lackingStock(batch); !bounded && len(short) > 0 {
			// The rejections name the customers' own orders that hold the stock.
			needs.readOpen(tx, short)
			if err := tx.Send(ctx); err != nil {
				return err
			}
			accepted = needs.decide(batch, s.cfg)
		}
		if len(accepted) > 0 {
			queuePlaced(tx, accepted)
		}
		return nil
	})
}

// lackingStock returns the placements of a batch that are rejected because too little is left.
func lackingStock(batch []*placing) (short []*placing) {
	for _, p := range batch {
		if p.rejection != nil && p.rejection.Class == OutOfStock {
			short = append(short, p)
		}
	}
	return short
}

// needs is what a transaction has read for a batch.
type needs struct {
	products stock
	locked   map[uuid.UUID]bool // the products that another session has locked
	existing map[customerKey]existingOrder
	placed   map[uuid.UUID]bool // the orders of the batch that a lost transaction has placed
	open     map[uuid.UUID][]pendingLine
	now      time.Time // by the database's clock, with all locks
	read     time.Time // when now arrived here
}

// customerKey is an idempotency key of a customer.
type customerKey struct {
	customer uuid.UUID
	key      string
}

// existingOrder is the order that was placed with an idempotency key.
type existingOrder struct {
	id          uuid.UUID
	fingerprint []byte
}

// pendingLine is a line of an order of a customer, which is open until it is due.
type pendingLine struct {
	openLine
	due time.Time
}

// readNeeds queues the statements that lock and read what a batch needs: first the products, and then the customers,
// are locked. The other statements follow the locks, because a statement that waits for a lock still sees the orders as
// they were before its wait. With skipLocked no product is waited for.
func readNeeds(tx *postgres.Tx, batch []*placing, skipLocked bool) *needs {
	n := &needs{
		products: stock{}, locked: map[uuid.UUID]bool{}, existing: map[customerKey]existingOrder{},
		placed: map[uuid.UUID]bool{}, open: map[uuid.UUID][]pendingLine{},
	}
	var products, tried, customers, customersOfKeys uuids
	var keys []string
	for _, p := range batch {
		if p.tried {
			add(&tried, p.id)
		}
		p.tried = true
		add(&customers, p.customer)
		if p.IdempotencyKey != "" {
			add(&customersOfKeys, p.customer)
			keys = append(keys, p.IdempotencyKey)
		}
		for _, line := range p.Lines {
			add(&products, line.ProductID)
		}
	}
	var p Product
	columns, store := []any{&p.ID, &p.Name, &p.PriceCents, &p.Currency, &p.Available}, func() { n.products[p.ID] = p }
	if skipLocked {
		each(tx, lockSQL+" SKIP LOCKED", columns, store, products)
		var id uuid.UUID
		each(tx, `SELECT id FROM products WHERE id = ANY ($1::uuid[])`, []any{&id}, func() {
			_, mine := n.products[id]
			n.locked[id] = !mine
		}, products)
	} else {
		each(tx, lockSQL, columns, store, products)
	}
	tx.Queue(lockCustomersSQL, customers)
	if len(keys) > 0 {
		var key customerKey
		var found existingOrder
		each(tx, existingSQL, []any{&key.customer, &key.key, &found.id, &found.fingerprint}, func() {
			n.existing[key] = found
		}, customersOfKeys, keys)
	}
	if len(tried) > 0 {
		var id uuid.UUID
		each(tx, `SELECT id FROM orders WHERE id = ANY ($1::uuid[])`, []any{&id}, func() { n.placed[id] = true }, tried)
	}
	tx.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error {
		n.read = time.Now()
		return row.Scan(&n.now)
	})
	return n
}

// readOpen queues the statement that reads the pending orders of the customers of some placements.
func (n *needs) readOpen(tx *postgres.Tx, placings []*placing) {
	var customers uuids
	for _, p := range placings {
		add(&customers, p.customer)
	}
	var customer uuid.UUID
	var line pendingLine
	each(tx, openSQL, []any{&customer, &line.OrderID, &line.due, &line.ProductID, &line.Quantity}, func() {
		n.open[customer] = append(n.open[customer], line)
	}, customers)
}

// each queues a statement, and calls do for each of its rows, after the row's columns have been stored.
func each(tx *postgres.Tx, statement string, columns []any, do func(), args ...any) {
	tx.Queue(statement, args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, columns, func() error {
			do()
			return nil
		})
		return err
	})
}

// uuids is an array of ids, which pgx sends without reflection.
type uuids = pgtype.FlatArray[pgtype.UUID]

func add(ids *uuids, id uuid.UUID) { *ids = append(*ids, pgtype.UUID{Bytes: id, Valid: true}) }

// decide decides the placements of a batch in their order of arrival, and returns the accepted ones. It may be called
// again, when more is known.
func (n *needs) decide(batch []*placing, cfg Config) (accepted []*placing) {
	left := maps.Clone(n.products)     // what the accepted placements leave
	existing := maps.Clone(n.existing) // with the orders of the accepted placements
	open := map[uuid.UUID]openLines{}  // of each customer
	for customer, lines := range n.open {
		for _, line := range lines {
			if n.now.Before(line.due) {
				open[customer] = append(open[customer], line.openLine)
			}
		}
	}
	for _, p := range batch {
		p.order, p.existing, p.rejection, p.locked = nil, uuid.Nil, nil, false
		found, exists := existing[p.key()]
		switch {
		case n.placed[p.id]:
			p.existing = p.id
			continue
		case exists && !bytes.Equal(found.fingerprint, p.fingerprint()):
			p.rejection = rest.KeyReused.Errorf(
				"The Idempotency-Key belongs to order %s, which has other lines.", found.id)
			continue
		case exists:
			p.existing = found.id
			continue
		case slices.ContainsFunc(p.Lines, func(line Line) bool { return n.locked[line.ProductID] }):
			p.locked = true
			continue
		}
		if p.rejection = whyNotPlaced(p.Placement, left, open[p.customer], cfg); p.rejection != nil {
			continue
		}
		p.order = n.order(p, cfg.OrderTimeout)
		p.task = delay.At(p.id.String(), p.order.DueAt, n.now.Add(time.Since(n.read)))
		accepted = append(accepted, p)
		if p.IdempotencyKey != "" {
			existing[p.key()] = existingOrder{p.id, p.fingerprint()}
		}
		left.take(p.Lines)
		open[p.customer] = open[p.customer].add(p.id, p.Lines)
	}
	return accepted
}

// order returns the order of a placement that is accepted.
func (n *needs) order(p *placing, timeout time.Duration) *Order {
	deadline := n.now.Add(timeout.Truncate(time.Microsecond)) // as the database stores it
	o := &Order{
		ID: p.id, CustomerID: p.customer, Status: Pending, Currency: n.products[p.Lines[0].ProductID].Currency,
		CreatedAt: n.now, ExpiresAt: deadline, DueAt: deadline, ServerTime: n.now, Items: make([]Item, len(p.Lines)),
	}
	for i, line := range p.Lines {
		product := n.products[line.ProductID]
		o.Items[i] = Item{line.ProductID, product.Name, line.Quantity, product.PriceCents}
		o.TotalCents += product.PriceCents * line.Quantity
	}
	slices.SortFunc(o.Items, func(a, b Item) int { return bytes.Compare(a.ProductID[:], b.ProductID[:]) })
	return o
}

// queuePlaced queues the statements that write the orders of accepted placements, and reserve their stock. They need no
// order, because the transaction has locked the products.
func queuePlaced(tx *postgres.Tx, accepted []*placing) {
	var ids, customers, ordersOfLines, products, reserved uuids
	var totals, quantities, prices, units []int64
	var currencies, keys, names []string
	var fingerprints [][]byte
	taken := map[uuid.UUID]int64{}
	for _, p := range accepted {
		add(&ids, p.id)
		add(&customers, p.customer)
		totals, currencies = append(totals, p.order.TotalCents), append(currencies, p.order.Currency)
		keys, fingerprints = append(keys, p.IdempotencyKey), append(fingerprints, p.fingerprint())
		for _, item := range p.order.Items {
			add(&ordersOfLines, p.id)
			add(&products, item.ProductID)
			quantities, prices = append(quantities, item.Quantity), append(prices, item.UnitPriceCents)
			names = append(names, item.Name)
			taken[item.ProductID] += item.Quantity
		}
	}
	for id, quantity := range taken {
		add(&reserved, id)
		units = append(units, quantity)
	}
	first := accepted[0].order // all orders of a batch have the times of one clock
	tx.Queue(placeSQL, ids, customers, totals, currencies, keys, fingerprints, spansOf(accepted),
		first.CreatedAt, first.ExpiresAt, CancelKind, ordersOfLines, products, quantities, prices, names)
	tx.Queue(`
		UPDATE products p SET available = p.available - s.quantity
		FROM unnest($1::uuid[], $2::bigint[]) AS s (id, quantity) WHERE p.id = s.id`, reserved, units)
}

// publishTasks is the AfterCommit of the batcher: it publishes the tasks of the orders that a batch has placed. The
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
