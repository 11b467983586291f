package payment_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/provider"
)

// TestRejectedCheckIsLogged checks that the log has the answer of a provider that works, but does not know a session.
// No other message shows why such an attempt stays open.
func TestRejectedCheckIsLogged(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.placeOpen(t)
	s.exec(t, `UPDATE payment_attempts SET session_id = 'cs_test_unknown' WHERE id = $1`, a.ID)
	logged := s.restart(s.notified.Notify)
	s.shift(t, o.ID, 31*time.Second)
	if _, again := s.settle(t, o.ID); !again {
		t.Error("the task is done, want it due again")
	}
	wantLog(t, logged, "level=WARN", a.ID.String(), "does not know the session")
}

// TestPanicDoesNotEndTheProcess has the check of one of two attempts panic. The other attempt must be settled.
func TestPanicDoesNotEndTheProcess(t *testing.T) {
	s := newMemoryShop(t)
	first, a := s.placeOpen(t)
	second, b := s.placeOpen(t)
	logged := s.restart(func(_, order string) {
		if order == first.ID.String() {
			panic(order)
		}
	})
	for _, o := range []*order.Order{first, second} {
		s.shiftToDeadline(t, o.ID, time.Second)
	}
	tasks := []delay.Task{{ID: a.ID.String()}, {ID: b.ID.String()}}
	if _, err := s.Attempts().Handle(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	wantLog(t, logged, "level=ERROR", "panic="+first.ID.String(), "service_test.go")
	s.cancelDue(t, second.ID)
	s.wantOrder(t, second, "cancelled timeout")
}

// restart replaces the service by one that calls changed after each change, and returns the log of the new one.
func (s *shop) restart(changed func(customer, order string)) *bytes.Buffer {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	calls := provider.NewCalls(s.provider, provider.CallsConfig{}, log, prometheus.NewRegistry())
	s.connect(calls, changed, config, log, prometheus.NewRegistry())
	return &logged
}

func wantLog(t *testing.T, logged *bytes.Buffer, texts ...string) {
	t.Helper()
	for _, want := range texts {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log is %q, want it to contain %q", logged, want)
		}
	}
}

// TestRetryOfRefundNotifiesTheCustomer checks that the customer's page learns that a failed refund is under way again.
func TestRetryOfRefundNotifiesTheCustomer(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.failRefund(t, o, a)
	before := s.notified.Of(o.CustomerID, o.ID)
	testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(s.refundOf(t, a.ID))))
	if n := s.notified.Of(o.CustomerID, o.ID) - before; n != 1 {
		t.Errorf("%d notifications, want 1", n)
	}
}
