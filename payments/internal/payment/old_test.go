package payment_test

import (
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/payment"
)

// TestOldEventsAreDeleted deletes old events, a few in each statement, and keeps the others.
func TestOldEventsAreDeleted(t *testing.T) {
	s := newMemoryShop(t)
	s.exec(t, `INSERT INTO provider_events (id, type, received_at)
		SELECT 'evt_' || n, 'refund.updated', now() - interval '31 days' + n * interval '1 day' + interval '1 hour'
		FROM generate_series(-6, 3) n`)
	for range 2 {
		testenv.Must(t, payment.DeleteOld(t.Context(), s.gorm, 3))
		events := testenv.Query[string](t, s.db, `SELECT string_agg(id, ' ' ORDER BY received_at) FROM provider_events`)
		if events != "evt_1 evt_2 evt_3" {
			t.Errorf("the events %q are left, want those of the last 30 days, evt_1 to evt_3", events)
		}
	}
}
