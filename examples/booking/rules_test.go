package main

import (
	"database/sql"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestBookingOperationsInEachState calls each operation in each state of a booking, twice.
func TestBookingOperationsInEachState(t *testing.T) {
	c := newCinema(t)
	customer := uuid.New()
	states := map[string]func(*booking){
		"pending": func(*booking) {},
		"overdue": func(b *booking) { testenv.Exec(t, c.db, pastDeadline, b.ID) },
		"confirmed": func(b *booking) {
			testenv.Must(t, operations["confirm"](t.Context(), c, customer, b))
		},
		"expired": func(b *booking) {
			testenv.Exec(t, c.db, pastDeadline, b.ID)
			testenv.Must(t, operations["expire"](t.Context(), c, customer, b))
		},
	}
	type result struct{ class, status string } // status: afterwards
	want := map[string]map[string]result{
		"pending": {
			"confirm": {"", "confirmed"}, "confirm with a wrong code": {"wrong-code", "pending"},
			"expire": {"", "pending"},
		},
		"overdue": {
			"confirm": {"booking-expired", "pending"}, "confirm with a wrong code": {"wrong-code", "pending"},
			"expire": {"", "expired"},
		},
		"confirmed": {
			"confirm": {"", "confirmed"}, "confirm with a wrong code": {"wrong-code", "confirmed"},
			"expire": {"", "confirmed"},
		},
		"expired": {
			"confirm": {"booking-expired", "expired"}, "confirm with a wrong code": {"wrong-code", "expired"},
			"expire": {"", "expired"},
		},
	}
	for state, prepare := range states {
		for name, do := range operations {
			t.Run(name+" "+state, func(t *testing.T) {
				screening := c.screening(t, 3)
				owner := customer
				b := c.book(t, owner, anyOf(screening, 2))
				prepare(b)
				for range 2 {
					checkClass(t, "of its customer", do(t.Context(), c, owner, b), want[state][name].class)
					got, err := c.get(t.Context(), owner, b.ID)
					testenv.Must(t, err)
					if got.Status != want[state][name].status {
						t.Errorf("the booking is %s, want %s", got.Status, want[state][name].status)
					}
					held := map[string]int{"pending": 2, "confirmed": 2}[got.Status]
					if free := c.free(t, screening); free != 3-held {
						t.Errorf("%d of 3 seats are free, want %d", free, 3-held)
					}
				}
				if name != "expire" {
					checkClass(t, "of another customer", do(t.Context(), c, uuid.New(), b), "not-found")
				}
				c.checkInvariants(t)
				// So that the booking does not count towards the bound of the customer in the other subtests.
				testenv.Exec(t, c.db, `UPDATE bookings SET customer_id = gen_random_uuid() WHERE id = $1`, b.ID)
			})
		}
	}
}

// TestBookingDeadlineMovesDuringLockWait moves the deadline while a confirmation waits for the lock of the booking.
// The deadline at the time when it gets the lock decides.
func TestBookingDeadlineMovesDuringLockWait(t *testing.T) {
	const late = `
		UPDATE bookings SET created_at = now() - interval '1 hour', expires_at = clock_timestamp() WHERE id = $1`
	const extended = `UPDATE bookings SET expires_at = now() + interval '1 hour' WHERE id = $1`
	for name, test := range map[string]struct{ before, move, class string }{
		"it passes":   {`SELECT FROM bookings WHERE id = $1`, late, "booking-expired"},
		"it is later": {pastDeadline, extended, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCinema(t)
			customer, screening := uuid.New(), c.screening(t, 1)
			b := c.book(t, customer, anyOf(screening, 1))
			testenv.Exec(t, c.db, test.before, b.ID)
			tx, err := c.db.BeginTx(t.Context(), nil)
			testenv.Must(t, err)
			_, err = tx.ExecContext(t.Context(), `SELECT FROM bookings WHERE id = $1 FOR UPDATE`, b.ID)
			testenv.Must(t, err)
			result := make(chan error, 1)
			go func() { result <- operations["confirm"](t.Context(), c, customer, b) }()
			testenv.AwaitLockWait(t, c.db)
			_, err = tx.ExecContext(t.Context(), test.move, b.ID)
			testenv.Must(t, err)
			testenv.Must(t, tx.Commit())
			checkClass(t, "confirm", <-result, test.class)
			c.checkInvariants(t)
		})
	}
}

// inParallel calls do for the numbers below n at the same time, and counts the results by their classes.
func inParallel(n int, do func(i int) error) map[string]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	classes := map[string]int{}
	for i := range n {
		wg.Go(func() {
			err := do(i)
			mu.Lock()
			defer mu.Unlock()
			classes[parttest.ClassOf(err).Code]++
		})
	}
	wg.Wait()
	return classes
}

// TestSeatIsBookedOnce books the same seats many times in parallel, by their names and any.
func TestSeatIsBookedOnce(t *testing.T) {
	c := newCinema(t)
	screening := c.screening(t, 5)
	wishes := []wish{
		named(screening, "A01", "A02"), named(screening, "A02", "A03"), named(screening, "A05", "A04", "A03"),
		anyOf(screening, 1), anyOf(screening, 3),
	}
	for range testenv.Rounds(5, 30) {
		var mu sync.Mutex
		seats := map[string]bool{}
		var created []uuid.UUID
		classes := inParallel(15, func(i int) error {
			b, _, err := c.create(t.Context(), uuid.New(), wishes[i%len(wishes)])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			created = append(created, b.ID)
			for _, seat := range b.Seats {
				if seats[seat] {
					t.Errorf("the seat %s is booked twice", seat)
				}
				seats[seat] = true
			}
			return nil
		})
		if classes[""]+classes["seats-taken"] != 15 || classes[""] == 0 {
			t.Errorf("the results are %v, want bookings and seats-taken", classes)
		}
		if free := c.free(t, screening); free != 5-len(seats) {
			t.Errorf("%d seats are free, want %d", free, 5-len(seats))
		}
		c.checkInvariants(t)
		for _, id := range created {
			testenv.Exec(t, c.db, pastDeadline, id)
		}
		if done, _ := c.expire(t, created...); done != len(created) {
			t.Errorf("%d of %d bookings have expired", done, len(created))
		}
	}
}

// TestBookingTakesAllSeatsOrNone asks for seats of which some are taken or do not exist, or for more than there are.
func TestBookingTakesAllSeatsOrNone(t *testing.T) {
	c := newCinema(t)
	screening, begun := c.screening(t, 4), c.screening(t, 1)
	testenv.Exec(t, c.db, `UPDATE screenings SET starts_at = now() WHERE id = $1`, begun)
	taken := c.book(t, uuid.New(), named(screening, "A03", "A02"))
	if !slices.Equal(taken.Seats, []string{"A02", "A03"}) {
		t.Errorf("the booking has the seats %v, want A02 and A03", taken.Seats)
	}
	c.published.Take()
	outbox := testenv.Query[int](t, c.db, `SELECT count(*) FROM outbox`)
	for name, test := range map[string]struct {
		wish  wish
		class string
	}{
		"taken":             {named(screening, "A01", "A02"), "seats-taken"},
		"does not exist":    {named(screening, "A01", "A05"), "seats-taken"},
		"too many":          {anyOf(screening, 3), "seats-taken"},
		"beyond the bound":  {anyOf(screening, 11), "too-many-seats"},
		"unknown screening": {anyOf(uuid.New(), 1), "unknown-screening"},
		"begun screening":   {anyOf(begun, 1), "unknown-screening"},
	} {
		_, _, err := c.create(t.Context(), uuid.New(), test.wish)
		checkClass(t, name, err, test.class)
	}
	if free := c.free(t, screening); free != 2 {
		t.Errorf("%d seats are free, want 2", free)
	}
	if n := testenv.Query[int](t, c.db, `SELECT count(*) FROM outbox`); n != outbox || len(c.published.All()) > 0 {
		t.Errorf("%d outbox rows and the messages %v, want %d and none", n, c.published.All(), outbox)
	}
	if rest := c.book(t, uuid.New(), anyOf(screening, 2)); !slices.Equal(rest.Seats, []string{"A01", "A04"}) {
		t.Errorf("any two of two free seats are %v, want A01 and A04", rest.Seats)
	}
	c.checkInvariants(t)
}

// TestBookingOwesItsTask checks the outbox row and the published message of a booking.
func TestBookingOwesItsTask(t *testing.T) {
	c := newCinema(t)
	b := c.book(t, uuid.New(), anyOf(c.screening(t, 1), 1))
	if n := testenv.Query[int](t, c.db, `SELECT count(*) FROM outbox o JOIN bookings b ON o.task_id = b.id::text
		WHERE o.kind = $1 AND o.due_at = b.expires_at`, expireKind); n != 1 || c.published.Of(b.ID) != 1 {
		t.Errorf("%d outbox rows, published %d times; want both once", n, c.published.Of(b.ID))
	}
}

// TestBookingSeesSeatsReleasedDuringItsWait releases the only seat while a booking waits for the screening.
func TestBookingSeesSeatsReleasedDuringItsWait(t *testing.T) {
	c := newCinema(t)
	screening := c.screening(t, 1)
	b := c.book(t, uuid.New(), anyOf(screening, 1))
	testenv.Exec(t, c.db, pastDeadline, b.ID)
	release := testenv.HoldLock(t, c.db, `SELECT FROM screenings WHERE id = $1 FOR NO KEY UPDATE`, screening)
	result := make(chan error, 1)
	go func() {
		_, _, err := c.create(t.Context(), uuid.New(), anyOf(screening, 1))
		result <- err
	}()
	testenv.AwaitLockWait(t, c.db)
	if done, _ := c.expire(t, b.ID); done != 1 {
		t.Errorf("%d bookings have expired, want 1", done)
	}
	release()
	checkClass(t, "the seat was released", <-result, "")
	c.checkInvariants(t)
}

// TestParallelBookingsKeepBound books seats of several screenings for one customer in parallel.
func TestParallelBookingsKeepBound(t *testing.T) {
	c := newCinema(t)
	for range testenv.Rounds(3, 20) {
		customer := uuid.New()
		var screenings []uuid.UUID
		for range 4 {
			screenings = append(screenings, c.screening(t, 20))
		}
		classes := inParallel(12, func(i int) error {
			_, _, err := c.create(t.Context(), customer, anyOf(screenings[i%4], 3))
			return err
		})
		if classes[""] != 3 || classes["too-many-seats"] != 9 {
			t.Errorf("the results are %v, want 3 bookings of 3 seats and 9 rejections: the bound is 10 seats", classes)
		}
		_, _, err := c.create(t.Context(), customer, anyOf(screenings[0], 2))
		e := rest.AsError(err)
		if open, ok := e.Extensions["open_bookings"].([]uuid.UUID); !ok || len(open) != 3 {
			t.Errorf("the rejection %v names the bookings %v, want 3", err, e.Extensions)
		}
		testenv.Exec(t, c.db, `
			UPDATE bookings SET created_at = now() - interval '1 hour', expires_at = now() - interval '1 s'
			WHERE customer_id = $1`, customer)
		c.book(t, customer, anyOf(screenings[0], 10)) // overdue bookings do not count
	}
	c.checkInvariants(t)
}

// TestParallelBookingsWithOneKey repeats a request in parallel, and then with other wishes and for another customer.
func TestParallelBookingsWithOneKey(t *testing.T) {
	c := newCinema(t)
	for range testenv.Rounds(3, 20) {
		customer, screening := uuid.New(), c.screening(t, 20)
		w := named(screening, "A01", "A02")
		w.key = "key"
		var mu sync.Mutex
		var created int
		ids, codes := map[uuid.UUID]bool{}, map[string]bool{}
		classes := inParallel(10, func(int) error {
			b, replayed, err := c.create(t.Context(), customer, w)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if !replayed {
				created++
			}
			ids[b.ID], codes[b.Code] = true, true
			return nil
		})
		if classes[""] != 10 || created != 1 || len(ids) != 1 || len(codes) != 1 {
			t.Errorf("the results are %v, %d bookings are new, with %d ids and %d codes; want 10 equal answers and 1 booking",
				classes, created, len(ids), len(codes))
		}
		w.seats = []string{"A02", "A01"} // the same seats
		if _, replayed, err := c.create(t.Context(), customer, w); err != nil || !replayed {
			t.Errorf("the seats in another order: replayed %v, error %v; want the same booking", replayed, err)
		}
		other := anyOf(screening, 2)
		other.key = w.key
		_, _, err := c.create(t.Context(), customer, other)
		checkClass(t, "another wish with the same key", err, "idempotency-key-reused")
		if _, replayed, err := c.create(t.Context(), uuid.New(), other); err != nil || replayed {
			t.Errorf("the key of another customer: replayed %v, error %v; want a new booking", replayed, err)
		}
		both := []wish{anyOf(screening, 1), anyOf(c.screening(t, 1), 1)}
		both[0].key, both[1].key = "second key", "second key"
		classes = inParallel(6, func(i int) error {
			_, _, err := c.create(t.Context(), customer, both[i%2])
			return err
		})
		if classes[""] != 3 || classes["idempotency-key-reused"] != 3 {
			t.Errorf("two screenings with one key: the results are %v, want 3 equal answers and 3 rejections", classes)
		}
	}
	c.checkInvariants(t)
}

// TestSeatsAreLockedInOrder locks the first of two seats. An operation that waits for it must not have locked the
// second one.
func TestSeatsAreLockedInOrder(t *testing.T) {
	for _, name := range []string{"create", "expire"} {
		t.Run(name, func(t *testing.T) {
			c := newCinema(t)
			screening := c.screening(t, 2)
			result := make(chan error, 1)
			lock := func() (release func()) {
				return testenv.HoldLock(t, c.db, `SELECT FROM seats WHERE seat = 'A01' FOR UPDATE`)
			}
			var release func()
			if name == "create" {
				release = lock()
				go func() {
					_, _, err := c.create(t.Context(), uuid.New(), named(screening, "A02", "A01"))
					result <- err
				}()
			} else {
				b := c.book(t, uuid.New(), anyOf(screening, 2))
				testenv.Exec(t, c.db, pastDeadline, b.ID)
				release = lock()
				go func() { result <- operations["expire"](t.Context(), c, uuid.Nil, b) }()
			}
			testenv.AwaitLockWait(t, c.db)
			if err := tryLock(t, c.db, `SELECT FROM seats WHERE seat = 'A02' FOR UPDATE NOWAIT`); err != nil {
				t.Errorf("lock the second seat: %v; want it free while the operation waits for the first", err)
			}
			release()
			if err := <-result; name != "expire" { // an expiry may have given up after 500 ms
				testenv.Must(t, err)
			}
		})
	}
}

func tryLock(t *testing.T, db *sql.DB, statement string) error {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	return err
}

// TestBookingsDoNotDeadlock runs all operations that lock several seats in parallel.
func TestBookingsDoNotDeadlock(t *testing.T) {
	c := newCinema(t)
	screening := c.screening(t, 6)
	wishes := []wish{
		named(screening, "A01", "A03", "A02"), named(screening, "A03", "A01"), named(screening, "A05", "A02"),
		anyOf(screening, 3),
	}
	rounds := testenv.Rounds(15, 60)
	classes := inParallel(8, func(i int) error {
		for n := range rounds {
			b, _, err := c.create(t.Context(), uuid.New(), wishes[(i+n)%len(wishes)])
			if parttest.ClassOf(err) == seatsTaken {
				continue
			}
			if err != nil {
				return err
			}
			if _, err = c.db.ExecContext(t.Context(), pastDeadline, b.ID); err == nil {
				_, _, err = c.table.TimeOut(t.Context(), []string{b.ID.String()})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if classes[""] != 8 {
		t.Errorf("the results are %v, want no errors", classes)
	}
	c.db.SetMaxIdleConns(-1) // a session that ends reports its deadlocks at once
	statistic := func(name string) int {
		return testenv.Query[int](t, c.db, `SELECT `+name+` FROM pg_stat_database WHERE datname = current_database()`)
	}
	testenv.Eventually(t, "the statistics of the sessions", func() bool { return statistic("xact_commit") > 8*rounds })
	if n := statistic("deadlocks"); n != 0 {
		t.Errorf("%d deadlocks, want none", n)
	}
	c.checkInvariants(t)
}

// TestExpiryLeavesLockedBookings expires a batch with a booking and a seat that other sessions have locked. The rest
// of the batch expires.
func TestExpiryLeavesLockedBookings(t *testing.T) {
	c := newCinema(t)
	screening := c.screening(t, 3)
	var ids []uuid.UUID
	for range 3 {
		b := c.book(t, uuid.New(), anyOf(screening, 1))
		testenv.Exec(t, c.db, pastDeadline, b.ID)
		ids = append(ids, b.ID)
	}
	releaseBooking := testenv.HoldLock(t, c.db, `SELECT FROM bookings WHERE id = $1 FOR UPDATE`, ids[0])
	releaseSeat := testenv.HoldLock(t, c.db, `SELECT FROM seats WHERE booking_id = $1 FOR UPDATE`, ids[1])
	if done, locked := c.expire(t, append(ids, uuid.New())...); done != 1 || locked != 2 {
		t.Errorf("%d bookings have expired and %d are locked, want 1 and 2", done, locked)
	}
	if free := c.free(t, screening); free != 1 {
		t.Errorf("%d seats are free, want 1", free)
	}
	releaseBooking()
	releaseSeat()
	for i, outcome := range parttest.Handle(t, c.table.Handle, ids...) {
		if outcome != delay.Done() {
			t.Errorf("the outcome of the task of booking %d is %+v, want it done", i, outcome)
		}
	}
	if free := c.free(t, screening); free != 3 {
		t.Errorf("%d seats are free, want 3", free)
	}
	c.checkInvariants(t)
}

// TestLockedScreeningDelaysNoOthers sends many more requests for a locked screening than there are connections. Three
// of them wait for the lock, and all others are rejected. Meanwhile another screening is booked.
func TestLockedScreeningDelaysNoOthers(t *testing.T) {
	c := newCinema(t)
	c.turns = newService(c.service.db, c.options, c.published).turns
	locked, other := c.screening(t, 50), c.screening(t, 50)
	release := testenv.HoldLock(t, c.db, `SELECT FROM screenings WHERE id = $1 FOR UPDATE`, locked)
	var rejected atomic.Int64
	result := make(chan map[string]int, 1)
	go func() {
		result <- inParallel(150, func(int) error {
			_, _, err := c.create(t.Context(), uuid.New(), anyOf(locked, 1))
			if unavailable(err) {
				rejected.Add(1)
			}
			return err
		})
	}()
	testenv.Eventually(t, "all but three requests are rejected", func() bool {
		return rejected.Load() == 150-turnsAtATime
	})
	testenv.AwaitLockWait(t, c.db)
	c.book(t, uuid.New(), anyOf(other, 1))
	release()
	if classes := <-result; classes[""] != turnsAtATime {
		t.Errorf("the results for the locked screening are %v, want that those that waited for the lock succeed", classes)
	}
	c.checkInvariants(t)
}

// TestBookingWaitsForNoLockForLong locks seats. With the timeout of the service, a request for them is rejected,
// and nothing has changed.
func TestBookingWaitsForNoLockForLong(t *testing.T) {
	c := newCinema(t)
	c.lockTimeout = newService(c.service.db, c.options, c.published).lockTimeout
	screening := c.screening(t, 2)
	release := testenv.HoldLock(t, c.db, `SELECT FROM seats FOR UPDATE`)
	_, _, err := c.create(t.Context(), uuid.New(), named(screening, "A02"))
	checkClass(t, "create", err, "unavailable")
	release()
	if free := c.free(t, screening); free != 2 {
		t.Errorf("%d seats are free, want 2", free)
	}
	c.book(t, uuid.New(), named(screening, "A02"))
	c.checkInvariants(t)
}

// TestBookingInvariantsFindViolations breaks each invariant, also where a constraint excludes that.
func TestBookingInvariantsFindViolations(t *testing.T) {
	c := newCinema(t)
	screening := c.screening(t, 4)
	b, other := c.book(t, uuid.New(), named(screening, "A01")), c.book(t, uuid.New(), named(screening, "A02"))
	for _, test := range []struct {
		invariant   int
		break_, fix string
		arguments   []any
	}{
		{1, `UPDATE seats SET booking_id = NULL WHERE booking_id = $1`,
			`UPDATE seats SET booking_id = $1 WHERE seat = 'A01'`, []any{b.ID}},
		{1, `UPDATE seats SET booking_id = $1 WHERE seat = 'A03'`,
			`UPDATE seats SET booking_id = NULL WHERE booking_id = $1 AND seat = 'A03'`, []any{b.ID}},
		{1, `UPDATE bookings SET seats = '{A01}' WHERE id = $1`,
			`UPDATE bookings SET seats = '{A02}' WHERE id = $1`, []any{other.ID}},
		{2, `UPDATE bookings SET created_at = now() - interval '1 day', expires_at = now() - interval '1 hour'
			WHERE id = $1`,
			`UPDATE bookings SET expires_at = now() + interval '1 hour' WHERE id = $1`, []any{b.ID}},
	} {
		testenv.Exec(t, c.db, test.break_, test.arguments...)
		for _, full := range []bool{false, true} {
			found := c.violations(t, full)
			if len(found) == 0 || found[0].Invariant != test.invariant {
				t.Errorf("after %s: violations %+v, want of invariant %d", test.break_, found, test.invariant)
			}
		}
		testenv.Exec(t, c.db, test.fix, test.arguments...)
		c.checkInvariants(t)
	}
	testenv.Exec(t, c.db, `UPDATE screenings SET starts_at = now() - interval '1 hour'`)
	testenv.Exec(t, c.db, `UPDATE seats SET booking_id = NULL WHERE booking_id = $1`, other.ID)
	if some, all := c.violations(t, false), c.violations(t, true); len(some) != 0 || len(all) != 1 {
		t.Errorf("of a screening that has begun: violations %+v and, of a full check, %+v; want none and one", some, all)
	}
	testenv.Exec(t, c.db, `UPDATE seats SET booking_id = $1 WHERE seat = 'A02'`, other.ID)

	testenv.DropChecks(t, c.db)
	for set, want := range map[string]struct {
		invariant int
		quick     bool // the quick check finds it, too
	}{
		`ended_at = created_at`:                                              {3, true},
		`ended_by = 'customer'`:                                              {3, true},
		`status = 'confirmed', ended_by = 'customer'`:                        {3, true},
		`status = 'confirmed', ended_at = created_at`:                        {3, true},
		`status = 'confirmed', ended_at = created_at, ended_by = 'worker'`:   {3, true},
		`status = 'confirmed', ended_at = expires_at, ended_by = 'customer'`: {4, true},
		`status = 'expired', ended_by = 'worker'`:                            {3, false},
		`status = 'expired', ended_at = expires_at`:                          {3, false},
		`status = 'expired', ended_at = expires_at, ended_by = 'customer'`:   {3, false},
		`status = 'expired', ended_at = created_at, ended_by = 'worker'`:     {4, false},
		`status = 'unknown', ended_at = created_at, ended_by = 'customer'`:   {3, false},
	} {
		t.Run(set, func(t *testing.T) {
			b := c.book(t, uuid.New(), anyOf(c.screening(t, 1), 1))
			testenv.Exec(t, c.db, `UPDATE bookings SET `+set+` WHERE id = $1`, b.ID)
			testenv.Exec(t, c.db, `UPDATE seats s SET booking_id = NULL FROM bookings b
				WHERE s.booking_id = b.id AND b.id = $1 AND b.status NOT IN ('pending', 'confirmed')`, b.ID)
			for _, full := range []bool{false, true} {
				violated := map[string]int{}
				if full || want.quick {
					violated["booking "+b.ID.String()] = want.invariant
				}
				found := c.violations(t, full)
				got := map[string]int{}
				for _, v := range found {
					got[v.Subject] = v.Invariant
				}
				if !maps.Equal(got, violated) || len(found) != len(got) {
					t.Errorf("full check %v: violations %+v, want %v", full, found, violated)
				}
			}
			testenv.Exec(t, c.db, `DELETE FROM seats WHERE screening_id = $1`, b.ScreeningID)
			testenv.Exec(t, c.db, `DELETE FROM bookings WHERE id = $1`, b.ID)
			c.checkInvariants(t)
		})
	}
}

// TestBookingSchemaRejectsInvalidRows tries to store states that must not be.
func TestBookingSchemaRejectsInvalidRows(t *testing.T) {
	c := newCinema(t)
	b := c.book(t, uuid.New(), anyOf(c.screening(t, 1), 1))
	for _, set := range []string{
		`status = 'confirmed'`,
		`status = 'confirmed', ended_at = expires_at, ended_by = 'customer'`,
		`status = 'confirmed', ended_at = created_at`,
		`status = 'confirmed', ended_at = created_at, ended_by = 'worker'`,
		`status = 'expired', ended_at = created_at, ended_by = 'worker'`,
		`status = 'expired', ended_at = expires_at, ended_by = 'customer'`,
		`status = 'expired', ended_at = expires_at`,
		`status = 'unknown'`,
		`ended_at = created_at`,
		`expires_at = created_at`,
		`seats = '{}'`,
		`idempotency_key = 'key'`,
	} {
		_, err := c.db.ExecContext(t.Context(), `UPDATE bookings SET `+set+` WHERE id = $1`, b.ID)
		if postgres.Classify(err) != postgres.Rejected {
			t.Errorf("%s: error %v, want that of a constraint", set, err)
		}
	}
}
