package payment_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

// openAt places an order, and opens an attempt at the given time before the deadline.
func (s *shop) openAt(t testing.TB, before time.Duration) (*order.Order, *attempt.Attempt) {
	t.Helper()
	o := s.place(t)
	s.shiftToDeadline(t, o.ID, -before)
	return o, s.open(t, o)
}

// wantTimes checks the times of an order that is held, as durations from now.
func (s *shop) wantTimes(t testing.TB, o *order.Order, checkoutUntil, holdUntil time.Duration) {
	t.Helper()
	current, err := s.orders.Get(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	closes := testenv.Query[time.Time](t, s.db, `
		SELECT closes_at FROM payment_attempts WHERE order_id = $1 AND state IN ('creating', 'open')`, o.ID)
	if current.HoldUntil == nil {
		t.Fatalf("the order is %+v, want it held", current)
	}
	if left := closes.Sub(current.ServerTime); !about(left, checkoutUntil) {
		t.Errorf("the checkout is open for %v, want %v", left, checkoutUntil)
	}
	if left := current.HoldUntil.Sub(current.ServerTime); !about(left, holdUntil) {
		t.Errorf("the order is held for %v, want %v", left, holdUntil)
	}
}

// TestCheckoutOutlivesTheDeadline opens checkouts shortly before the deadline, and lets it pass.
func TestCheckoutOutlivesTheDeadline(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	for name, test := range map[string]func(*testing.T, *shop){
		"paid after the deadline":              payAfterTheDeadline,
		"not paid":                             closeAtTheEndOfTheCheckout,
		"cancelled after the deadline":         cancelAfterTheDeadline,
		"POST repeated after the deadline":     openAgainAfterTheDeadline,
		"killed before create":                 continueAfterTheDeadline,
		"opened in the last moment":            openInTheLastMoment,
		"no new attempt after the deadline":    noAttemptAfterTheDeadline,
		"second attempt has its own time":      secondAttemptHasItsTime,
		"opened long before the deadline":      openLongBefore,
		"checkout time of zero":                checkoutTimeOfZero,
		"provider away until the hold is over": awayUntilTheHoldIsOver,
	} {
		t.Run(name, func(t *testing.T) {
			s.setAPI(t, "up")
			s.resetBreaker(t)
			test(t, s)
			s.check(t)
		})
	}
}

func payAfterTheDeadline(t *testing.T, s *shop) {
	o, a := s.openAt(t, time.Minute)
	s.wantTimes(t, o, checkout, checkout+grace)
	s.shiftToDeadline(t, o.ID, time.Minute)
	s.settleNow(t, o.ID)
	s.cancelDue(t, o.ID)
	s.wantAttempt(t, o, a.ID, "open")
	if !s.pay(t, a.CheckoutURL) {
		t.Fatal("the checkout rejects the payment before checkout_until")
	}
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
}

// TestDeclinedAfterTheDeadline has the provider decline a payment. The checkout stays open.
func TestDeclinedAfterTheDeadline(t *testing.T) {
	s := newShop(t)
	o, a := s.openAt(t, time.Second)
	s.shiftToDeadline(t, o.ID, time.Minute)
	s.submit(t, a.CheckoutURL+"/decline")
	s.settleNow(t, o.ID)
	if again := s.open(t, o); again.ID != a.ID {
		t.Errorf("Open after a declined payment returns attempt %s, want %s", again.ID, a.ID)
	}
	if !s.pay(t, a.CheckoutURL) {
		t.Fatal("the checkout rejects a second try before checkout_until")
	}
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func closeAtTheEndOfTheCheckout(t *testing.T, s *shop) {
	o, a := s.openAt(t, time.Minute)
	if left, again := s.settle(t, o.ID); !again || left > checkout {
		t.Errorf("the task is due again in %v, %v; want no later than the end of the checkout", left, again)
	}
	s.shift(t, o.ID, checkout-10*time.Second)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "open")
	s.shift(t, o.ID, 10*time.Second)
	s.wantAttempt(t, o, a.ID, "open closing")
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.cancelDue(t, o.ID) // its deadline has passed
	s.wantOrder(t, o, "cancelled timeout")
	if s.pay(t, a.CheckoutURL) {
		t.Error("the checkout takes a payment after the cancellation")
	}
}

func cancelAfterTheDeadline(t *testing.T, s *shop) {
	o, a := s.openAt(t, time.Minute)
	s.shiftToDeadline(t, o.ID, time.Second)
	testenv.Must(t, s.Close(t.Context(), o.CustomerID, o.ID))
	s.wantAttempt(t, o, a.ID, "closed")
	if _, err := s.orders.Cancel(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.DeadlinePassed {
		t.Errorf("Cancel returns %v, want deadline-passed", err)
	}
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func openAgainAfterTheDeadline(t *testing.T, s *shop) {
	o, a := s.openAt(t, time.Minute)
	s.shiftToDeadline(t, o.ID, time.Second)
	again, opened, err := s.Open(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if opened || again.ID != a.ID || again.CheckoutURL != a.CheckoutURL || again.CheckoutUntil == nil {
		t.Errorf("Open after the deadline returns %+v, %v; want the first attempt, and until when it can be paid", again, opened)
	}
	s.shift(t, o.ID, checkout)
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.DeadlinePassed {
		t.Errorf("Open after checkout_until returns %v, want deadline-passed", err)
	}
	s.settleAll(t, o)
}

// continueAfterTheDeadline has the process end between the commit of the attempt and the call of the provider.
func continueAfterTheDeadline(t *testing.T, s *shop) {
	o := s.place(t)
	s.shiftToDeadline(t, o.ID, -10*time.Second)
	s.setAPI(t, "down")
	if _, opened, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway || !opened {
		t.Fatalf("Open returns opened %v, %v; want an opened attempt, and provider-unavailable", opened, err)
	}
	s.setAPI(t, "up")
	s.resetBreaker(t)
	s.shiftToDeadline(t, o.ID, 5*time.Second)
	a := s.open(t, o) // the same attempt
	if a.ID != s.latest(t, o).ID || len(s.sessionsOf(t, a.ID)) != 1 {
		t.Errorf("the continued attempt is %s, want %s with one session", a.ID, s.latest(t, o).ID)
	}
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func openInTheLastMoment(t *testing.T, s *shop) {
	o := s.place(t)
	// The deadline must pass between the snapshot of the statement and its end, or shortly after that.
	s.exec(t, `UPDATE orders SET created_at = created_at - interval '1 hour', expires_at = clock_timestamp() + interval '1500 ms' WHERE id = $1`, o.ID)
	a := s.open(t, o)
	testenv.Eventually(t, "the deadline", func() bool {
		return testenv.Query[bool](t, s.db, `SELECT expires_at < clock_timestamp() FROM orders WHERE id = $1`, o.ID)
	})
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func noAttemptAfterTheDeadline(t *testing.T, s *shop) {
	o, a := s.openAt(t, time.Minute)
	s.shiftToDeadline(t, o.ID, time.Second)
	s.expireSession(t, a.ID)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.DeadlinePassed {
		t.Errorf("Open returns %v, want deadline-passed: the checkout time of a closed attempt opens no other", err)
	}
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func secondAttemptHasItsTime(t *testing.T, s *shop) {
	o, a := s.openAt(t, 2*time.Minute)
	s.expireSession(t, a.ID)
	s.shift(t, o.ID, time.Minute)
	s.settleNow(t, o.ID)
	s.open(t, o)
	s.wantTimes(t, o, checkout, checkout+grace)
	s.settleAll(t, o)
}

func openLongBefore(t *testing.T, s *shop) {
	o, a := s.openAt(t, 20*time.Minute)
	s.wantTimes(t, o, 20*time.Minute, 20*time.Minute+grace)
	if a.CheckoutUntil == nil || (a.CheckoutUntil.Sub(a.OpenedAt)-20*time.Minute).Abs() > time.Second {
		t.Errorf("the attempt can be paid until %v, want the deadline", a.CheckoutUntil)
	}
	s.shiftToDeadline(t, o.ID, time.Millisecond)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.settleAll(t, o)
}

func checkoutTimeOfZero(t *testing.T, s *shop) {
	o := s.place(t)
	s.shiftToDeadline(t, o.ID, -time.Minute)
	a := s.open(t, o)
	s.exec(t, `UPDATE payment_attempts SET closes_at = (SELECT expires_at FROM orders WHERE id = order_id) WHERE id = $1`, a.ID)
	s.exec(t, `UPDATE orders SET hold_until = expires_at + interval '2 min' WHERE id = $1`, o.ID)
	s.shiftToDeadline(t, o.ID, time.Millisecond)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func awayUntilTheHoldIsOver(t *testing.T, s *shop) {
	o, a := s.openAt(t, time.Minute)
	s.setAPI(t, "down")
	s.shift(t, o.ID, checkout+time.Second)
	s.settle(t, o.ID)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "pending held")
	s.shift(t, o.ID, grace)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.setAPI(t, "up")
	s.resetBreaker(t)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
}

// TestHoldFollowsTheDeadline moves deadlines of held orders. The hold moves by the same time, and the checkout closes
// when it was said to. Then the customer can open another one until the new deadline. An operator cannot move the
// deadline to an earlier time.
func TestHoldFollowsTheDeadline(t *testing.T) {
	s := newMemoryShop(t)
	for name, test := range map[string]struct {
		opened time.Duration // before the deadline
		extend bool          // by the customer
		move   time.Duration // by an operator, to this time from now; 0: not at all
		closes time.Duration // from the opening to when the checkout closes
		hold   time.Duration // from the opening to the end of the hold
	}{
		"extended, opened before the last minutes": {10 * time.Minute, true, 0, 10 * time.Minute, 10*time.Minute + extension + grace},
		"extended, opened in the last minutes":     {time.Minute, true, 0, checkout, checkout + extension + grace},
		"moved later by an operator":               {10 * time.Minute, false, 12 * time.Minute, 10 * time.Minute, 12*time.Minute + grace},
		"moved earlier by an operator":             {10 * time.Minute, false, 2 * time.Minute, 10 * time.Minute, 10*time.Minute + grace},
		"moved later by a day":                     {10 * time.Minute, false, 24 * time.Hour, 10 * time.Minute, 24*time.Hour + grace},
	} {
		t.Run(name, func(t *testing.T) {
			o, a := s.openAt(t, test.opened)
			if test.extend {
				_, err := s.orders.Extend(t.Context(), o.CustomerID, o.ID)
				testenv.Must(t, err)
			}
			if test.move > 0 {
				want := rest.Class{}
				if test.move < test.opened {
					want = order.CheckoutOpen
				}
				if err := s.reschedule(t, o.ID, test.move); parttest.ClassOf(err) != want {
					t.Fatalf("Reschedule returns %v, want code %q", err, want.Code)
				}
			}
			s.wantTimes(t, o, test.closes, test.hold)
			s.shift(t, o.ID, test.closes-10*time.Second)
			s.settleNow(t, o.ID)
			s.wantAttempt(t, o, a.ID, "open")
			s.shift(t, o.ID, 10*time.Second)
			s.settle(t, o.ID)
			s.wantAttempt(t, o, a.ID, "closed")
			if test.extend || test.move > test.opened {
				s.open(t, o)
			}
			s.settleAll(t, o)
		})
	}
	s.check(t)
}

// TestTotalNotChargeable opens checkouts of orders of which some cost what the provider does not charge. Such an order
// gets no attempt, is not held, and ends like any other order.
func TestTotalNotChargeable(t *testing.T) {
	s := newMemoryShop(t)
	customer := keyset.NewID()
	place := func(t *testing.T, price, quantity int64, currency string) *order.Order {
		t.Helper()
		product := uuid.New()
		s.exec(t, `INSERT INTO products (id, name, price_cents, currency, supply, available)
			VALUES ($1, 'Bag', $2, $3, 10, 10)`, product, price, currency)
		lines := []order.Line{{ProductID: product, Quantity: quantity}}
		o, _, err := s.orders.Place(t.Context(), customer, order.Placement{Lines: lines})
		testenv.Must(t, err)
		return o
	}
	for name, test := range map[string]struct {
		price, quantity int64
		currency        string
		want            string // in the error; "": the checkout opens
	}{
		"too small":                    {24, 2, "EUR", "0.48 EUR, and the payment provider charges no less than 0.50 EUR"},
		"the smallest amount":          {25, 2, "EUR", ""},
		"no decimals":                  {49, 1, "JPY", "49 JPY, and the payment provider charges no less than 50 JPY"},
		"another currency":             {17499, 1, "HUF", "174.99 HUF, and the payment provider charges no less than 175.00 HUF"},
		"a currency without a minimum": {1, 1, "XCD", ""},
		"too large":                    {50_000_000, 2, "EUR", "1000000.00 EUR, and the payment provider charges no more than 999999.99 EUR"},
		"the largest amount":           {99_999_999, 1, "EUR", ""},
		"more digits":                  {99_999_999, 2, "IDR", ""},
		"no multiple":                  {12_345, 1, "KWD", "12.345 KWD, and the payment provider charges only multiples of 0.010 KWD"},
		"a multiple":                   {12_345, 2, "KWD", ""},
		"another unit":                 {5000, 1, "ISK", "5000 ISK, and the payment provider charges no ISK"},
		"one of another unit":          {5000, 1, "UGX", "5000 UGX, and the payment provider charges no UGX"},
		"a hundredth of the unit":      {5000, 1, "MGA", "50.00 MGA, and the payment provider charges no MGA"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, end := range []string{"cancelled customer", "cancelled timeout"} {
				o := place(t, test.price, test.quantity, test.currency)
				before, calls := s.row(t, o), s.called("create")
				if test.want == "" {
					s.open(t, o)
					return
				}
				_, _, err := s.Open(t.Context(), customer, o.ID)
				if parttest.ClassOf(err) != attempt.NotChargeable || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("Open returns %v, want total-not-chargeable with %q", err, test.want)
				}
				if after := s.row(t, o); after != before || s.called("create") != calls {
					t.Errorf("the order, its attempts, events and tasks are %s, want them as before, and no call: %s", after, before)
				}
				if end == "cancelled customer" {
					s.cancel(t, o)
				} else {
					s.shiftToDeadline(t, o.ID, time.Second)
					if _, _, err := s.Open(t.Context(), customer, o.ID); parttest.ClassOf(err) != order.DeadlinePassed {
						t.Errorf("Open after the deadline returns %v, want deadline-passed", err)
					}
					s.cancelDue(t, o.ID)
				}
				s.wantOrder(t, o, end)
			}
		})
	}
	s.check(t)
}

// row returns an order as the database has it, with its attempts, events and tasks.
func (s *shop) row(t testing.TB, o *order.Order) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `
		SELECT concat_ws(' ', o, (SELECT json_agg(a) FROM payment_attempts a WHERE order_id = o.id),
		       (SELECT json_agg(e) FROM order_events e WHERE order_id = o.id),
		       (SELECT json_agg(b) FROM outbox b WHERE task_id = o.id::text))
		FROM orders o WHERE id = $1`, o.ID)
}

// TestHeldOrdersAreOpen checks that an order counts towards its customer's open orders until it has ended, also after
// its deadline.
func TestHeldOrdersAreOpen(t *testing.T) {
	s := newMemoryShop(t)
	bounded := order.NewService(s.orderDB, s.cancels, order.Config{
		Options: order.Options{OrderTimeout: payWithin, Bounds: order.Bounds{MaxOpenOrders: 1}},
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	o, _ := s.openAt(t, time.Minute)
	s.shiftToDeadline(t, o.ID, time.Second)
	_, _, err := bounded.Place(t.Context(), o.CustomerID, order.Placement{Lines: []order.Line{{ProductID: s.product, Quantity: 1}}})
	if parttest.ClassOf(err) != order.TooManyOpen {
		t.Errorf("Place beside a held order past its deadline returns %v, want too-many-open", err)
	}
	s.settleAll(t, o)
	s.check(t)
}

// TestSessionOutlivesTheCheckout checks when the provider's session expires by itself: at least five minutes after the
// grace of the checkout, and not sooner than the provider accepts.
func TestSessionOutlivesTheCheckout(t *testing.T) {
	s := newMemoryShop(t)
	for before, want := range map[time.Duration]time.Duration{ // the opening before the deadline
		29 * time.Minute: 29*time.Minute + grace + 5*time.Minute,
		time.Minute:      31 * time.Minute,
	} {
		o := s.place(t)
		s.shiftToDeadline(t, o.ID, -before)
		a := s.open(t, o)
		if left := time.Until(s.mem.of(t, a.ID).ExpiresAt); (left - want).Abs() > 3*time.Second {
			t.Errorf("%v before the deadline: the session expires in %v, want %v", before, left, want)
		}
		s.settleAll(t, o)
	}
	s.check(t)
}

// TestDeadlineAfterTheSession has a customer abandon a checkout on each of 25 days of an order that is due in 30. The
// API never promises that a checkout can be paid after its session has ended, and each day the customer can open
// another one.
func TestDeadlineAfterTheSession(t *testing.T) {
	s := newMemoryShop(t)
	o := s.place(t)
	s.exec(t, `UPDATE orders SET expires_at = created_at + interval '30 days' WHERE id = $1`, o.ID)
	for day := range 25 {
		a := s.open(t, o)
		a = s.attempt(t, o, a.ID)
		ends := s.mem.of(t, a.ID).ExpiresAt
		if left := time.Until(*a.CheckoutUntil); a.CheckoutUntil.After(ends) || left < 23*time.Hour {
			t.Fatalf("day %d: checkout_until is in %v, the session ends in %v; want it not later, and after most of the day", day, left, time.Until(ends))
		}
		left, _ := s.settle(t, o.ID)
		s.shift(t, o.ID, 23*time.Hour+45*time.Minute-left)
		s.settle(t, o.ID)
		s.wantAttempt(t, o, a.ID, "open")
		s.shift(t, o.ID, left+5*time.Minute+time.Second)
		_, _, err := s.Open(t.Context(), o.CustomerID, o.ID)
		if parttest.ClassOf(err) != attempt.ProviderAway || !strings.Contains(rest.AsError(err).Detail, "is ending") {
			t.Errorf("Open while the checkout is ending returns %v, want provider-unavailable, and the reason", err)
		}
		if day%2 == 0 {
			s.expireSession(t, a.ID) // by itself, by the provider's clock
		}
		s.settle(t, o.ID)
		s.wantAttempt(t, o, a.ID, "closed")
		s.wantOrder(t, o, "pending")
	}
	a := s.open(t, o)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
	s.check(t)
}

// TestTakeTwoThousandClosings takes 2,000 attempts whose closing begins at the same time, in batches as the workers do.
func TestTakeTwoThousandClosings(t *testing.T) {
	testenv.Slow(t, "takes thousands of payments")
	s := newMemoryShop(t)
	s.fillTables(t)
	const n = 2000
	s.exec(t, `
		WITH o AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at, hold_until)
			SELECT gen_random_uuid(), gen_random_uuid(), 100, 'EUR', now() - interval '30 min', now(), now() + interval '2 min'
			FROM generate_series(1, $1) RETURNING id, created_at)
		INSERT INTO payment_attempts (id, order_id, number, amount_cents, currency, state, session_id, checkout_url, opened_at, next_check,
			closes_at, session_expires_at)
		SELECT gen_random_uuid(), id, 1, 77, 'eur', 'open', 'cs_' || id, 'url', created_at, now(), now(), now() + interval '1 hour'
		FROM o`, n)
	s.exec(t, `ANALYZE orders, payment_attempts`)
	var ids []string
	rows, err := s.db.QueryContext(t.Context(), `SELECT id::text FROM payment_attempts WHERE amount_cents = 77`)
	testenv.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		testenv.Must(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	testenv.Must(t, rows.Err())
	start := time.Now()
	for batch := range slices.Chunk(ids, check.BatchSize) {
		_, err := s.db.ExecContext(t.Context(), statement(t, "attempt/take.sql"), "{"+strings.Join(batch, ",")+"}", 1)
		testenv.Must(t, err)
	}
	took := time.Since(start)
	if taken := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts WHERE amount_cents = 77 AND next_check > now()`); taken != n {
		t.Errorf("%d attempts are taken, want %d", taken, n)
	}
	t.Logf("%d attempts were taken in %v, %v for a batch of %d", n, took, took/(n/check.BatchSize), check.BatchSize)
	if took > time.Minute { // they must be closed within the grace; on an idle machine it takes about a second
		t.Errorf("taking %d attempts took %v, want less than a minute", n, took)
	}
}

// clockedProvider is a provider whose clock differs from that of the shop. The shop learns it from the first answer,
// which tells the account of the key.
type clockedProvider struct {
	*memory
	ahead   time.Duration
	learned atomic.Bool
	creates atomic.Int64
}

func (p *clockedProvider) Clock() time.Time {
	if !p.learned.Load() {
		return time.Now()
	}
	return time.Now().Add(p.ahead)
}

func (p *clockedProvider) Account(context.Context) (string, error) {
	p.learned.Store(true)
	return "", failed(provider.Denied, "")
}

func (p *clockedProvider) Create(ctx context.Context, c provider.Checkout) (provider.Session, error) {
	p.creates.Add(1)
	if left := c.ExpiresAt.Sub(p.Clock()); left < 30*time.Minute || left > 24*time.Hour {
		return provider.Session{}, &provider.Error{
			Class: provider.Refused, Operation: "create", Err: fmt.Errorf("expires in %v", left),
		}
	}
	return p.memory.Create(ctx, c)
}

// TestClockOfTheProvider has a provider whose clock is far from that of PostgreSQL. Sessions can be opened, and expire
// after the longest hold by the provider's clock.
func TestClockOfTheProvider(t *testing.T) {
	const longest = payWithin + grace + 5*time.Minute
	for name, ahead := range map[string]time.Duration{
		"equal": 0, "40 minutes ahead": 40 * time.Minute, "two hours ahead": 2 * time.Hour,
		"40 minutes behind": -40 * time.Minute, "a day behind": -24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			s := openShop(t)
			p := &clockedProvider{memory: newMemory(), ahead: ahead}
			s.start(t, p)
			s.restartAs(p, "production", apiKey)
			o, a := s.placeOpen(t)
			if n := p.creates.Load(); n != 1 {
				t.Errorf("the first session took %d calls, want 1", n)
			}
			expires := testenv.Query[time.Time](t, s.db, `SELECT session_expires_at FROM payment_attempts WHERE id = $1`, a.ID)
			if left := expires.Sub(p.Clock()); !about(left, longest) {
				t.Errorf("the session expires in %v by the provider's clock, want %v", left, longest)
			}
			s.settleAll(t, o)
		})
	}
}

// TestReturnSettlesAtOnce has a customer come back from the checkout while webhooks are lost. The provider is asked at
// once, and not more than once in 10 s.
func TestReturnSettlesAtOnce(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.placeOpen(t)
	c, other := s.client(t, o.CustomerID), s.client(t, keyset.NewID())
	path := "/api/orders/" + o.ID.String() + "/payments/returned"
	s.exec(t, `DELETE FROM outbox`)
	s.settles.Take()
	other.send(t, "POST", path, "", 404, "not-found")
	if n := len(s.settles.Take()); n != 0 {
		t.Errorf("another customer made %d checks due, want 0", n)
	}

	calls := s.called("retrieve")
	for range 3 {
		c.send(t, "POST", path, "", 202, "")
		s.settle(t, o.ID)
	}
	if n := s.called("retrieve") - calls; n != 1 {
		t.Errorf("three returns within 10 s made %d calls, want 1", n)
	}
	if left := s.owedIn(t, o.ID); !about(left, 6*time.Second) {
		t.Errorf("after three returns the task of the order is owed in %v, want in 6 s", left)
	}

	s.pay(t, a.CheckoutURL)
	s.shift(t, o.ID, 11*time.Second)
	c.send(t, "POST", path, "", 202, "")
	s.wantOrder(t, o, "paid")
	c.send(t, "POST", path, "", 202, "") // nothing is left to ask
	if _, again := s.settle(t, o.ID); again {
		t.Error("a return made the task of a paid order due")
	}
	s.check(t)
}
