package payment_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/shop/payments/internal/provider"
)

// memory is a provider in memory, for tests that need nothing of Stripe's API. See memory_shop_test.go for its
// failures, and for what its customers and banks do.
type memory struct {
	faults
	mu       sync.Mutex
	sessions map[string]*provider.Session // by id
	keys     map[string]any               // the object that the call with a key made; nil: the key has a stored error
	refunds  map[string][]*provider.Refund
	ledger   []provider.Movement
	state    provider.RefundState // of new refunds. One that fails is sent first
	now      func() time.Time
}

func newMemory() *memory {
	return &memory{
		faults:   faults{errs: map[string]error{}, hooks: map[string]memoryHook{}, calls: map[string]int{}},
		sessions: map[string]*provider.Session{}, keys: map[string]any{}, refunds: map[string][]*provider.Refund{},
		state: provider.Confirmed, now: time.Now,
	}
}

// change executes a call that changes a session.
func (m *memory) change(ctx context.Context, operation, id string, change func(*provider.Session) error) (s provider.Session, err error) {
	err = m.call(ctx, operation, func() error {
		if m.sessions[id] == nil {
			return failed(provider.Missing, "")
		}
		err := change(m.sessions[id])
		s = *m.sessions[id]
		return err
	})
	return s, err
}

// move appends a row to the books.
func (m *memory) move(kind provider.MovementKind, source, intent, refund string, cents int64) {
	row := provider.Movement{ID: fmt.Sprintf("txn_%d", len(m.ledger)+1), Kind: kind, At: m.now(), AmountCents: cents, Source: source, Intent: intent, Refund: refund}
	for _, s := range m.sessions {
		if s.Intent == intent {
			row.Owner, row.Currency = s.Owner, s.Currency
		}
	}
	m.ledger = append(m.ledger, row)
}

func (m *memory) Clock() time.Time { return m.now() }

func (m *memory) Create(ctx context.Context, c provider.Checkout) (provider.Session, error) {
	return once(ctx, m, "create", c.Key, func() *provider.Session {
		id := fmt.Sprintf("cs_%d", len(m.sessions)+1)
		m.sessions[id] = &provider.Session{Owner: c.Owner, ID: id, URL: "memory:" + id, AmountCents: c.AmountCents, Currency: c.Currency, CreatedAt: m.now().Truncate(time.Second), ExpiresAt: c.ExpiresAt}
		return m.sessions[id]
	})
}

func (m *memory) Retrieve(ctx context.Context, id string) (provider.Session, error) {
	return m.change(ctx, "retrieve", id, func(*provider.Session) error { return nil })
}

func (m *memory) Expire(ctx context.Context, id string) (provider.Session, error) {
	return m.change(ctx, "expire", id, func(s *provider.Session) error {
		if s.Paid || s.Expired {
			return failed(provider.Refused, "")
		}
		s.Expired = true
		return nil
	})
}

func (m *memory) Refunds(ctx context.Context, intent string) (all []provider.Refund, err error) {
	err = m.call(ctx, "list refunds", func() error {
		for _, r := range slices.Backward(m.refunds[intent]) {
			all = append(all, *r)
		}
		return nil
	})
	return all, err
}

func (m *memory) Refund(ctx context.Context, r provider.Return) (provider.Refund, error) {
	made, err := once(ctx, m, "refund", r.Key, func() *provider.Refund {
		made := &provider.Refund{ID: fmt.Sprintf("re_%d", len(m.ledger)+1), Refund: r.Refund, Try: r.Try, AmountCents: r.AmountCents, State: provider.Sent}
		m.refunds[r.Intent] = append(m.refunds[r.Intent], made)
		m.move(provider.Refunded, made.ID, r.Intent, r.Refund, r.AmountCents)
		m.become(r.Intent, made, m.state)
		return made
	})
	if made.State == provider.Failed {
		made.State = provider.Sent
	}
	return made, err
}

// page returns the page of two rows behind the row with the id after. So tests have several pages.
func page[T any](list []T, id func(T) string, after string) (rows []T, more bool) {
	list = list[slices.IndexFunc(list, func(row T) bool { return id(row) == after })+1:]
	return list[:min(2, len(list))], len(list) > 2
}

func (m *memory) Movements(ctx context.Context, from, to time.Time, after string) (p provider.Page[provider.Movement], err error) {
	err = m.call(ctx, "movements", func() error {
		var list []provider.Movement
		for _, row := range slices.Backward(m.ledger) {
			if !row.At.Before(from) && row.At.Before(to) {
				list = append(list, row)
			}
		}
		p.Rows, p.More = page(list, func(row provider.Movement) string { return row.ID }, after)
		p.Now = m.now()
		return nil
	})
	return p, err
}

func (m *memory) OpenSessions(ctx context.Context, since time.Time, after string) (p provider.Page[provider.Session], err error) {
	err = m.call(ctx, "sessions", func() error {
		var list []provider.Session
		for _, s := range m.sessions {
			if !s.CreatedAt.Before(since) && !s.Paid && !s.Expired {
				list = append(list, *s)
			}
		}
		slices.SortFunc(list, func(a, b provider.Session) int { return cmp.Compare(b.ID, a.ID) })
		p.Rows, p.More = page(list, func(row provider.Session) string { return row.ID }, after)
		return nil
	})
	return p, err
}

func (m *memory) Account(ctx context.Context) (string, error) {
	return "acct_memory", m.call(ctx, "account", func() error { return nil })
}

func (m *memory) Endpoints(context.Context) ([]provider.Endpoint, error) { return nil, nil }
