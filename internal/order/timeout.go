package order

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// TimeOut cancels those of the orders that are due, without the help of any queue. It returns how many it cancelled and
// how many other sessions hold, or a product of theirs. Ids that are no order's count as neither. After an error some
// may have been cancelled; [Unavailable] tells whether it is the orders' or the database's.
func (s *Service) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	orders := make([]uuid.UUID, 0, len(ids))
	for _, id := range ids {
		if parsed, err := parseID(id); err == nil {
			orders = append(orders, parsed)
		}
	}
	verdicts, err := s.timeOut(ctx, orders, Reconciler, s.store.cancelSoon(lockWait))
	return count(verdicts, cancelled), count(verdicts, locked) + count(verdicts, blocked), err
}

// canceler cancels those of the orders that are due, all or none, and returns a verdict on each.
type canceler func(ctx context.Context, ids []uuid.UUID, actor Actor) ([]verdict, error)

// timeOut cancels those of the orders that are due by cancel, which waits for products that other sessions hold. It
// returns a verdict on each. An error may come after some of the orders were cancelled.
//
// When a statement has waited in vain for a product, the orders of products that are held are set apart from the others,
// here and in what follows: a lock that stays must not keep the others waiting.
func (s *Service) timeOut(ctx context.Context, ids []uuid.UUID, actor Actor, cancel canceler) ([]verdict, error) {
	if !s.stuck.suspected() {
		verdicts, err := cancel(ctx, ids, actor)
		if !lockTimedOut(err) {
			s.observe(ctx, verdicts, actor)
			return verdicts, err
		}
		s.stuck.suspect()
	}
	verdicts, err := s.timeOutApart(ctx, ids, actor, cancel)
	s.observe(ctx, verdicts, actor)
	return verdicts, err
}

func (s *Service) timeOutApart(ctx context.Context, ids []uuid.UUID, actor Actor, cancel canceler) ([]verdict, error) {
	free, held, err := s.store.partByLocks(ctx, ids)
	if err != nil {
		return nil, err
	}
	verdicts, err := cancel(ctx, free, actor)
	if lockTimedOut(err) { // locked since a moment ago
		verdicts, err = leave(free), nil
	}
	for product, ids := range held {
		if err != nil {
			return verdicts, err
		}
		var some []verdict
		some, err = s.timeOutHeld(ctx, product, ids, actor)
		verdicts = append(verdicts, some...)
	}
	return verdicts, err
}

// timeOutHeld cancels orders of a product that another session holds. A placement holds it for milliseconds, so it waits
// a little.
func (s *Service) timeOutHeld(ctx context.Context, product uuid.UUID, ids []uuid.UUID, actor Actor) ([]verdict, error) {
	wait := s.stuck.wait(product)
	if wait == 0 {
		return leave(ids), nil
	}
	verdicts, err := s.store.cancelSoon(wait)(ctx, ids, actor)
	if lockTimedOut(err) {
		s.stuck.add(product)
		return leave(ids), nil
	}
	return verdicts, err
}

// leave is the verdict on orders that are blocked.
func leave(ids []uuid.UUID) []verdict {
	verdicts := make([]verdict, len(ids))
	for i, id := range ids {
		verdicts[i] = verdict{ID: id, Outcome: blocked}
	}
	return verdicts
}

// stuck remembers the products that statements have lately waited for in vain.
type stuck struct {
	mu       sync.Mutex
	until    time.Time               // when statements wait for any product again
	products map[uuid.UUID]time.Time // when to wait for each again
}

const (
	stuckFor = 5 * time.Second
	// suspectFor is much longer, for then a batch of the worker waits as long as the session's lock_timeout.
	suspectFor = time.Minute
	// lockWait is longer than a product is held by the placements that come before in its queue, and short enough for a
	// sweep to wait. mostStuck products are waited for so long, one after the other, and the next ones for shortWait.
	lockWait  = 500 * time.Millisecond
	mostStuck = 3
	shortWait = 50 * time.Millisecond
)

// suspected reports whether a statement has lately waited in vain.
func (s *stuck) suspected() bool {
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

// wait returns how long a statement should wait for a product that is held.
func (s *stuck) wait(product uuid.UUID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(s.products, func(_ uuid.UUID, until time.Time) bool { return now.After(until) })
	_, stuck := s.products[product]
	switch {
	case stuck:
		return 0
	case len(s.products) >= mostStuck:
		return shortWait
	default:
		return lockWait
	}
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
