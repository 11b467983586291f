package payment_test

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
)

// booksShop is a shop of the deployment north, with the reconciliation of its provider's books.
type booksShop struct {
	*shop
	books *books.Reconciliation
	reg   *prometheus.Registry
}

func newBooksShop(t *testing.T) *booksShop {
	t.Helper()
	s := &booksShop{shop: newMemoryShop(t), reg: prometheus.NewRegistry()}
	s.reconfigure(t, "north", "test")
	s.books = s.reconciliation(s.mem, "north", s.reg)
	return s
}

// reconciliation returns the reconciliation of a shop's deployment with the books of a provider.
func (s *shop) reconciliation(
	p provider.Provider, deployment string, reg prometheus.Registerer,
) *books.Reconciliation {
	log := slog.New(slog.DiscardHandler)
	calls := provider.NewCalls(p, provider.CallsConfig{}, log, reg)
	return books.NewReconciliation(s.gorm, calls, deployment, log)
}

// read makes a report, two minutes later by the provider's clock, so that all movements until now are read.
func (s *booksShop) read(t *testing.T) *books.Report {
	t.Helper()
	s.mem.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	defer func() { s.mem.now = time.Now }()
	r, err := s.books.Run(t.Context(), time.Time{})
	testenv.Must(t, err)
	for _, c := range r.Currencies {
		if left(c.There) != left(c.Here)+c.UnclaimedCents+c.UnderWayCents+c.DifferenceCents {
			t.Errorf("report %d does not add up: %+v", r.Number, c)
		}
	}
	return r
}

// left returns what is left of what was captured.
func left(s books.Sums) int64 { return s.CapturedCents - s.RefundedCents - s.DisputedCents }

// wantReport checks what is left of the captured euros there and here, and whether the report is balanced.
func wantReport(t *testing.T, r *books.Report, there, here int64, balanced bool) books.CurrencyReport {
	t.Helper()
	for _, c := range r.Currencies {
		if c.Currency == "eur" {
			if left(c.There) != there || left(c.Here) != here || r.Balanced != balanced {
				t.Errorf("report %d has %d cents there and %d here, balanced: %v; want %d, %d and %v: %+v",
					r.Number, left(c.There), left(c.Here), r.Balanced, there, here, balanced, c)
			}
			return c
		}
	}
	t.Fatalf("report %d has no euros: %+v", r.Number, r)
	return books.CurrencyReport{}
}

// wantDifferences checks the differences of a report, and their sum.
func wantDifferences(t *testing.T, c books.CurrencyReport, sum int64, want ...books.Difference) {
	t.Helper()
	if c.DifferenceCents != sum || c.DifferenceCount != int64(len(want)) || !slices.Equal(c.Differences, want) {
		t.Errorf("%d cents differ, in %+v; want %d, in %+v", c.DifferenceCents, c.Differences, sum, want)
	}
}

// paid returns an order that was paid at the provider.
func (s *booksShop) paid(t *testing.T) (*order.Order, *attempt.Attempt, string) {
	t.Helper()
	o, a := s.placeOpen(t)
	if !s.mem.pay(a.CheckoutURL) {
		t.Fatal("the payment failed")
	}
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
	return o, a, s.intent(t, a)
}

func (s *booksShop) intent(t *testing.T, a *attempt.Attempt) string {
	t.Helper()
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	for _, session := range s.mem.sessions {
		if session.Attempt == a.ID.String() {
			return session.Intent
		}
	}
	t.Fatalf("attempt %s has no session", a.ID)
	return ""
}

// book appends a movement that no call of the shop has made.
func (s *booksShop) book(kind provider.MovementKind, intent, source string, cents int64) *provider.Movement {
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	s.mem.ledger = append(s.mem.ledger, provider.Movement{ID: fmt.Sprintf("txn_%d", len(s.mem.ledger)+1), Kind: kind,
		At: s.mem.now(), AmountCents: cents, Currency: "eur", Intent: intent, Source: source})
	return &s.mem.ledger[len(s.mem.ledger)-1]
}

// latePaid returns an order that was paid too late, and whose money is returned.
func (s *booksShop) latePaid(t *testing.T) (*order.Order, *attempt.Attempt, string) {
	t.Helper()
	o, a := s.placeOpen(t)
	s.mem.pay(a.CheckoutURL)
	s.shiftToDeadline(t, o.ID, time.Hour)
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	return o, a, s.intent(t, a)
}

// TestBooksBalance reads the books of a healthy shop twice. No timeout bounds a report, however many movements there
// are.
func TestBooksBalance(t *testing.T) {
	s := newBooksShop(t)
	s.exec(t, `ALTER TABLE payment_reports ADD CHECK (current_setting('statement_timeout') = '0' AND current_setting('enable_seqscan') = 'on')`)
	s.paid(t)
	s.latePaid(t)
	r := s.read(t)
	c := wantReport(t, r, 1000, 1000, true)
	if c.There.CapturedCents != 2000 || c.There.RefundedCents != 1000 || c.Here.CapturedCents != 2000 || c.Here.RefundedCents != 1000 {
		t.Errorf("the report has %+v there and %+v here, want 2000 captured and 1000 refunded", c.There, c.Here)
	}
	s.paid(t)
	again := s.read(t)
	c = wantReport(t, again, 2000, 2000, true)
	if again.Number <= r.Number || c.There.CapturedCents != 3000 || c.Here.CapturedCents != 3000 {
		t.Errorf("report %d, after report %d, has %+v there and %+v here, want 3000 captured",
			again.Number, r.Number, c.There, c.Here)
	}
	s.check(t)
}

// TestForeignChargesAreLeftOut has movements of another application and of another deployment in the books.
func TestForeignChargesAreLeftOut(t *testing.T) {
	s := newBooksShop(t)
	s.paid(t)
	s.book(provider.Captured, "pi_other", "ch_other", 700)
	s.book(provider.Captured, "pi_south", "ch_south", 900).Owner = provider.Owner{Deployment: "south", Order: uuid.NewString(), Attempt: uuid.NewString()}
	s.book(provider.Refunded, "pi_other", "re_other", 100)
	s.book(provider.OtherMovement, "", "po_1", 5000)
	wantReport(t, s.read(t), 1000, 1000, true)
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM provider_movements`); n != 1 {
		t.Errorf("%d movements are stored, want 1", n)
	}
}

// TestBooksFindWhatWebhooksLost has the shop miss what happened at the provider. After the report the shop knows it.
func TestBooksFindWhatWebhooksLost(t *testing.T) {
	t.Parallel()
	t.Run("payment", func(t *testing.T) {
		s := newBooksShop(t)
		o, a := s.placeOpen(t)
		s.mem.pay(a.CheckoutURL)
		if c := wantReport(t, s.read(t), 1000, 0, true); c.UnderWayCents != 1000 {
			t.Errorf("%d cents are under way, want 1000", c.UnderWayCents)
		}
		s.exec(t, `UPDATE provider_movements SET at = at - interval '2 hours'`)
		wantDifferences(t, wantReport(t, s.read(t), 1000, 0, false), 1000,
			books.Difference{Attempt: a.ID, What: "captured", There: 1000})
		s.settle(t, o.ID)
		s.wantOrder(t, o, "paid")
		wantReport(t, s.read(t), 1000, 1000, true)
	})
	t.Run("refund fails after its confirmation", func(t *testing.T) {
		s := newBooksShop(t)
		o, a, intent := s.latePaid(t)
		wantReport(t, s.read(t), 0, 0, true)
		s.mem.end(intent, provider.Failed)
		s.read(t)
		s.sendRefund(t, a.ID)
		s.wantAttempt(t, o, a.ID, "succeeded late failed")
		wantReport(t, s.read(t), 1000, 1000, true)
	})
	t.Run("refund by hand of a paid order", func(t *testing.T) {
		s := newBooksShop(t)
		for _, settled := range []bool{true, false} { // before the refund by hand
			for _, cents := range []int64{300, 1000} {
				o, a := s.placeOpen(t)
				s.mem.pay(a.CheckoutURL)
				if settled {
					s.settleNow(t, o.ID)
				}
				intent := s.intent(t, a)
				s.book(provider.Refunded, intent, "re_hand_"+intent, cents)
				here := int64(0)
				if settled {
					here = 1000 - cents
				}
				wantReport(t, s.read(t), 1000-cents, here, true)
				s.settleNow(t, o.ID)
				s.wantOrder(t, o, "paid")
				if c := wantReport(t, s.read(t), 1000-cents, 1000-cents, true); c.ByHandCents != cents {
					t.Errorf("%d cents are refunded by hand, want %d", c.ByHandCents, cents)
				}
				s.book(provider.RefundFailed, intent, "re_hand_"+intent, cents)
				wantReport(t, s.read(t), 1000, 1000, true)
				s.book(provider.Disputed, intent, "dp_"+intent, 1000) // the next one begins with no money
				wantReport(t, s.read(t), 0, 0, true)
			}
		}
	})
	t.Run("money returned twice", func(t *testing.T) {
		s := newBooksShop(t)
		o, a, intent, id := s.lateInMemory(t)
		s.mem.fail("refund", failed(provider.Refused, ""))
		s.sendRefund(t, a.ID)
		s.wantAttempt(t, o, a.ID, "succeeded late failed")
		testenv.Must(t, s.refunder.SettleOutside(t.Context(), uuid.MustParse(id), "Ann", "a transfer"))
		s.book(provider.Refunded, intent, "re_late", 400).Refund = id
		wantDifferences(t, wantReport(t, s.read(t), 600, 1000, false), -400,
			books.Difference{Attempt: a.ID, What: "refunded", There: 400})
	})
	t.Run("dispute", func(t *testing.T) {
		s := newBooksShop(t)
		_, a, intent := s.paid(t)
		disputed := func() int64 {
			return testenv.Query[int64](t, s.db, `SELECT disputed_cents FROM payment_attempts WHERE id = $1`, a.ID)
		}
		s.book(provider.Disputed, intent, "dp_1", 1000)
		if c := wantReport(t, s.read(t), 0, 0, true); c.There.DisputedCents != 1000 || c.Here.DisputedCents != 1000 || disputed() != 1000 {
			t.Errorf("the dispute is %+v there and %+v here, want 1000", c.There, c.Here)
		}
		s.book(provider.DisputeReversed, intent, "dp_1", 1000)
		wantReport(t, s.read(t), 1000, 1000, true)
		if disputed() != 0 {
			t.Errorf("%d cents are disputed after the dispute was won, want 0", disputed())
		}
	})
}

// TestRowsThatComeLate adds a movement to the books that has the time of one that was read before.
func TestRowsThatComeLate(t *testing.T) {
	s := newBooksShop(t)
	_, _, intent := s.paid(t)
	wantReport(t, s.read(t), 1000, 1000, true)
	s.book(provider.Disputed, intent, "dp_late", 1000).At = time.Now().Add(-10 * time.Minute)
	if c := wantReport(t, s.read(t), 0, 0, true); c.There.DisputedCents != 1000 {
		t.Errorf("the second report has %d disputed cents, want 1000", c.There.DisputedCents)
	}
}

// TestReadAgainFromATime reads the books again from a time before the first attempt that the database has, as after
// the loss of a database. A time that is later than the position leaves nothing out.
func TestReadAgainFromATime(t *testing.T) {
	s := newBooksShop(t)
	s.paid(t)
	lost := func(intent string, at time.Time) {
		m := s.book(provider.Captured, intent, "ch_"+intent, 1000)
		m.At, m.Owner = at, provider.Owner{Deployment: "north", Order: uuid.NewString(), Attempt: uuid.NewString()}
	}
	now := time.Now()
	lost("pi_old", now.Add(-40*24*time.Hour))
	wantReport(t, s.read(t), 1000, 1000, true)
	run := func(from time.Time, unclaimed int64) {
		t.Helper()
		r, err := s.books.Run(t.Context(), from)
		testenv.Must(t, err)
		if c := wantReport(t, r, 1000+unclaimed, 1000, true); c.UnclaimedCents != unclaimed {
			t.Errorf("%d cents are unclaimed, want %d", c.UnclaimedCents, unclaimed)
		}
	}
	run(now.Add(-41*24*time.Hour), 1000)
	run(now.Add(-41*24*time.Hour), 1000) // it finds nothing twice
	lost("pi_new", now.Add(30*time.Minute))
	s.mem.now = func() time.Time { return now.Add(2 * time.Hour) }
	run(now.Add(100*time.Minute), 2000)
	s.check(t)
}

// TestPositionAfterAFailedPage has the provider fail at the second page: nothing is stored, and the position stays.
func TestPositionAfterAFailedPage(t *testing.T) {
	s := newBooksShop(t)
	for range 3 {
		s.paid(t)
	}
	pages := 0
	s.mem.hook("movements", memoryHook{before: func() error {
		if pages++; pages == 3 {
			return failed(provider.NoAnswer, "")
		}
		return nil
	}})
	s.mem.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	if _, err := s.books.Run(t.Context(), time.Time{}); err == nil {
		t.Fatal("Run returns no error, want that of the provider")
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM provider_movements`); n != 0 {
		t.Errorf("%d movements are stored, want none", n)
	}
	wantReport(t, s.read(t), 3000, 3000, true)
}

// TestBusyBooksAreReadLater has the provider get too many calls while the books are read.
func TestBusyBooksAreReadLater(t *testing.T) {
	t.Parallel()
	s := newBooksShop(t)
	s.paid(t)
	calls := 0
	s.mem.hook("movements", memoryHook{before: func() error {
		if calls++; calls == 1 {
			return failed(provider.Busy, "")
		}
		return nil
	}})
	wantReport(t, s.read(t), 1000, 1000, true)
}

// TestTwoRunsAtOnce makes reports in several processes at the same time. Each movement counts once.
func TestTwoRunsAtOnce(t *testing.T) {
	s := newBooksShop(t)
	for range 3 {
		s.paid(t)
	}
	s.mem.now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	var runs sync.WaitGroup
	for range 4 {
		runs.Go(func() {
			if _, err := s.books.Run(t.Context(), time.Time{}); err != nil {
				t.Errorf("Run returns %v", err)
			}
		})
	}
	runs.Wait()
	r := s.read(t)
	wantReport(t, r, 3000, 3000, true)
	wrong := `SELECT count(*) FROM payment_reports
		WHERE report #> '{currencies,0,there,captured_cents}' <> '3000' OR NOT (report->'balanced')::boolean`
	if n := testenv.Query[int](t, s.db, wrong); n > 0 || r.Number != 5 {
		t.Errorf("of %d reports, %d do not have 3000 cents captured; want 5 and 0", r.Number, n)
	}
	s.check(t)
}

// TestRestoreOfTheProvider has the provider lose its latest movements, and return other amounts.
func TestRestoreOfTheProvider(t *testing.T) {
	s := newBooksShop(t)
	o, lost, _ := s.paid(t)
	_, changed, intent := s.paid(t)
	s.mem.mu.Lock()
	s.mem.ledger = s.mem.ledger[1:]
	s.mem.mu.Unlock()
	if c := wantReport(t, s.read(t), 1000, 2000, true); c.UnderWayCents != -1000 {
		t.Errorf("%d cents are under way, want -1000: the books may lag", c.UnderWayCents)
	}
	s.shift(t, o.ID, 3*time.Hour)
	missing := books.Difference{Attempt: lost.ID, What: "captured", Here: 1000}
	wantDifferences(t, wantReport(t, s.read(t), 1000, 2000, false), -1000, missing)
	s.exec(t, `UPDATE provider_movements SET amount_cents = 900 WHERE intent = $1`, intent)
	wantDifferences(t, wantReport(t, s.read(t), 900, 2000, false), -1100, missing,
		books.Difference{Attempt: changed.ID, What: "captured", There: 900, Here: 1000})
}

// TestRestoreToBeforeTheSession puts an attempt back to a time before its session was stored. Its payment is
// unclaimed, until an event tells the session.
func TestRestoreToBeforeTheSession(t *testing.T) {
	s := newBooksShop(t)
	o, a := s.placeOpen(t)
	s.mem.pay(a.CheckoutURL)
	s.exec(t, `UPDATE payment_attempts SET state = 'creating', session_id = NULL, checkout_url = NULL`)
	for _, state := range []string{"creating", "closed"} {
		if c := wantReport(t, s.read(t), 1000, 0, true); c.UnclaimedCents != 1000 {
			t.Errorf("%d cents are unclaimed while the attempt is %s, want 1000", c.UnclaimedCents, state)
		}
		s.shift(t, o.ID, 31*time.Second)
		s.settleNow(t, o.ID)
		s.wantAttempt(t, o, a.ID, "closed")
	}
	s.exec(t, `UPDATE payment_attempts SET session_id = $1`, s.mem.of(t, a.ID).ID)
	if c := wantReport(t, s.read(t), 1000, 0, true); c.UnclaimedCents != 0 || c.UnderWayCents != 1000 {
		t.Errorf("%d cents are unclaimed and %d under way, want 0 and 1000", c.UnclaimedCents, c.UnderWayCents)
	}
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
}

// TestRestoreOfTheShop puts the shop's database back to a time before four payments, while the provider goes on. One
// of them is paid after the restore.
func TestRestoreOfTheShop(t *testing.T) {
	s := newBooksShop(t)
	s.paid(t)
	s.read(t)
	var urls []string
	s.mem.now = func() time.Time { return time.Now().Add(30 * time.Second) }
	for range 4 {
		_, a := s.placeOpen(t)
		urls = append(urls, a.CheckoutURL)
	}
	for _, url := range urls[:2] {
		s.mem.pay(url)
	}
	// The provider returns the money of the second, by hand.
	s.exec(t, `DELETE FROM payment_attempts WHERE state <> 'succeeded'`)
	s.exec(t, `UPDATE orders SET hold_until = NULL WHERE status = 'pending'`)
	s.mem.pay(urls[2]) // the old tab, after the restore
	s.book(provider.Refunded, "pi_cs_3", "re_hand", 1000)

	r := s.read(t)
	c := wantReport(t, r, 3000, 1000, false)
	if c.UnclaimedCents != 2000 || r.LostSessions != 1 || r.ExpiredSessions != 0 {
		t.Errorf("%d cents are unclaimed, %d sessions lost, %d expired; want 2000, 1 and 0", c.UnclaimedCents, r.LostSessions, r.ExpiredSessions)
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_incidents WHERE closed_at IS NULL`); n != 2 {
		t.Errorf("%d incidents are open, want one of lost sessions and one of unclaimed money", n)
	}
	if s.mem.count("refund") != 0 || s.mem.count("expire") != 0 {
		t.Error("the books returned money or expired a session before an operator has looked")
	}
	s.read(t) // lists nothing twice
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM unclaimed_payments WHERE kept_at IS NULL`); n != 2 {
		t.Errorf("%d payments are unclaimed, want 2", n)
	}

	// An operator has looked. The tab that is still open cannot pay any more, also if the provider's clock is ahead.
	s.exec(t, `UPDATE payment_incidents SET closed_at = clock_timestamp(), note = 'restored', actor = 'Ada'`)
	r = s.read(t)
	wantReport(t, r, 3000, 1000, true)
	if r.ExpiredSessions != 1 || r.LostSessions != 0 {
		t.Errorf("the report is %+v, want one expired session and no lost one", r)
	}
	if s.mem.pay(urls[3]) {
		t.Error("the old tab can still pay")
	}
}
