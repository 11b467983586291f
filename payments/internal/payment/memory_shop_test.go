package payment_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/provider"
)

// newMemoryShop returns a shop whose provider is in memory.
func newMemoryShop(t testing.TB) *shop {
	t.Helper()
	s := openShop(t)
	s.mem = newMemory()
	s.start(t, s.mem)
	return s
}

// faults are what a test makes of the calls to the provider in memory.
type faults struct {
	api   string           // "down", "loses_answers" or "errors", as the simulator's knob
	errs  map[string]error // by operation; "" is all, and "key" is the same for another reason
	hooks map[string]memoryHook
	calls map[string]int
	delay time.Duration // of each call
}

// memoryHook is called around a call that is executed.
type memoryHook struct{ before, after func() error }

// failed returns an error of the provider with a class.
func failed(class provider.ErrorClass, cause provider.Cause) error {
	return &provider.Error{Class: class, Cause: cause, Operation: "call", Err: errors.New("the memory provider fails")}
}

// fail makes the calls of an operation fail until it is called with nil.
func (m *memory) fail(operation string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errs[operation] = err
}

func (m *memory) hook(operation string, h memoryHook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hooks[operation] = h
}

func (m *memory) count(operation string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[operation]
}

// call executes a call under the lock, with the delay, the errors and the hook of its operation.
func (m *memory) call(ctx context.Context, operation string, do func() error) error {
	m.mu.Lock()
	m.calls[operation]++
	delay, hook, api, err := m.delay, m.hooks[operation], m.api, errors.Join(m.errs["key"], m.errs[operation], m.errs[""])
	m.mu.Unlock()
	// If several goroutines of a bubble receive from timers that are due at once, the race detector crashes:
	// https://go.dev/issue/78156.
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err == nil && api == "down" {
		err = failed(provider.NoAnswer, "")
	}
	if err == nil && hook.before != nil {
		err = hook.before()
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	err = do()
	m.mu.Unlock()
	if hook.after != nil {
		err = errors.Join(err, hook.after())
	}
	if api == "loses_answers" {
		return failed(provider.NoAnswer, "")
	}
	return err
}

// once executes a call that makes something, unless a call with its key has made it, and returns its present state.
func once[T any](ctx context.Context, m *memory, operation, key string, create func() *T) (made T, err error) {
	err = m.call(ctx, operation, func() error {
		stored, known := m.keys[key]
		switch {
		case known && stored == nil:
			return failed(provider.Replayed, "")
		case !known && m.api == "errors":
			m.keys[key] = nil
			return failed(provider.NoAnswer, "")
		case !known:
			stored = create()
			m.keys[key] = stored
		}
		made = *stored.(*T) // a key is used for one operation only
		return nil
	})
	return made, err
}

// set changes the provider under its lock.
func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// of returns the session of an attempt.
func (m *memory) of(t testing.TB, attempt uuid.UUID) *provider.Session {
	t.Helper()
	for _, s := range m.sessions {
		if s.Attempt == attempt.String() {
			return s
		}
	}
	t.Fatalf("the provider has no session of attempt %s", attempt)
	return nil
}

// pay is the customer, and reports whether the payment succeeded.
func (m *memory) pay(url string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		if s.URL == url && !s.Paid && !s.Expired {
			m.capture(s)
			return true
		}
	}
	return false
}

// capture has the customer pay a session.
func (m *memory) capture(s *provider.Session) {
	s.Paid, s.Intent = true, "pi_"+s.ID
	m.move(provider.Captured, "ch_"+s.Intent, s.Intent, "", s.AmountCents)
}

// byHand refunds money of a payment at the provider in memory, as an operator does there.
func (m *memory) byHand(t *testing.T, intent string, cents int64) {
	t.Helper()
	_, err := m.Refund(t.Context(), provider.Return{Intent: intent, AmountCents: cents, Key: uuid.NewString()})
	testenv.Must(t, err)
}

// returned returns the money of a payment that was returned, or is being returned.
func (m *memory) returned(intent string) (cents int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.refunds[intent] {
		if r.State != provider.Failed {
			cents += r.AmountCents
		}
	}
	return cents
}

// become changes the state of a refund of a payment.
func (m *memory) become(intent string, r *provider.Refund, state provider.RefundState) {
	if state == provider.Failed && r.State != provider.Failed {
		r.Reason = "expired_or_canceled_card"
		m.move(provider.RefundFailed, r.ID, intent, r.Refund, r.AmountCents)
	}
	r.State = state
}

// end changes the state of all refunds of a payment.
func (m *memory) end(intent string, state provider.RefundState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.refunds[intent] {
		m.become(intent, r, state)
	}
}

// setRefunds sets what becomes of refunds, by the name of the simulator's knob. Those that are sent are confirmed when
// new ones succeed.
func (m *memory) setRefunds(refunds string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = map[string]provider.RefundState{"succeed": provider.Confirmed, "pending": provider.Sent, "fail": provider.Failed}[refunds]
	for _, all := range m.refunds {
		for _, r := range all {
			if r.State == provider.Sent && m.state == provider.Confirmed {
				r.State = provider.Confirmed
			}
		}
	}
}

// entries returns the ledger by session.
func (m *memory) entries() (all []ledgerEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		e := ledgerEntry{Attempt: s.Attempt, Session: s.ID, Status: "open", Amount: s.AmountCents, Intent: s.Intent}
		switch {
		case s.Paid:
			e.Status = "complete"
		case s.Expired:
			e.Status = "expired"
		}
		for _, row := range m.ledger {
			switch {
			case row.Intent != s.Intent:
			case row.Kind == provider.Captured:
				e.Captured += row.AmountCents
			case row.Kind == provider.Refunded:
				e.Refunded += row.AmountCents
			case row.Kind == provider.RefundFailed:
				e.Refunded -= row.AmountCents
			}
		}
		all = append(all, e)
	}
	return all
}

// events returns events as Stripe's webhooks carry them about the session of an attempt.
func (m *memory) events(attempt uuid.UUID) (all []event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add := func(id, eventType string, object []byte) {
		all = append(all, event{id, eventType, eventBody(id, eventType, "v", object)})
	}
	for _, s := range m.sessions {
		object := sessionObject(s.ID, s.Attempt, s.Deployment)
		switch {
		case s.Attempt != attempt.String():
			continue
		case s.Paid:
			add("evt_completed_"+s.ID, "checkout.session.completed", object)
		case s.Expired:
			add("evt_expired_"+s.ID, "checkout.session.expired", object)
		}
	}
	return all
}
