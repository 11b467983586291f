package payment_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/payment"
)

// memory is a provider in memory, for tests that need nothing of Stripe's API. It has no idempotency but that of keys.
type memory struct {
	mu       sync.Mutex
	sessions map[string]*payment.Session // by id
	keys     map[string]string           // the ids that calls with a key made
	refunds  map[string][]*payment.ProviderRefund
	ledger   []payment.Movement
	state    payment.RefundState // of new refunds
	errs     map[string]error    // by operation; "" is all
	hooks    map[string]memoryHook
	calls    map[string]int
	delay    time.Duration // of each call
	now      func() time.Time
}

// memoryHook is called around a call that is executed.
type memoryHook struct{ before, after func() error }

func newMemory() *memory {
	return &memory{
		sessions: map[string]*payment.Session{}, keys: map[string]string{}, refunds: map[string][]*payment.ProviderRefund{},
		state: payment.Confirmed, errs: map[string]error{}, hooks: map[string]memoryHook{}, calls: map[string]int{}, now: time.Now,
	}
}

// failed returns an error of the provider with a class.
func failed(class payment.ErrorClass, cause payment.Cause) error {
	return &payment.ProviderError{Class: class, Cause: cause, Operation: "call", Err: errors.New("the memory provider fails")}
}

// fail makes the calls of an operation, or all with "", fail until it is called with nil.
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

// call executes a call under the lock, with the delay, the error and the hook of its operation.
func (m *memory) call(ctx context.Context, operation string, do func() error) error {
	m.mu.Lock()
	m.calls[operation]++
	delay, hook, err := m.delay, m.hooks[operation], errors.Join(m.errs[operation], m.errs[""])
	m.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
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
	return err
}

func (m *memory) Clock() time.Time { return m.now() }

func (m *memory) Create(ctx context.Context, c payment.Checkout) (s payment.Session, err error) {
	err = m.call(ctx, "create", func() error {
		id, again := m.keys[c.Key]
		if !again {
			id = fmt.Sprintf("cs_%d", len(m.sessions)+1)
			m.keys[c.Key] = id
			m.sessions[id] = &payment.Session{Owner: c.Owner, ID: id, URL: "memory:" + id, AmountCents: c.AmountCents,
				Currency: c.Currency, CreatedAt: m.now(), ExpiresAt: c.ExpiresAt}
		}
		s = *m.sessions[id]
		return nil
	})
	return s, err
}

func (m *memory) session(ctx context.Context, operation, id string, change func(*payment.Session) error) (s payment.Session, err error) {
	err = m.call(ctx, operation, func() error {
		found := m.sessions[id]
		if found == nil {
			return failed(payment.Missing, "")
		}
		err := change(found)
		s = *found
		return err
	})
	return s, err
}

func (m *memory) Retrieve(ctx context.Context, id string) (payment.Session, error) {
	return m.session(ctx, "retrieve", id, func(*payment.Session) error { return nil })
}

func (m *memory) Expire(ctx context.Context, id string) (payment.Session, error) {
	return m.session(ctx, "expire", id, func(s *payment.Session) error {
		if s.Paid || s.Expired {
			return failed(payment.Refused, "")
		}
		s.Expired = true
		return nil
	})
}

// pay is the customer, and reports whether the payment succeeded.
func (m *memory) pay(url string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, s := range m.sessions {
		if s.URL == url && !s.Paid && !s.Expired {
			s.Paid, s.Intent = true, "pi_"+id
			m.move(payment.Captured, s.Intent, "", s.AmountCents)
			return true
		}
	}
	return false
}

// move appends a row to the books.
func (m *memory) move(kind payment.MovementKind, intent, refund string, cents int64) {
	row := payment.Movement{ID: fmt.Sprintf("txn_%d", len(m.ledger)+1), Kind: kind, At: m.now(), AmountCents: cents, Intent: intent, Refund: refund}
	for _, s := range m.sessions {
		if s.Intent == intent {
			row.Owner, row.Currency, row.Source = s.Owner, s.Currency, "ch_"+intent
		}
	}
	m.ledger = append(m.ledger, row)
}

func (m *memory) Refunds(ctx context.Context, intent string) (all []payment.ProviderRefund, err error) {
	err = m.call(ctx, "list_refunds", func() error {
		for _, r := range m.refunds[intent] {
			all = append([]payment.ProviderRefund{*r}, all...)
		}
		return nil
	})
	return all, err
}

func (m *memory) Refund(ctx context.Context, r payment.Return) (made payment.ProviderRefund, err error) {
	err = m.call(ctx, "refund", func() error {
		for _, known := range m.refunds[r.Intent] {
			if m.keys[r.Key] == known.ID {
				made = *known
				return nil
			}
		}
		made = payment.ProviderRefund{ID: fmt.Sprintf("re_%d", len(m.ledger)+1), Refund: r.Refund, Try: r.Try, AmountCents: r.AmountCents, State: m.state}
		m.keys[r.Key] = made.ID
		m.refunds[r.Intent] = append(m.refunds[r.Intent], &made)
		m.move(payment.Refunded, r.Intent, r.Refund, r.AmountCents)
		m.ledger[len(m.ledger)-1].Source = made.ID
		return nil
	})
	return made, err
}

// end changes the state of all refunds of a payment.
func (m *memory) end(intent string, state payment.RefundState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.refunds[intent] {
		if r.State != payment.Failed && state == payment.Failed {
			m.move(payment.RefundFailed, intent, r.Refund, r.AmountCents)
			m.ledger[len(m.ledger)-1].Source = r.ID
		}
		r.State = state
	}
}

// entries returns the ledger by session.
func (m *memory) entries() (all []ledgerEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		e := ledgerEntry{Attempt: s.Attempt, Session: s.ID, Intent: s.Intent}
		for _, row := range m.ledger {
			switch {
			case row.Intent != s.Intent:
			case row.Kind == payment.Captured:
				e.Captured += row.AmountCents
			case row.Kind == payment.Refunded:
				e.Refunded += row.AmountCents
			case row.Kind == payment.RefundFailed:
				e.Refunded -= row.AmountCents
			}
		}
		all = append(all, e)
	}
	return all
}

// newMemoryShop returns a shop whose provider is in memory.
func newMemoryShop(t testing.TB) *shop {
	t.Helper()
	s := openShop(t)
	s.mem = newMemory()
	s.start(t, s.mem)
	return s
}
