package main

import (
	"bytes"
	"maps"
	"slices"
	"strings"
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

// TestStepsAreStored takes each step on a pending row and, afterwards, on what it has left. The row is as the step has
// made it, also if that was an error, and its units are free unless it is pending or confirmed.
func TestStepsAreStored(t *testing.T) {
	s := newTestService(t)
	type result struct {
		class  string
		after  status
		codes  int64
		second string // the class of the step, when it is taken again
	}
	for name, want := range map[string]result{
		"confirm":                  {"", confirmed, 0, ""},
		"release":                  {"", released, 0, ""},
		"send a wrong code":        {wrongCode.Code, pending, 1, wrongCode.Code},
		"send the last wrong code": {wrongCode.Code, refused, maxWrongCodes, tooManyCodes.Code},
		"time out early":           {"", pending, 0, ""},
		"time out":                 {"", expired, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			customer, shared := uuid.New(), s.counter(t, 3)
			b := s.make(t, customer, of(shared, 2))
			if name == "time out" {
				testenv.Exec(t, s.pool, pastDeadline, b.ID)
			}
			if _, ok := steps[name]; ok {
				checkClass(t, "of another customer", s.do(t.Context(), name, uuid.New(), b.ID), rest.NotFound.Code)
			}
			for n, class := range []string{want.class, want.second} {
				checkClass(t, "of its customer", s.do(t.Context(), name, customer, b.ID), class)
				got, err := s.get(t.Context(), customer, b.ID)
				testenv.Must(t, err)
				codes := want.codes
				if want.after == pending {
					codes *= int64(n + 1)
				}
				if got.Status != want.after || got.WrongCodes != codes {
					t.Errorf("it is %s with %d wrong codes, want %s with %d", got.Status, got.WrongCodes, want.after, codes)
				}
				held := map[status]int{pending: 2, confirmed: 2}[want.after]
				if free := s.free(t, shared); free != 3-held {
					t.Errorf("%d of 3 units are free, want %d", free, 3-held)
				}
				s.checkInvariants(t)
			}
		})
	}
}

// TestStepSeesDeadlineMovedDuringItsWait moves the deadline while a step waits for the lock of the row. The deadline at
// the time when it gets the lock decides.
func TestStepSeesDeadlineMovedDuringItsWait(t *testing.T) {
	for name, test := range map[string]struct{ before, move, class string }{
		"it passes":   {lockRow, pastDeadline, deadlinePassed.Code},
		"it is later": {pastDeadline, extended, ""},
	} {
		for _, step := range []string{"confirm", "release"} {
			t.Run(step+" "+name, func(t *testing.T) {
				s := newTestService(t)
				customer := uuid.New()
				b := s.make(t, customer, of(s.counter(t, 1), 1))
				testenv.Exec(t, s.pool, test.before, b.ID)
				tx, err := s.pool.BeginTx(t.Context(), nil)
				testenv.Must(t, err)
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(t.Context(), lockRow, b.ID)
				testenv.Must(t, err)
				result := make(chan error, 1)
				go func() { result <- s.do(t.Context(), step, customer, b.ID) }()
				testenv.AwaitLockWait(t, s.pool)
				_, err = tx.ExecContext(t.Context(), test.move, b.ID) // later than any clock that was read before
				testenv.Must(t, err)
				testenv.Must(t, tx.Commit())
				checkClass(t, step, <-result, test.class)
				s.checkInvariants(t)
			})
		}
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

// TestParallelStepsEndARowOnce takes all steps at the same time, before the deadline and after it.
func TestParallelStepsEndARowOnce(t *testing.T) {
	s := newTestService(t)
	shared := s.counter(t, 1)
	names := append(slices.Sorted(maps.Keys(steps)), "time out", "confirm", "release", "time out")
	for i := range testenv.Rounds(10, 60) {
		customer := uuid.New()
		b := s.make(t, customer, of(shared, 1))
		if i%3 == 0 {
			testenv.Exec(t, s.pool, pastDeadline, b.ID)
		}
		inParallel(len(names), func(i int) error { return s.do(t.Context(), names[i], customer, b.ID) })
		s.timeOut(t, b.ID) // an earlier one leaves a row that was locked
		got, err := s.get(t.Context(), customer, b.ID)
		testenv.Must(t, err)
		if late := i%3 == 0; got.Status == pending || late != (got.Status == expired) {
			t.Errorf("it is %s, want it ended; past its deadline: %v", got.Status, late)
		}
		s.checkInvariants(t)
		if got.Status == confirmed {
			shared = s.counter(t, 1)
		}
	}
}

// TestUnitsAreTakenOnce wants more units than there are, many times in parallel.
func TestUnitsAreTakenOnce(t *testing.T) {
	s := newTestService(t)
	shared := s.counter(t, 5)
	for range testenv.Rounds(5, 30) {
		var taken atomic.Int64
		var mu sync.Mutex
		var created []uuid.UUID
		classes := inParallel(15, func(i int) error {
			b, _, err := s.create(t.Context(), uuid.New(), of(shared, int64(1+i%3)))
			if err == nil {
				taken.Add(int64(1 + i%3))
				mu.Lock()
				defer mu.Unlock()
				created = append(created, b.ID)
			}
			return err
		})
		if classes[""]+classes[soldOut.Code] != 15 || classes[""] == 0 || taken.Load() > 5 {
			t.Errorf("the results are %v with %d of 5 units, want rows and %s", classes, taken.Load(), soldOut.Code)
		}
		if free := s.free(t, shared); free != 5-int(taken.Load()) {
			t.Errorf("%d units are free, want %d", free, 5-taken.Load())
		}
		s.checkInvariants(t)
		for _, id := range created {
			testenv.Exec(t, s.pool, pastDeadline, id)
		}
		if done, _ := s.timeOut(t, created...); done != len(created) {
			t.Errorf("%d of %d rows have timed out", done, len(created))
		}
	}
}

// TestRejectedCreationWritesNothing wants what the service must reject.
func TestRejectedCreationWritesNothing(t *testing.T) {
	s := newTestService(t)
	shared, begun := s.counter(t, 4), s.counter(t, 1)
	testenv.Exec(t, s.pool, beginCounter, begun)
	s.make(t, uuid.New(), of(shared, 2))
	s.published.Take()
	s.publishedCodes.Take()
	outbox := testenv.Query[int](t, s.pool, `SELECT count(*) FROM outbox`)
	for name, test := range map[string]struct {
		wish  wish
		class string
	}{
		"too many":         {of(shared, 3), soldOut.Code},
		"beyond the bound": {of(shared, 11), tooManyPlaces.Code},
		"unknown":          {of(uuid.New(), 1), unknownCourse.Code},
		"begun":            {of(begun, 1), unknownCourse.Code},
	} {
		_, _, err := s.create(t.Context(), uuid.New(), test.wish)
		checkClass(t, name, err, test.class)
	}
	if n := testenv.Query[int](t, s.pool, `SELECT count(*) FROM outbox`); n != outbox || s.free(t, shared) != 2 ||
		len(s.published.All())+len(s.publishedCodes.All()) > 0 {
		t.Errorf("%d outbox rows, %d units free, the messages %v and %v; want %d, 2 and none",
			n, s.free(t, shared), s.published.All(), s.publishedCodes.All(), outbox)
	}
	s.checkInvariants(t)
}

// TestCreationOwesItsTasks checks the outbox rows and the published messages of a row.
func TestCreationOwesItsTasks(t *testing.T) {
	s := newTestService(t)
	b := s.make(t, uuid.New(), of(s.counter(t, 1), 1))
	for kind, owed := range map[string]struct {
		due       string // the column
		published *parttest.Published
	}{
		expireKind: {"expires_at", s.published}, codeKind: {"code_due_at", s.publishedCodes},
	} {
		if n := testenv.Query[int](t, s.pool, `SELECT count(*) FROM outbox o JOIN `+table+` r ON o.task_id = r.id::text
			WHERE o.kind = $1 AND o.due_at = r.`+owed.due, kind); n != 1 || owed.published.Of(b.ID) != 1 {
			t.Errorf("%s: %d outbox rows, published %d times; want both once", kind, n, owed.published.Of(b.ID))
		}
	}
}

// TestCreationSeesUnitsReleasedDuringItsWait releases the only unit while a creation waits for the shared row.
func TestCreationSeesUnitsReleasedDuringItsWait(t *testing.T) {
	s := newTestService(t)
	customer, shared := uuid.New(), s.counter(t, 1)
	s.make(t, customer, of(shared, 1))
	release := testenv.HoldLock(t, s.pool, `UPDATE `+counters+` SET free = 1 WHERE id = $1`, shared)
	result := make(chan error, 1)
	go func() {
		_, _, err := s.create(t.Context(), uuid.New(), of(shared, 1))
		result <- err
	}()
	testenv.AwaitLockWait(t, s.pool)
	release()
	checkClass(t, "the unit was released", <-result, "")
}

// TestCreationReadsTheClockBehindItsLocks lets a creation wait. It has the whole time to confirm afterwards.
func TestCreationReadsTheClockBehindItsLocks(t *testing.T) {
	s := newTestService(t)
	shared := s.counter(t, 1)
	release := testenv.HoldLock(t, s.pool, lockCounter, shared)
	created := make(chan *row, 1)
	go func() {
		b, _, _ := s.create(t.Context(), uuid.New(), of(shared, 1))
		created <- b
	}()
	testenv.AwaitLockWait(t, s.pool)
	waiting := testenv.Query[string](t, s.pool, `SELECT clock_timestamp()::text`)
	release()
	if b := <-created; b == nil || !testenv.Query[bool](t, s.pool, `SELECT $1::timestamptz > $2::timestamptz`,
		b.CreatedAt, waiting) {
		t.Errorf("created %+v, want that its time begins after %s, when it still waited", b, waiting)
	}
}

// TestParallelCreationsKeepBound has one customer want units of several shared rows in parallel.
func TestParallelCreationsKeepBound(t *testing.T) {
	s := newTestService(t)
	for range testenv.Rounds(3, 20) {
		customer := uuid.New()
		var shared []uuid.UUID
		for range 4 {
			shared = append(shared, s.counter(t, 20))
		}
		classes := inParallel(12, func(i int) error {
			_, _, err := s.create(t.Context(), customer, of(shared[i%4], 3))
			return err
		})
		if classes[""] != 3 || classes[tooManyPlaces.Code] != 9 {
			t.Errorf("the results are %v, want 3 rows of 3 units and 9 rejections: the bound is 10 units", classes)
		}
		testenv.Exec(t, s.pool, `UPDATE `+table+` SET created_at = now() - interval '1 hour',
			expires_at = now() - interval '1 s' WHERE customer_id = $1`, customer)
		s.make(t, customer, of(shared[0], 10)) // overdue rows do not count
	}
	s.checkInvariants(t)
}

// TestParallelCreationsWithOneKey repeats a request in parallel, and then with other wishes and for another customer.
func TestParallelCreationsWithOneKey(t *testing.T) {
	s := newTestService(t)
	for range testenv.Rounds(3, 20) {
		customer, shared := uuid.New(), s.counter(t, 20)
		w := of(shared, 2)
		w.key = "key"
		var mu sync.Mutex
		var created int
		ids := map[uuid.UUID]bool{}
		classes := inParallel(10, func(int) error {
			b, replayed, err := s.create(t.Context(), customer, w)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if !replayed {
				created++
			}
			ids[b.ID] = true
			return nil
		})
		if classes[""] != 10 || created != 1 || len(ids) != 1 {
			t.Errorf("the results are %v, %d rows are new, with %d ids; want 10 equal answers and 1 row",
				classes, created, len(ids))
		}
		w.places++
		_, _, err := s.create(t.Context(), customer, w)
		checkClass(t, "another wish with the same key", err, rest.KeyReused.Code)
		if _, replayed, err := s.create(t.Context(), uuid.New(), w); err != nil || replayed {
			t.Errorf("the key of another customer: replayed %v, error %v; want a new row", replayed, err)
		}
		both := []wish{of(shared, 1), of(s.counter(t, 1), 1)}
		both[0].key, both[1].key = "second key", "second key"
		classes = inParallel(6, func(i int) error {
			_, _, err := s.create(t.Context(), customer, both[i%2])
			return err
		})
		if classes[""] != 3 || classes[rest.KeyReused.Code] != 3 {
			t.Errorf("two wishes with one key: the results are %v, want 3 equal answers and 3 rejections", classes)
		}
	}
	s.checkInvariants(t)
}

// TestTimeoutLocksCountersInOrder locks the first of two shared rows. A timeout that waits for it must not have locked
// the second one.
func TestTimeoutLocksCountersInOrder(t *testing.T) {
	for range 4 { // the ids of the rows have another order than those of the shared rows, at some time
		s := newTestService(t)
		shared := []uuid.UUID{s.counter(t, 1), s.counter(t, 1)}
		slices.SortFunc(shared, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		second, first := s.makeOverdue(t, of(shared[1], 1)), s.makeOverdue(t, of(shared[0], 1))
		release := testenv.HoldLock(t, s.pool, lockCounter, shared[0])
		result := make(chan error, 1)
		go func() {
			_, _, err := s.table.TimeOut(t.Context(), []string{second.ID.String(), first.ID.String()})
			result <- err
		}()
		testenv.AwaitLockWait(t, s.pool)
		_, err := s.pool.ExecContext(t.Context(), lockCounter+` NOWAIT`, shared[1])
		if err != nil {
			t.Errorf("lock the second shared row: %v; want it free while the timeout waits for the first", err)
		}
		release()
		testenv.Must(t, <-result)
	}
}

// TestStepsDoNotDeadlock takes all steps that lock shared rows in parallel.
func TestStepsDoNotDeadlock(t *testing.T) {
	s := newTestService(t)
	shared := []uuid.UUID{s.counter(t, 6), s.counter(t, 6)}
	rounds := testenv.Rounds(15, 60)
	classes := inParallel(8, func(i int) error {
		customer := uuid.New()
		var batch []string
		for n := range rounds {
			b, _, err := s.create(t.Context(), customer, of(shared[(i+n)%2], 1))
			if parttest.ClassOf(err) == soldOut {
				continue
			}
			if err != nil {
				return err
			}
			if n%3 == 0 {
				err = s.do(t.Context(), "release", customer, b.ID)
			} else if _, err = s.pool.ExecContext(t.Context(), pastDeadline, b.ID); err == nil {
				batch = append(batch, b.ID.String())
			}
			if err == nil && len(batch) > 1 {
				_, _, err = s.table.TimeOut(t.Context(), batch)
				batch = nil
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
	s.pool.SetMaxIdleConns(-1) // a session that ends reports its deadlocks at once
	statistic := func(name string) int {
		return testenv.Query[int](t, s.pool, `SELECT `+name+` FROM pg_stat_database WHERE datname = current_database()`)
	}
	testenv.Eventually(t, "the statistics of the sessions", func() bool { return statistic("xact_commit") > 8*rounds })
	if n := statistic("deadlocks"); n != 0 {
		t.Errorf("%d deadlocks, want none", n)
	}
	s.checkInvariants(t)
}

// TestTimeoutLeavesLockedRows times out a batch with a row and a shared row that other sessions have locked. The rest
// of the batch times out.
func TestTimeoutLeavesLockedRows(t *testing.T) {
	s := newTestService(t)
	shared := []uuid.UUID{s.counter(t, 2), s.counter(t, 1)}
	var ids []uuid.UUID
	for i := range 3 {
		ids = append(ids, s.makeOverdue(t, of(shared[i/2], 1)).ID)
	}
	releaseRow := testenv.HoldLock(t, s.pool, lockRow, ids[0])
	releaseShared := testenv.HoldLock(t, s.pool, lockCounter, shared[1])
	if done, locked := s.timeOut(t, append(ids, uuid.New())...); done != 1 || locked != 2 {
		t.Errorf("%d rows have timed out and %d are locked, want 1 and 2", done, locked)
	}
	releaseRow()
	releaseShared()
	for i, outcome := range parttest.Handle(t, s.table.Handle, ids...) {
		if outcome != delay.Done() {
			t.Errorf("the outcome of the task of row %d is %+v, want it done", i, outcome)
		}
	}
	if s.free(t, shared[0]) != 2 || s.free(t, shared[1]) != 1 {
		t.Errorf("%d and %d units are free, want 2 and 1", s.free(t, shared[0]), s.free(t, shared[1]))
	}
	s.checkInvariants(t)
}

// TestLockedCounterDelaysNoOthers sends many more requests for a locked shared row than there are connections. Three of
// them wait for the lock, and all others are rejected. Meanwhile a unit of another one is taken.
func TestLockedCounterDelaysNoOthers(t *testing.T) {
	s := newTestService(t)
	s.turns = newService(s.db, s.options, s.published, s.publishedCodes).turns
	locked, other := s.counter(t, 50), s.counter(t, 50)
	release := testenv.HoldLock(t, s.pool, lockCounter, locked)
	var rejected atomic.Int64
	result := make(chan map[string]int, 1)
	go func() {
		result <- inParallel(150, func(int) error {
			_, _, err := s.create(t.Context(), uuid.New(), of(locked, 1))
			if overloaded(err) {
				rejected.Add(1)
			}
			return err
		})
	}()
	testenv.Eventually(t, "all but three requests are rejected", func() bool {
		return rejected.Load() == 150-turnsAtATime
	})
	testenv.AwaitLockWait(t, s.pool)
	s.make(t, uuid.New(), of(other, 1))
	release()
	if classes := <-result; classes[""] != turnsAtATime {
		t.Errorf("the results for the locked one are %v, want that those that waited for the lock succeed", classes)
	}
	s.checkInvariants(t)
}

// TestCreationWaitsForNoLockForLong locks a shared row. With the timeout of the service, a request for it is rejected,
// and nothing has changed.
func TestCreationWaitsForNoLockForLong(t *testing.T) {
	s := newTestService(t)
	s.wait = longestWait
	shared := s.counter(t, 2)
	release := testenv.HoldLock(t, s.pool, lockCounter, shared)
	_, _, err := s.create(t.Context(), uuid.New(), of(shared, 1))
	checkClass(t, "create", err, rest.Overloaded.Code)
	release()
	if free := s.free(t, shared); free != 2 {
		t.Errorf("%d units are free, want 2", free)
	}
	testenv.Exec(t, s.pool, `ALTER TABLE `+table+` ADD waits text DEFAULT current_setting('lock_timeout')`)
	b := s.make(t, uuid.New(), of(shared, 1))
	waits := testenv.Query[string](t, s.pool, `SELECT waits FROM `+table+` WHERE id = $1`, b.ID)
	if waits != longestWait.String() {
		t.Errorf("a creation waits for a lock for %s, want %v", waits, longestWait)
	}
	s.checkInvariants(t)
}

// The values of the columns of a row that has ended, for the tests of constraints and invariants.
const (
	inTime  = `ended_at = created_at`
	late    = `ended_at = expires_at`
	byOwner = `ended_by = 'customer'`
	byTask  = `ended_by = 'worker'`
)

// TestInvariantsFindEachViolation breaks each invariant, also where a constraint excludes that.
func TestInvariantsFindEachViolation(t *testing.T) {
	s := newTestService(t)
	testenv.DropChecks(t, s.pool)
	for set, want := range map[string]struct {
		invariant int
		quick     bool // the quick check finds it, too
	}{
		`created_at = now() - interval '1 day', expires_at = now() - interval '1 hour'`: {2, true},

		inTime:                             {3, true},
		byOwner:                            {3, true},
		`wrong_codes = 5`:                  {3, true},
		`status = 'confirmed', ` + byOwner: {3, true},
		`status = 'confirmed', ` + inTime:  {3, true},
		`status = 'confirmed', ` + inTime + `, ` + byTask:                  {3, true},
		`status = 'confirmed', ` + late + `, ` + byOwner:                   {4, true},
		`status = 'released', ` + inTime:                                   {3, false},
		`status = 'released', ` + late + `, ` + byOwner:                    {4, false},
		`status = 'refused', ` + inTime + `, ` + byOwner:                   {3, false},
		`status = 'refused', wrong_codes = 5, ` + late + `, ` + byOwner:    {4, false},
		`status = 'released', wrong_codes = 5, ` + inTime + `, ` + byOwner: {3, false},
		`status = 'expired', ` + byTask:                                    {3, false},
		`status = 'expired', ` + late:                                      {3, false},
		`status = 'expired', ` + late + `, ` + byOwner:                     {3, false},
		`status = 'expired', ` + inTime + `, ` + byTask:                    {4, false},
		`status = 'unknown', ` + inTime + `, ` + byOwner:                   {3, false},
	} {
		t.Run(set, func(t *testing.T) {
			b := s.make(t, uuid.New(), of(s.counter(t, 1), 1))
			testenv.Exec(t, s.pool, `UPDATE `+table+` SET `+set+` WHERE id = $1`, b.ID)
			testenv.Exec(t, s.pool, `UPDATE `+counters+` c SET free = capacity FROM `+table+` r
				WHERE r.id = $1 AND r.`+sharedID+` = c.id AND r.status NOT IN ('pending', 'confirmed')`, b.ID)
			for _, full := range []bool{false, true} {
				violated := map[string]int{}
				if full || want.quick {
					violated[subject+b.ID.String()] = want.invariant
				}
				s.checkViolations(t, full, violated)
			}
			testenv.Exec(t, s.pool, `DELETE FROM `+table+` WHERE id = $1`, b.ID)
			testenv.Exec(t, s.pool, `DELETE FROM `+counters)
			s.checkInvariants(t)
		})
	}
	// The last one has the right sum, because two units are taken.
	for _, set := range []string{`free = free + 1`, `free = free - 1`, `capacity = 1, free = -1`} {
		shared := s.counter(t, 3)
		s.make(t, uuid.New(), of(shared, 2))
		testenv.Exec(t, s.pool, `UPDATE `+counters+` SET `+set)
		for _, begun := range []bool{false, true} {
			for _, full := range []bool{false, true} {
				violated := map[string]int{}
				if full || !begun {
					violated[counter+shared.String()] = 1
				}
				s.checkViolations(t, full, violated)
			}
			testenv.Exec(t, s.pool, beginCounter, shared)
		}
		testenv.Exec(t, s.pool, `DELETE FROM `+table)
		testenv.Exec(t, s.pool, `DELETE FROM `+counters)
	}
}

// checkViolations checks which invariants are violated, by their subjects.
func (s *testService) checkViolations(t *testing.T, full bool, want map[string]int) {
	t.Helper()
	found, got := s.violations(t, full), map[string]int{}
	for _, v := range found {
		got[v.Subject] = v.Invariant
	}
	if !maps.Equal(got, want) || len(found) != len(got) {
		t.Errorf("full check %v: violations %+v, want %v", full, found, want)
	}
}

// TestSchemaRejectsInvalidStates tries to store states that must not be.
func TestSchemaRejectsInvalidStates(t *testing.T) {
	s := newTestService(t)
	s.make(t, uuid.New(), of(s.counter(t, 2), 1))
	for of, sets := range map[string][]string{
		table: {
			`status = 'confirmed'`,
			`status = 'confirmed', ` + late + `, ` + byOwner,
			`status = 'confirmed', ` + inTime,
			`status = 'confirmed', ` + inTime + `, ` + byTask,
			`status = 'released', ` + late + `, ` + byOwner,
			`status = 'refused', ` + inTime + `, ` + byOwner,
			`status = 'refused', wrong_codes = 5, ` + late + `, ` + byOwner,
			`status = 'released', wrong_codes = 5, ` + inTime + `, ` + byOwner,
			`status = 'expired', ` + inTime + `, ` + byTask,
			`status = 'expired', ` + late + `, ` + byOwner,
			`status = 'expired', ` + late,
			`status = 'unknown'`,
			inTime,
			`expires_at = created_at`,
			`wrong_codes = 5`,
			`wrong_codes = -1`,
			`places = 0`,
			`idempotency_key = 'key'`,
		},
		counters: {`free = -1`, `free = capacity + 1`, `capacity = 0`, `title = ''`},
	} {
		for _, set := range sets {
			_, err := s.pool.ExecContext(t.Context(), `UPDATE `+of+` SET `+set)
			if postgres.Classify(err) != postgres.Rejected || !strings.Contains(err.Error(), "check constraint") {
				t.Errorf("%s: error %v, want that of a constraint", set, err)
			}
		}
	}
}
