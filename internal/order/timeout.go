package order

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// canceler cancels those of the orders that are due, all or none, and returns a verdict on each.
type canceler func(ctx context.Context, ids []uuid.UUID, actor Actor) ([]verdict, error)

// timeOut cancels those of the orders that are due and returns a verdict on each. wait does so in one transaction, and
// waits for their products as long as the actor has time. An error may come after some of the orders were cancelled.
func (s *Service) timeOut(ctx context.Context, ids []uuid.UUID, actor Actor, wait canceler) ([]verdict, error) {
	verdicts, err := s.cancel(ctx, ids, actor, wait)
	s.observe(ctx, verdicts, actor)
	return verdicts, err
}

// cancel cancels the orders by wait. When a statement has waited in vain for a product, the orders of products that are
// held are set apart from the others, here and in what follows: a lock that stays must not keep the others waiting.
func (s *Service) cancel(ctx context.Context, ids []uuid.UUID, actor Actor, wait canceler) ([]verdict, error) {
	if !s.stuck.any() {
		verdicts, err := wait(ctx, ids, actor)
		if !lockTimedOut(err) {
			return verdicts, err
		}
		s.stuck.suspect()
	}
	free, held, err := s.store.partByLocks(ctx, ids)
	if err != nil {
		return nil, err
	}
	verdicts, err := s.store.cancelDue(ctx, free, actor)
	for product, ids := range held {
		if err != nil {
			return verdicts, err
		}
		var some []verdict
		some, err = s.cancelHeld(ctx, product, ids, actor)
		verdicts = append(verdicts, some...)
	}
	return verdicts, err
}

// cancelHeld cancels orders of a product that another session holds. A placement holds it for milliseconds: it waits a
// little, unless it has lately waited in vain.
func (s *Service) cancelHeld(ctx context.Context, product uuid.UUID, ids []uuid.UUID, actor Actor) ([]verdict, error) {
	if !s.stuck.has(product) {
		verdicts, err := s.store.cancelSoon(ctx, ids, actor)
		if !lockTimedOut(err) {
			return verdicts, err
		}
		s.stuck.add(product)
	}
	verdicts := make([]verdict, len(ids))
	for i, id := range ids {
		verdicts[i] = verdict{ID: id, Outcome: blocked}
	}
	return verdicts, nil
}

// stuck remembers the products that statements have lately waited for in vain.
type stuck struct {
	mu       sync.Mutex
	until    time.Time               // when statements wait for any product again
	products map[uuid.UUID]time.Time // when to wait for each again
}

const (
	stuckFor = 5 * time.Second
	// suspectFor is much longer, for then a batch waits as long as the session's lock_timeout.
	suspectFor = time.Minute
	// mostStuck is how many products are waited for in vain, one after the other, before all that are held are taken
	// for stuck.
	mostStuck = 3
)

// any reports whether a statement has lately waited in vain.
func (s *stuck) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until)
}

// suspect notes that a statement has waited in vain for some product.
func (s *stuck) suspect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(suspectFor)
}

// add notes that a statement has waited in vain for a product.
func (s *stuck) add(product uuid.UUID) {
	s.suspect()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.products[product] = time.Now().Add(stuckFor)
}

// has reports whether a statement should not wait for a product that is held.
func (s *stuck) has(product uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(s.products, func(_ uuid.UUID, until time.Time) bool { return now.After(until) })
	_, is := s.products[product]
	return is || len(s.products) >= mostStuck
}

// observe counts, announces and logs what became of orders.
func (s *Service) observe(ctx context.Context, verdicts []verdict, actor Actor) {
	for _, v := range verdicts {
		s.metrics.outcomes.WithLabelValues(v.Outcome).Inc()
		if v.Outcome == cancelled {
			s.metrics.cancelled.WithLabelValues(string(ByTimeout)).Inc()
			s.metrics.lateness.WithLabelValues(string(actor)).Observe(v.duration().Seconds())
			s.changes.announce(v.CustomerID, v.ID)
			s.log.DebugContext(ctx, "unpaid order cancelled", "order_id", v.ID, "late", v.duration(), "actor", actor)
		}
	}
	if n := count(verdicts, blocked); n > 0 {
		s.log.WarnContext(ctx, "orders that may be due wait for a product that another session has locked", "orders", n)
	}
	if n := count(verdicts, cancelled); n > 0 {
		s.log.InfoContext(ctx, "unpaid orders cancelled", "orders", n, "actor", actor)
	}
}

// The outcomes that cancel_due.sql tells apart.
const (
	cancelled = "cancelled"
	terminal  = "terminal" // paid or cancelled before
	gone      = "gone"     // no such order
	notDue    = "not_due"
	locked    = "locked"
	blocked   = "blocked" // another session holds one of its products; of cancelHeld
)

// verdict is what became of one order that was asked to time out.
type verdict struct {
	ID         uuid.UUID
	CustomerID uuid.UUID // nil for the id of no order
	Outcome    string
	Micros     int64 // how late it was cancelled, or what is left until its deadline
}

func (v verdict) duration() time.Duration { return time.Duration(v.Micros) * time.Microsecond }

func count(verdicts []verdict, outcome string) int {
	n := 0
	for _, v := range verdicts {
		if v.Outcome == outcome {
			n++
		}
	}
	return n
}
