package payment_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/provider"
)

// The states of an order when its attempt is settled. The attempt was opened before the deadline.
var orderStates = []struct {
	name   string
	become func(t *testing.T, s *shop, o *order.Order)
}{
	{"goes on", func(*testing.T, *shop, *order.Order) {}},
	{"should end", func(t *testing.T, s *shop, o *order.Order) { s.shiftToDeadline(t, o.ID, time.Second) }},
	{"hold has ended", func(t *testing.T, s *shop, o *order.Order) { s.shiftToDeadline(t, o.ID, grace+time.Second) }},
	{"cancelled", func(t *testing.T, s *shop, o *order.Order) {
		s.shiftToDeadline(t, o.ID, grace+time.Second)
		s.cancelDue(t, o.ID)
	}},
	{"paid", func(t *testing.T, s *shop, o *order.Order) {
		s.exec(t, `UPDATE orders SET status = 'paid', paid_at = now(), ended_by = 'customer', hold_until = NULL
			WHERE id = $1`, o.ID)
	}},
}

const release = `WITH released AS (
	UPDATE orders SET hold_until = NULL WHERE id = (SELECT order_id FROM payment_attempts WHERE id = $1))`

// attemptStates makes attempts of open ones. A closed attempt does not hold its order.
var attemptStates = map[string]string{
	"creating, no session": `
		UPDATE payment_attempts SET state = 'creating', checkout_url = NULL, session_id = NULL WHERE id = $1`,
	"creating": `UPDATE payment_attempts SET state = 'creating', checkout_url = NULL WHERE id = $1`,
	"open":     `SELECT $1::uuid`,
	"closed, no session": release + `
		UPDATE payment_attempts SET state = 'closed', ended_at = now(), checkout_url = NULL,
			session_id = NULL WHERE id = $1`,
	"closed": release + `
		UPDATE payment_attempts SET state = 'closed', ended_at = now(), checkout_url = NULL WHERE id = $1`,
}

// providerAnswers change what the provider says about a session.
var providerAnswers = map[string]func(m *memory, s *provider.Session){
	"unknown": func(m *memory, s *provider.Session) {
		delete(m.sessions, s.ID)
		m.sessions["lost "+s.ID] = s
	},
	"of another attempt":   func(_ *memory, s *provider.Session) { s.Attempt = uuid.NewString() },
	"undecided":            func(m *memory, _ *provider.Session) { m.errs["expire"] = failed(provider.Refused, "") },
	"expired":              func(_ *memory, s *provider.Session) { s.Expired = true },
	"paid":                 func(m *memory, s *provider.Session) { m.capture(s) },
	"paid another amount":  func(m *memory, s *provider.Session) { s.AmountCents--; m.capture(s) },
	"paid in another coin": func(m *memory, s *provider.Session) { s.Currency = "usd"; m.capture(s) },
}

// What becomes of an attempt: it is checked again (wait), closed, never checked again (finish), or succeeded. A success
// pays its order (applied), or is refunded for a reason.
const (
	wait, closed, finish, applied = "wait", "closed", "finish", "applied"
	late, duplicate, mismatch     = "late", "duplicate", "mismatch"
)

// allSteps has each state of an attempt and each answer of the provider. The columns are orderStates.
var allSteps = map[string]map[string][5]string{
	"creating, no session": {
		"undecided": {wait, closed, closed, closed, closed}, // the provider is not asked
	},
	"creating": {
		"unknown":              {wait, closed, closed, closed, closed},
		"of another attempt":   {wait, closed, closed, closed, closed},
		"undecided":            {wait, wait, wait, wait, wait},
		"expired":              {closed, closed, closed, closed, closed},
		"paid":                 {applied, applied, late, late, duplicate},
		"paid another amount":  {mismatch, mismatch, mismatch, mismatch, mismatch},
		"paid in another coin": {mismatch, mismatch, mismatch, mismatch, mismatch},
	},
	"open": {
		"unknown":              {wait, wait, wait, closed, closed},
		"of another attempt":   {wait, wait, wait, closed, closed},
		"undecided":            {wait, wait, wait, wait, wait},
		"expired":              {closed, closed, closed, closed, closed},
		"paid":                 {applied, applied, late, late, duplicate},
		"paid another amount":  {mismatch, mismatch, mismatch, mismatch, mismatch},
		"paid in another coin": {mismatch, mismatch, mismatch, mismatch, mismatch},
	},
	"closed, no session": {
		"undecided": {finish, finish, finish, finish, finish}, // the provider is not asked
	},
	"closed": {
		"unknown":              {finish, finish, finish, finish, finish},
		"of another attempt":   {finish, finish, finish, finish, finish},
		"undecided":            {wait, wait, wait, wait, wait},
		"expired":              {finish, finish, finish, finish, finish},
		"paid":                 {late, late, late, late, duplicate},
		"paid another amount":  {mismatch, mismatch, mismatch, mismatch, mismatch},
		"paid in another coin": {mismatch, mismatch, mismatch, mismatch, mismatch},
	},
}

// TestSteps takes each step: every state of an attempt with every answer of the provider and every state of the order.
func TestSteps(t *testing.T) {
	s := newMemoryShop(t)
	for state, statement := range attemptStates {
		for answer, change := range providerAnswers {
			want, listed := allSteps[state][answer]
			if !listed && s.knowsSession(state) {
				t.Errorf("%s, %s: not in the table", state, answer)
			}
			if !listed {
				continue
			}
			for i, orderState := range orderStates {
				t.Run(state+"/"+answer+"/"+orderState.name, func(t *testing.T) {
					o, a := s.placeOpen(t)
					s.exec(t, statement, a.ID)
					orderState.become(t, s, o)
					s.mem.set(func() { change(s.mem, s.mem.of(t, a.ID)) })
					before := s.orderState(t, o.ID)
					s.settleNow(t, o.ID)
					s.mem.set(func() { clear(s.mem.errs) })
					if got := s.stepTaken(t, a.ID, state); got != want[i] {
						t.Errorf("the attempt: %s, want %s", got, want[i])
					}
					if got, want := s.orderState(t, o.ID), orderAfter(before, want[i]); got != want {
						t.Errorf("the order was %s and is %s, want %s", before, got, want)
					}
				})
			}
		}
	}
}

// knowsSession reports whether the shop knows the session of an attempt in a state, so that it asks the provider.
func (s *shop) knowsSession(state string) bool {
	return state != "creating, no session" && state != "closed, no session"
}

// stepTaken returns what has become of an attempt.
func (s *shop) stepTaken(t *testing.T, id uuid.UUID, before string) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT CASE
			WHEN a.applied THEN 'applied'
			WHEN a.state = 'succeeded' THEN r.reason
			WHEN a.state = 'closed' AND $2 NOT LIKE 'closed%' AND a.next_check IS NULL THEN 'closed'
			WHEN $2 NOT LIKE a.state || '%' THEN 'now ' || a.state
			WHEN a.next_check IS NULL THEN 'finish'
			ELSE 'wait' END
		FROM payment_attempts a LEFT JOIN refunds r ON r.attempt_id = a.id
		WHERE a.id = $1`, id, before)
}

// orderState returns the state of an order: its status, and whether it is held.
func (s *shop) orderState(t *testing.T, id uuid.UUID) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `
		SELECT status || CASE WHEN status = 'pending' AND hold_until IS NOT NULL THEN ' held' ELSE '' END FROM orders WHERE id = $1`, id)
}

// orderAfter returns the state of an order after a step of its attempt. An attempt that ends releases its order.
func orderAfter(before, step string) string {
	switch {
	case step == applied:
		return "paid"
	case before == "pending held" && step != wait:
		return "pending"
	}
	return before
}
