package payment_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

// testLimits are Stripe's limits in test mode.
var testLimits = provider.Limits{Rate: 25, OperationRate: 25}

func newCalls(m *memory, l provider.Limits) *provider.Calls {
	return provider.NewCalls(m, provider.CallsConfig{Limits: l}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// load calls do from some goroutines, one call after the other, and counts the calls without an error by class.
type load struct {
	done  sync.WaitGroup
	stop  chan struct{}
	calls sync.Map // by class: *atomic.Int64
}

func (l *load) add(class provider.Class, callers int, do func() error) {
	count := new(atomic.Int64)
	l.calls.Store(class, count)
	for range callers {
		l.done.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				if err := do(); err == nil {
					count.Add(1)
				} else {
					pass(10 * time.Millisecond) // of the bubble's clock
				}
			}
		})
	}
}

func (l *load) of(class provider.Class) int64 {
	count, _ := l.calls.Load(class)
	return count.(*atomic.Int64).Load()
}

// TestPriorities has each class want more calls than the limits allow. The calls in all stay within the limit. Classes
// that somebody waits for share it, and each gets a part. Polls get no call meanwhile, go on soon afterwards, and
// always leave half of what the limiter has saved up.
func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		calls := newCalls(m, provider.Limits{Rate: 100, OperationRate: 100})
		session, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
		testenv.Must(t, err)
		l := &load{stop: make(chan struct{})}
		create := func() error {
			_, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
			return err
		}
		retrieve := func(class provider.Class) func() error {
			return func() error {
				_, err := calls.Retrieve(t.Context(), class, session.ID)
				return err
			}
		}
		const seconds = 20
		l.add(provider.ClassConfirm, 20, retrieve(provider.ClassConfirm))
		l.add(provider.ClassPoll, 20, retrieve(provider.ClassPoll))
		pass(seconds * time.Second)
		if polls, confirms := l.of(provider.ClassPoll), l.of(provider.ClassConfirm); polls > 50 || confirms < 95*seconds {
			t.Errorf("in %d s: %d polls and %d confirmed, want none after the burst, and 100 a second", seconds, polls, confirms)
		}
		before := l.of(provider.ClassConfirm)
		l.add(provider.ClassCreate, 20, create)
		pass(seconds * time.Second)
		if n := l.of(provider.ClassCreate); n < 45*seconds {
			t.Errorf("in %d s: %d creates, want about 50 a second", seconds, n)
		}
		if n := l.of(provider.ClassConfirm) - before; n < 45*seconds {
			t.Errorf("in %d s of creates: %d confirmed, want about 50 a second", seconds, n)
		}
		close(l.stop)
		l.done.Wait()
		if n := m.count("create") + m.count("retrieve"); n > 100*(2*seconds+3) {
			t.Errorf("%d calls in %d s, want at most 100 a second", n, 2*seconds)
		}
		pass(time.Second)
		polls := 0
		for retrieve(provider.ClassPoll)() == nil {
			polls++
		}
		if polls < 20 || polls > 30 {
			t.Errorf("at once %d polls are made of a burst of 50, want half of it", polls)
		}
	})
}

// TestCallsThatTheirCallersEnd ends more calls than open a breaker before the provider answers. The breaker stays
// closed.
func TestCallsThatTheirCallersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		calls := newCalls(m, testLimits)
		session, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
		testenv.Must(t, err)
		m.hook("retrieve", memoryHook{before: func() error {
			pass(2 * time.Second)
			return failed(provider.NoAnswer, "")
		}})
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := calls.Retrieve(ctx, provider.ClassConfirm, session.ID)
			wantError(t, err, provider.Busy, "")
			cancel()
		}
		m.hook("retrieve", memoryHook{})
		if _, err := calls.Retrieve(t.Context(), provider.ClassConfirm, session.ID); err != nil {
			t.Errorf("after calls that their callers ended, a call fails: %v", err)
		}
	})
}

// TestManyProcesses has each of 20 processes want more calls than its part of the limits allows. At each time they
// have together made at most as many calls as the provider accepts. Creates and expires share the calls, so that
// checkouts are closed although many are opened, and polls get theirs when both have ended.
func TestManyProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		const processes, seconds = 20, 20
		loads, polls := make([]*load, processes), make([]func() error, processes)
		for i := range loads {
			calls := newCalls(m, provider.Limits{Rate: testLimits.Rate / processes, OperationRate: testLimits.OperationRate / processes})
			loads[i] = &load{stop: make(chan struct{})}
			loads[i].add(provider.ClassCreate, 4, func() error {
				_, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
				return err
			})
			loads[i].add(provider.ClassExpire, 4, func() error {
				_, err := calls.Expire(t.Context(), "unknown")
				return err
			})
			polls[i] = func() error {
				_, err := calls.Retrieve(t.Context(), provider.ClassPoll, "cs_1")
				return err
			}
			loads[i].add(provider.ClassPoll, 1, polls[i])
		}
		for began := time.Now(); time.Since(began) < seconds*time.Second; pass(100 * time.Millisecond) {
			synctest.Wait()
			most := testLimits.Rate * (1 + time.Since(began).Seconds())
			if n := m.count("create") + m.count("expire") + m.count("retrieve"); float64(n) > most {
				t.Errorf("%d calls in %v, want at most %.0f", n, time.Since(began), most)
				break
			}
		}
		for _, l := range loads {
			close(l.stop)
		}
		for _, l := range loads {
			l.done.Wait()
		}
		creates, expires := m.count("create"), m.count("expire")
		if creates+expires < 20*seconds || min(creates, expires) < 8*seconds {
			t.Errorf("in %d s: %d creates and %d expires, want at least 20 a second, and 8 of each", seconds, creates, expires)
		}
		pass(5 * time.Second)
		for _, poll := range polls {
			testenv.Must(t, poll())
		}
	})
}

// TestTurns has more customers open checkouts, one after the other, than the limit lets through at once. Each of them
// must get its turn within the time for which a create waits: there are few enough.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.delay = 800 * time.Millisecond
		calls := newCalls(m, provider.Limits{Rate: 100, OperationRate: 25})
		l := &load{stop: make(chan struct{})}
		var refused atomic.Int64
		l.add(provider.ClassCreate, 40, func() error {
			_, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
			if err != nil {
				refused.Add(1)
			}
			return err
		})
		const seconds = 60
		pass(seconds * time.Second)
		close(l.stop)
		l.done.Wait()
		if n := l.of(provider.ClassCreate); refused.Load() > 0 || n < 24*seconds {
			t.Errorf("%d creates in %d s, and %d refused; want 25 a second, and none", n, seconds, refused.Load())
		}
	})
}

// TestTwoThousandClosings expires 2,000 sessions with one deadline at 25 calls a second, with the slots of one worker
// and a provider that takes 0.8 s a call. It takes less than the grace of 2 minutes.
func TestTwoThousandClosings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.delay = 800 * time.Millisecond
		unlimited, calls := newCalls(m, provider.Limits{}), newCalls(m, testLimits)
		sessions := make(chan string, 2000)
		for i := range cap(sessions) {
			m.sessions[string(rune(i))] = &provider.Session{ID: string(rune(i))}
			sessions <- string(rune(i))
		}
		testenv.Must(t, func() error { _, err := unlimited.Retrieve(t.Context(), provider.ClassPoll, "\x01"); return err }())
		l := &load{stop: make(chan struct{})}
		l.add(provider.ClassPoll, 16, func() error { // meanwhile other checkouts are polled
			_, err := calls.Retrieve(t.Context(), provider.ClassPoll, "\x01")
			return err
		})
		began := time.Now()
		var workers sync.WaitGroup
		for range 2 * check.BatchSize {
			workers.Go(func() {
				for {
					select {
					case id := <-sessions:
						if _, err := calls.Expire(t.Context(), id); err != nil {
							pass(time.Second)
							sessions <- id // its next check
						}
					default:
						return
					}
				}
			})
		}
		workers.Wait()
		took := time.Since(began)
		close(l.stop)
		l.done.Wait()
		t.Logf("2,000 sessions were expired in %v", took)
		if took > grace {
			t.Errorf("2,000 sessions were expired in %v, want within the grace of %v", took, grace)
		}
	})
}

// TestBreakersOfClasses has one class of calls fail, and checks that the others go on.
func TestBreakersOfClasses(t *testing.T) {
	m := newMemory()
	calls := newCalls(m, provider.Limits{})
	session, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
	testenv.Must(t, err)
	retrieve := func(class provider.Class) error {
		_, err := calls.Retrieve(t.Context(), class, session.ID)
		return err
	}
	for class, opens := range map[provider.ErrorClass]bool{
		provider.Busy: false, provider.Denied: false, provider.Missing: false, provider.Refused: false, provider.NoAnswer: true,
	} {
		m.fail("retrieve", failed(class, ""))
		for range 6 {
			if retrieve(provider.ClassPoll) == nil {
				t.Fatal("the call succeeds, want the error of the provider")
			}
		}
		m.fail("retrieve", nil)
		if err := retrieve(provider.ClassPoll); (err != nil) != opens {
			t.Errorf("after errors of class %d: %v; want an open breaker: %v", class, err, opens)
		}
		if err := retrieve(provider.ClassConfirm); err != nil {
			t.Errorf("after errors of class %d in polls, another class fails: %v", class, err)
		}
		calls = newCalls(m, provider.Limits{})
	}
}

// TestThrottled checks that polls pause after the provider says that it gets too many calls, and that nothing else
// does.
func TestThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		calls := newCalls(m, testLimits)
		session, err := calls.Create(t.Context(), provider.Checkout{Key: "first"})
		testenv.Must(t, err)
		m.fail("retrieve", failed(provider.Busy, provider.TooManyCalls))
		if _, err := calls.Retrieve(t.Context(), provider.ClassPoll, session.ID); err == nil {
			t.Fatal("the call succeeds, want the error of the provider")
		}
		m.fail("retrieve", nil)
		before := m.count("retrieve")
		pass(5 * time.Second)
		_, err = calls.Retrieve(t.Context(), provider.ClassPoll, session.ID)
		wantError(t, err, provider.Busy, "")
		if n := m.count("retrieve") - before; n != 0 {
			t.Errorf("a poll after the answer makes %d calls, want none", n)
		}
		if _, err := calls.Retrieve(t.Context(), provider.ClassConfirm, session.ID); err != nil {
			t.Errorf("a check that somebody waits for fails: %v", err)
		}
		pass(6 * time.Second)
		if _, err := calls.Retrieve(t.Context(), provider.ClassPoll, session.ID); err != nil {
			t.Errorf("a poll after the pause fails: %v", err)
		}
	})
}

// TestCallsOfACheckout counts the calls for a checkout.
func TestCallsOfACheckout(t *testing.T) {
	s := newMemoryShop(t)
	count := func() int { return s.mem.count("create") + s.mem.count("retrieve") + s.mem.count("expire") }
	for name, test := range map[string]struct {
		most int
		do   func(t *testing.T)
	}{
		"paid": {2, func(t *testing.T) {
			o, a := s.placeOpen(t)
			s.pay(t, a.CheckoutURL)
			s.tell(t, a)
			s.settle(t, o.ID)
			s.wantOrder(t, o, "paid")
		}},
		"closed by its customer": {2, func(t *testing.T) {
			o, _ := s.placeOpen(t)
			s.cancel(t, o)
			s.settle(t, o.ID)
			s.wantOrder(t, o, "cancelled customer")
		}},
	} {
		before := count()
		test.do(t)
		if n := count() - before; n > test.most {
			t.Errorf("%s: %d calls, want at most %d", name, n, test.most)
		}
	}
	s.check(t)
}

// pass waits for a time: of the clock of a bubble of [synctest], or between two looks at Stripe.
func pass(d time.Duration) { <-time.After(d) }
