package order

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
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

var placeStatement = named(placeSQL, placeArguments(nil, Options{}, ""))

// The bounds of the batches of placements. [batch.Config] says what they mean.
const (
	placementLanes = 2
	maxBatch       = 200
	// maxPlacementWait is how long the first placement in the queue may wait before further ones are rejected: a
	// client gets its order or a rejection within about a second.
	maxPlacementWait = 500 * time.Millisecond
	// maxUnderWay placements keep a machine busy for some tenths of a second. With more, cancellations would wait,
	// too.
	maxUnderWay = 1000
	// productLockWait is longer than a session usually keeps the locks of its products.
	productLockWait = 200 * time.Millisecond
	// batchTimeout is between the statement_timeout and the time limit of a client's request.
	batchTimeout = 7 * time.Second
)

// Placement is a request for an order.
type Placement struct {
	// IdempotencyKey makes it safe to repeat a placement: a placement with the key of an earlier one returns the order
	// that the earlier one placed. "" means no key.
	IdempotencyKey string
	Lines          []Line
}

// Line requests a quantity of a product.
type Line struct {
	ProductID uuid.UUID
	Quantity  int64
}

const (
	maxLines    = 50   // of an order, which locks the product of each
	maxQuantity = 1000 // of a line; a larger one is more likely a mistake than an order
)

// fieldErrors returns all errors of a placement that can be found without a look at the products.
func (p Placement) fieldErrors() []rest.FieldError {
	if len(p.Lines) < 1 || len(p.Lines) > maxLines {
		return []rest.FieldError{{
			Pointer: "/items", Detail: fmt.Sprintf("must be a list of 1 to %d lines, has %d", maxLines, len(p.Lines)),
		}}
	}
	var errs []rest.FieldError
	lineOf := make(map[uuid.UUID]int, len(p.Lines))
	for i, line := range p.Lines {
		add := func(field, detail string) {
			errs = append(errs, rest.FieldError{Pointer: pointer(i, field), Detail: detail})
		}
		first, duplicate := lineOf[line.ProductID]
		switch {
		case line.ProductID == uuid.Nil:
			add("product_id", "must be the UUID of a product")
		case duplicate:
			add("product_id", fmt.Sprintf("is the same as %s: order a product in one line", pointer(first, "product_id")))
		default:
			lineOf[line.ProductID] = i
		}
		if line.Quantity < 1 || line.Quantity > maxQuantity {
			add("quantity", fmt.Sprintf("must be a whole number from 1 to %d", maxQuantity))
		}
	}
	return errs
}

// pointer returns the JSON pointer to a field of a line of a placement.
func pointer(line int, field string) string { return fmt.Sprintf("/items/%d/%s", line, field) }

// fingerprint returns a hash of the lines, to detect that an idempotency key is reused for another placement. The
// order of the lines and the formatting of the request do not change it. It returns nil without a key.
func (p Placement) fingerprint() []byte {
	if p.IdempotencyKey == "" {
		return nil
	}
	lines := make([]string, len(p.Lines))
	for i, line := range p.Lines {
		lines[i] = fmt.Sprintf("%s %d\n", line.ProductID, line.Quantity)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return sum[:]
}

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

// Admit admits a placement. It returns [rest.Overloaded] while earlier placements wait too long for their batches, or
// too many are under way. It costs little: call it when the placement has been read, before anything else is done for
// it, and call done at its end.
func (s *Service) Admit() (done func(), err error) {
	done, err = s.placements.Admit()
	if err != nil {
		s.countRejected(errOverloaded)
		return nil, errOverloaded
	}
	return done, nil
}

// Place places an order: it reserves the stock, and the time to pay begins. If the customer has placed an order with
// the same idempotency key before, Place returns that order in its present state, and replayed is true.
func (s *Service) Place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	defer func() {
		if err != nil {
			s.countRejected(err)
		} else if !replayed {
			s.metrics.placed.Inc()
		}
	}()
	if errs := p.fieldErrors(); len(errs) > 0 {
		return nil, false, rest.InvalidFields(errs...)
	}
	placing := &placing{id: keyset.NewID(), customer: customer, span: s.cfg.Tracer.Span(ctx), Placement: p}
	err = s.placements.Do(ctx, placing) // placeBatch places it
	switch {
	case errors.Is(err, batch.ErrOverloaded):
		return nil, false, errOverloaded
	case err != nil:
		return nil, false, placementUnknown(fmt.Errorf("place order: %w", err))
	case placing.rejection != nil:
		return nil, false, placing.rejection
	case placing.existing != nil:
		o, err = s.existingOrder(ctx, placing)
		return s.withActions(o), *placing.existing != placing.id, placementUnknown(err)
	default:
		return s.withActions(placing.order), false, nil
	}
}

// errOverloaded rejects a placement because more arrive than can be placed: the first one in the queue, or this one,
// has waited too long for its batch, or too many are under way.
var errOverloaded = rest.Overloaded.Errorf(
	"More orders arrive than the shop can place right now. Nothing was ordered: repeat the request in a moment.")

// placementUnknown replaces an error after which the order may or may not have been placed.
func placementUnknown(err error) error {
	return rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: it then returns the same order. "+
		"Without a key, look at your orders first.")
}

// countRejected counts a placement that was rejected.
func (s *Service) countRejected(err error) {
	s.metrics.rejected.WithLabelValues(rest.AsError(err).Class.Code).Inc()
}

// existingOrder returns the order that exists for a placement already. It returns an error if another placement has
// used the idempotency key.
func (s *Service) existingOrder(ctx context.Context, p *placing) (*Order, error) {
	var fingerprint []byte // nil if the order was placed without an idempotency key
	db := s.store.db.WithContext(ctx)
	if err := db.Raw(`SELECT fingerprint FROM orders WHERE id = $1`, *p.existing).Row().Scan(&fingerprint); err != nil {
		return nil, fmt.Errorf("read the order with the same idempotency key: %w", err)
	}
	if !bytes.Equal(fingerprint, p.fingerprint()) {
		return nil, rest.KeyReused.Errorf("The Idempotency-Key belongs to order %s, which has other lines.", p.existing)
	}
	return s.store.get(ctx, *p.existing, p.customer)
}

// placing is a placement in a batch, and the decision on it.
type placing struct {
	id       uuid.UUID // of the order, if the placement is accepted; a repeated transaction places no second order
	customer uuid.UUID
	span     []byte // that of the request; nil: it is not traced
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

// placeBatch is the Handle of [batch.Table]: it places a batch, and returns those placements that are not decided
// after an error.
func (s *Service) placeBatch(
	ctx context.Context, placings []*placing, lockWait time.Duration,
) (left []*placing, err error) {
	ctx, end := s.cfg.Tracer.StartPlacing(ctx, spansOf(placings))
	defer func() { end(err) }()
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
				return fmt.Errorf("internal inconsistency: place.sql decided none of %d placements, the first of lines %+v",
					len(round), round[0].Lines)
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

// placeRound runs the transaction for a batch until it succeeds. If the connection is lost, or if PostgreSQL ends the
// transaction to resolve a deadlock, placeRound repeats the transaction. That is safe: place.sql finds the orders that
// the lost transaction has placed by their ids. placeRound also repeats the transaction if a session that takes none
// of its locks has used one of the idempotency keys meanwhile.
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
	arguments := placeArguments(batch, s.cfg.Options, s.store.RowKind(CancelKind))
	products := make(map[uuid.UUID]Product) // as they are after they were locked, and before place.sql changes them
	results := make([]placeResult, len(batch))
	var statements pgx.Batch
	lockTimeout := pgtype.Text{String: strconv.FormatInt(lockWait.Milliseconds(), 10), Valid: lockWait > 0}
	statements.Queue(lockSQL, arguments["line_products"], arguments["customers"], lockTimeout).Query(func(rows pgx.Rows) error {
		var p Product
		_, err := pgx.ForEachRow(rows, []any{&p.ID, &p.Name, &p.PriceCents, &p.Currency, &p.Available}, func() error {
			products[p.ID] = p
			return nil
		})
		return err
	})
	statements.Queue(placeStatement.text, placeStatement.values(arguments)...).Query(func(rows pgx.Rows) error {
		var r placeResult
		_, err := pgx.ForEachRow(rows, []any{
			&r.N, &r.Placed, &r.TotalCents, &r.Currency, &r.CreatedAt, &r.ExpiresAt, &r.ExistingID, &r.ServerTime, &r.OpenLines,
		}, func() error {
			results[r.N-1] = r
			r = placeResult{} // the next row shares no memory with this one
			return nil
		})
		return err
	})
	if err := postgres.Pipeline(ctx, s.store.db, &statements); err != nil {
		return err
	}
	decide(batch, products, results, s.cfg)
	return nil
}

// placeArguments returns the arguments of place.sql by their names, which its comment explains. kind is that of the
// outbox rows.
func placeArguments(batch []*placing, o Options, kind string) map[string]any {
	type customerProduct struct{ customer, product uuid.UUID }
	units, ownUnits := make(map[uuid.UUID]int64), make(map[customerProduct]int64)
	placements := make(map[uuid.UUID]int64) // by customer

	var ids, customers, lineProducts pgtype.FlatArray[pgtype.UUID] // which pgx sends without reflection
	var nth, linePlacements, lineQuantities, lineEarlier, lineOwnEarlier []int64
	var keys pgtype.FlatArray[pgtype.Text]
	var fingerprints [][]byte
	for i, p := range batch {
		placements[p.customer]++
		ids = append(ids, pgtype.UUID{Bytes: p.id, Valid: true})
		customers = append(customers, pgtype.UUID{Bytes: p.customer, Valid: true})
		nth = append(nth, placements[p.customer])
		keys = append(keys, pgtype.Text{String: p.IdempotencyKey, Valid: p.IdempotencyKey != ""})
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
		"time_to_pay": o.OrderTimeout.Microseconds(), "kind": kind,
		"max_open_orders": pgtype.Int8{Int64: o.MaxOpenOrders, Valid: o.MaxOpenOrders > 0},
		"max_open_units":  pgtype.Int8{Int64: o.MaxOpenUnits, Valid: o.MaxOpenUnits > 0},
	}
}

// placeResult is a row of place.sql.
type placeResult struct {
	N          int // the number of the placement in the batch, from 1
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

// decide decides the placements of a batch by the results of place.sql. A placement stays undecided if place.sql left
// it out only because of an earlier placement, which is rejected.
func decide(batch []*placing, products map[uuid.UUID]Product, results []placeResult, cfg Config) {
	open := make(map[uuid.UUID][]openLine) // by customer: the lines of the orders that were placed now, the newest first
	for i, p := range batch {
		r := results[i]
		switch {
		case r.Placed:
			p.order = r.order(p, products)
			// At counts from the present, so it is not called later: other placements of the batch may wait for locks
			// first.
			p.task = delay.At(p.id.String(), p.order.DueAt, p.order.ServerTime)
			for _, line := range p.Lines {
				product := products[line.ProductID]
				product.Available -= line.Quantity
				products[line.ProductID] = product
				open[p.customer] = slices.Insert(open[p.customer], 0, openLine{p.id, line.ProductID, line.Quantity})
			}
		case r.ExistingID != nil:
			p.existing = r.ExistingID
		}
	}
	// Now products and open tell what is left after all accepted placements. place.sql accepts a placement only if
	// enough is left for all earlier ones. So if too little is left for a placement now, there was too little at its
	// turn, too. If enough is left, the placement stays undecided, and the caller repeats the transaction with it.
	for i, p := range batch {
		if !p.isDecided() {
			p.rejection = whyNotPlaced(p.Placement, products, slices.Concat(open[p.customer], results[i].OpenLines), cfg)
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

// whyNotPlaced returns the reason why a placement cannot be accepted, with a field error for every wrong line, or nil
// if it can. products has the existing products of the lines. open has the lines of the customer's open orders.
func whyNotPlaced(p Placement, products map[uuid.UUID]Product, open []openLine, cfg Config) *rest.Error {
	return cmp.Or(unknownProducts(p, products), mixedCurrencies(p, products), outOfStock(p, products, open),
		tooManyOpen(p, products, open, cfg))
}

func unknownProducts(p Placement, products map[uuid.UUID]Product) *rest.Error {
	return rejectLines(UnknownProduct, "Some of the products do not exist.", p, "product_id", func(line Line) string {
		if _, known := products[line.ProductID]; known {
			return ""
		}
		return fmt.Sprintf("there is no product %s", line.ProductID)
	})
}

func mixedCurrencies(p Placement, products map[uuid.UUID]Product) *rest.Error {
	first := products[p.Lines[0].ProductID].Currency
	if !slices.ContainsFunc(p.Lines, func(line Line) bool { return products[line.ProductID].Currency != first }) {
		return nil
	}
	detail := "All products of an order must have one currency: place an order for each currency."
	return rejectLines(MixedCurrencies, detail, p, "product_id", func(line Line) string {
		return "is priced in " + products[line.ProductID].Currency
	})
}

// outOfStock checks the stock. If open orders of the customer hold units of a product of which too little is left,
// its error has the ids of these orders, because the customer can cancel one of them.
func outOfStock(p Placement, products map[uuid.UUID]Product, open []openLine) *rest.Error {
	own := unitsOf(open)
	var short []uuid.UUID // products
	rejection := rejectLines(OutOfStock, "There is not enough stock.", p, "quantity", func(line Line) string {
		product := products[line.ProductID]
		if line.Quantity <= product.Available {
			return ""
		}
		short = append(short, line.ProductID)
		detail := fmt.Sprintf("%s: %d wanted, %d available", product.Name, line.Quantity, product.Available)
		if n := own[line.ProductID]; n > 0 {
			detail += fmt.Sprintf(", %d in your open orders", n)
		}
		return detail
	})
	orders := ordersOf(open, short)
	if rejection == nil || len(orders) == 0 {
		return rejection
	}
	rejection.Detail = "There is not enough stock, and your own open orders hold some of it. " +
		"It does not help to pay them, but if you cancel one, its units are available again."
	return withOpenOrders(rejection, orders)
}

// tooManyOpen checks the bounds of what a customer can order without paying it. Its error has the ids of open orders:
// of all, or of those with a product of which they would have too many units.
func tooManyOpen(p Placement, products map[uuid.UUID]Product, open []openLine, cfg Config) *rest.Error {
	if orders := ordersOf(open, nil); cfg.MaxOpenOrders > 0 && int64(len(orders)) >= cfg.MaxOpenOrders {
		rejection := TooManyOpen.Errorf("You have %d orders that are not paid, and can have at most %d: "+
			"pay or cancel one of them.", len(orders), cfg.MaxOpenOrders)
		return withOpenOrders(rejection, orders)
	}
	units := unitsOf(open)
	var tooMany []uuid.UUID // products
	detail := "You would hold too many units of a product in orders that are not paid."
	rejection := rejectLines(TooManyOpen, detail, p, "quantity", func(line Line) string {
		if cfg.MaxOpenUnits == 0 || units[line.ProductID]+line.Quantity <= cfg.MaxOpenUnits {
			return ""
		}
		tooMany = append(tooMany, line.ProductID)
		return fmt.Sprintf("%s: %d wanted, %d in your open orders, at most %d of both together",
			products[line.ProductID].Name, line.Quantity, units[line.ProductID], cfg.MaxOpenUnits)
	})
	if rejection == nil {
		return nil
	}
	return withOpenOrders(rejection, ordersOf(open, tooMany))
}

// unitsOf returns the units of the lines by product.
func unitsOf(lines []openLine) map[uuid.UUID]int64 {
	units := make(map[uuid.UUID]int64)
	for _, line := range lines {
		units[line.ProductID] += line.Quantity
	}
	return units
}

// ordersOf returns the ids of the orders that the lines belong to, each once. If products is not nil, it returns only
// those with one of the products.
func ordersOf(lines []openLine, products []uuid.UUID) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, line := range lines {
		if !slices.Contains(ids, line.OrderID) && (products == nil || slices.Contains(products, line.ProductID)) {
			ids = append(ids, line.OrderID)
		}
	}
	return ids
}

func withOpenOrders(rejection *rest.Error, ids []uuid.UUID) *rest.Error {
	rejection.Extensions = map[string]any{"open_orders": ids}
	return rejection
}

// rejectLines returns an error of the class, with a field error for each line for which check returns a detail. It
// returns nil if check returns "" for all lines.
func rejectLines(class rest.Class, detail string, p Placement, field string, check func(Line) string) *rest.Error {
	var errs []rest.FieldError
	for i, line := range p.Lines {
		if detail := check(line); detail != "" {
			errs = append(errs, rest.FieldError{Pointer: pointer(i, field), Detail: detail})
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &rest.Error{Class: class, Detail: detail, Fields: errs}
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

// waitForProduct is the WaitFor of [batch.Table]: it waits until no other session has locked a product, for at most
// the lock_timeout of the session. It locks no other product meanwhile, because other placements may want that one.
func (s *Store) waitForProduct(ctx context.Context, id uuid.UUID) error {
	err := postgres.RetryDeadlock(func() error {
		return s.db.WithContext(ctx).Exec(`SELECT FROM products WHERE id = $1 FOR NO KEY UPDATE`, id).Error
	})
	if err != nil {
		return fmt.Errorf("wait for product %s, which another session has locked: %w", id, err)
	}
	return nil
}
