package payment_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
)

// waiting is a check of an attempt or refund that is due now.
type waiting struct {
	order   *order.Order
	attempt *attempt.Attempt
	handler func(context.Context, []delay.Task) ([]delay.Outcome, error)
	task    string
	want    string // what wantAttempt finds after the provider has answered
}

// askInVain has the provider refuse the check that ask causes, and makes the check due that follows it.
func (s *shop) askInVain(t *testing.T, id uuid.UUID, ask func()) {
	t.Helper()
	s.mem.fail("retrieve", failed(provider.Busy, ""))
	ask()
	s.mem.fail("retrieve", nil)
	s.shift(t, id, 7*time.Second)
}

// checks has a check of each class of calls, for each reason why one can be due.
var checks = map[string]func(t *testing.T, s *shop) waiting{
	"poll, told that the session has expired": func(t *testing.T, s *shop) waiting {
		o, a := s.placeOpen(t)
		s.expireSession(t, a.ID)
		s.askInVain(t, o.ID, func() { s.deliverAll(t, a.ID) })
		return waiting{o, a, s.handleAttempts, a.ID.String(), "closed"}
	},
	"poll, the webhook is lost": func(t *testing.T, s *shop) waiting {
		o, a := s.placeOpen(t)
		s.pay(t, a.CheckoutURL)
		s.shift(t, o.ID, 30*time.Second)
		return waiting{o, a, s.handleAttempts, a.ID.String(), "succeeded applied"}
	},
	"confirm, told that the customer has paid": func(t *testing.T, s *shop) waiting {
		o, a := s.placeOpen(t)
		s.pay(t, a.CheckoutURL)
		s.askInVain(t, o.ID, func() { s.deliverAll(t, a.ID) })
		return waiting{o, a, s.handleAttempts, a.ID.String(), "succeeded applied"}
	},
	"confirm, the customer has returned": func(t *testing.T, s *shop) waiting {
		o, a := s.placeOpen(t)
		s.pay(t, a.CheckoutURL)
		s.askInVain(t, o.ID, func() { testenv.Must(t, s.Returned(t.Context(), o.CustomerID, o.ID)) })
		return waiting{o, a, s.handleAttempts, a.ID.String(), "succeeded applied"}
	},
	"confirm, of a closed attempt": func(t *testing.T, s *shop) waiting {
		o := s.place(t)
		a := s.closeCreating(t, o)
		s.pay(t, s.checkoutOf(t, a.ID))
		s.askInVain(t, o.ID, func() { s.deliverAll(t, a.ID) })
		return waiting{o, a, s.handleAttempts, a.ID.String(), "succeeded late owed"}
	},
	"expire": func(t *testing.T, s *shop) waiting {
		o, a := s.placeOpen(t)
		s.shiftToDeadline(t, o.ID, time.Second)
		return waiting{o, a, s.handleAttempts, a.ID.String(), "closed"}
	},
	"refund": func(t *testing.T, s *shop) waiting {
		o, a := s.late(t)
		return waiting{o, a, s.handleRefunds, s.refundOf(t, a.ID), "succeeded late confirmed"}
	},
	"refund, an old one is confirmed": func(t *testing.T, s *shop) waiting {
		o, a := s.late(t)
		s.setRefunds(t, "pending")
		s.sendRefund(t, a.ID)
		s.shift(t, o.ID, 20*time.Hour)
		s.sendRefund(t, a.ID)
		s.setRefunds(t, "succeed")
		s.recheck(t, a)
		return waiting{o, a, s.handleRefunds, s.refundOf(t, a.ID), "succeeded late confirmed"}
	},
}

func (s *shop) handleAttempts(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	return s.Attempts().Handle(ctx, tasks)
}

func (s *shop) handleRefunds(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	return s.Refunds().Handle(ctx, tasks)
}

// noAnswers are the ways in which a check ends without an answer of the provider.
var noAnswers = map[string]func(t *testing.T, s *shop, w waiting){
	"too many calls": func(t *testing.T, s *shop, w waiting) {
		s.mem.fail("", failed(provider.Busy, provider.TooManyCalls))
		w.handle(t, t.Context())
	},
	"another call got too many calls": func(t *testing.T, s *shop, w waiting) {
		s.mem.fail("retrieve", failed(provider.Busy, provider.TooManyCalls))
		calls := s.newCalls(provider.Limits{})
		_, err := calls.Retrieve(t.Context(), provider.ClassConfirm, "another")
		wantError(t, err, provider.Busy, provider.TooManyCalls)
		s.mem.fail("retrieve", nil)
		w.handle(t, t.Context()) // only polls pause
	},
	"no token": func(t *testing.T, s *shop, w waiting) {
		calls := s.newCalls(provider.Limits{Rate: 1e-6, OperationRate: 1e-6})
		for _, class := range []provider.Class{provider.ClassConfirm, provider.ClassPoll} { // the token of the bucket, and that of each class
			_, _ = calls.Retrieve(t.Context(), class, "another")
		}
		_, _ = calls.Expire(t.Context(), "another")
		_, _ = calls.Refunds(t.Context(), "another")
		w.handle(t, t.Context())
	},
	"the breaker is open": func(t *testing.T, s *shop, w waiting) {
		calls := s.newCalls(provider.Limits{})
		s.mem.fail("", failed(provider.NoAnswer, ""))
		for range 5 {
			_, _ = calls.Retrieve(t.Context(), provider.ClassConfirm, "another")
			_, _ = calls.Retrieve(t.Context(), provider.ClassPoll, "another")
			_, _ = calls.Expire(t.Context(), "another")
			_, _ = calls.Refunds(t.Context(), "another")
		}
		w.handle(t, t.Context())
	},
	"the provider is away": func(t *testing.T, s *shop, w waiting) {
		s.mem.fail("", failed(provider.NoAnswer, ""))
		w.handle(t, t.Context())
	},
	"the answers are lost": func(t *testing.T, s *shop, w waiting) {
		s.setAPI(t, "loses_answers")
		w.handle(t, t.Context())
	},
	"the key is denied": func(t *testing.T, s *shop, w waiting) {
		s.mem.fail("key", failed(provider.Denied, ""))
		w.handle(t, t.Context())
	},
	"the object is locked": func(t *testing.T, s *shop, w waiting) {
		s.mem.fail("", failed(provider.Busy, ""))
		w.handle(t, t.Context())
	},
	"the process shuts down": func(t *testing.T, s *shop, w waiting) {
		ctx, shutDown := context.WithCancel(t.Context())
		defer shutDown()
		for _, call := range []string{"retrieve", "expire", "list refunds"} {
			s.mem.hook(call, memoryHook{before: func() error {
				shutDown()
				return ctx.Err()
			}})
		}
		w.handle(t, ctx)
	},
	"the process is killed": func(t *testing.T, s *shop, w waiting) {
		s.exec(t, statement(t, "attempt/take.sql"), []string{w.task}, 1_000_000)
		s.exec(t, statement(t, "refund/take.sql"), []string{w.task}, 1_000_000)
	},
}

// newCalls replaces the calls of the service by ones with limits.
func (s *shop) newCalls(l provider.Limits) *provider.Calls {
	calls := provider.NewCalls(s.provider, provider.CallsConfig{Limits: l}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	s.setCalls(calls)
	return calls
}

// handle passes the task to its handler, which may report an outage.
func (w waiting) handle(t *testing.T, ctx context.Context) {
	t.Helper()
	outcomes, err := w.handler(ctx, []delay.Task{{ID: w.task}})
	if _, outage := delay.IsOutage(err); outage {
		return
	}
	testenv.Must(t, err)
	if err := outcomes[0].Err(); err != nil {
		t.Errorf("the task fails: %v", err)
	}
}

// TestNoAnswerUsesUpNoCheck has the provider not answer a check that is due, in each class of calls and in each way.
// No such check may use up a webhook, a customer's question or a due check: the provider is asked again some seconds
// later.
func TestNoAnswerUsesUpNoCheck(t *testing.T) {
	s := newMemoryShop(t)
	const soon = 31 * time.Second
	for name, prepare := range checks {
		for why, noAnswer := range noAnswers {
			t.Run(name+"/"+why, func(t *testing.T) {
				w := prepare(t, s)
				noAnswer(t, s, w)
				s.mem.set(func() { clear(s.mem.errs); clear(s.mem.hooks); s.mem.api = "up" })
				s.resetBreaker(t)
				s.shift(t, w.order.ID, soon)
				w.handle(t, t.Context())
				s.wantAttempt(t, w.order, w.attempt.ID, w.want)
			})
		}
	}
	s.check(t)
}

// TestNoAnswerUsesUpNoAttempt has the provider not answer a customer who opens a checkout. The repeated request
// continues the same attempt.
func TestNoAnswerUsesUpNoAttempt(t *testing.T) {
	s := newMemoryShop(t)
	for why, err := range map[string]error{
		"too many calls": failed(provider.Busy, provider.TooManyCalls),
		"away":           failed(provider.NoAnswer, ""),
		"denied":         failed(provider.Denied, ""),
		"locked":         failed(provider.Busy, ""),
	} {
		t.Run(why, func(t *testing.T) {
			o := s.place(t)
			s.mem.fail("create", err)
			if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
				t.Fatalf("Open returns %v, want provider-unavailable", err)
			}
			first := s.latest(t, o)
			s.mem.fail("create", nil)
			if a := s.open(t, o); a.ID != first.ID {
				t.Errorf("the repeated request opens attempt %s, want to continue %s", a.ID, first.ID)
			}
		})
	}
}

// TestEventDuringAPoll delivers an event while the provider answers a poll, and refuses the check that the event
// causes. The answer to the poll, which is older, must not use up the event.
func TestEventDuringAPoll(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.placeOpen(t)
	s.mem.hook("retrieve", memoryHook{after: func() error {
		s.mem.fail("retrieve", failed(provider.Busy, provider.TooManyCalls))
		defer s.mem.fail("retrieve", nil)
		s.expireSession(t, a.ID)
		s.deliverAll(t, a.ID)
		return nil
	}})
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "open")
	s.mem.hook("retrieve", memoryHook{})
	s.shift(t, o.ID, 7*time.Second)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.check(t)
}
