package main

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	schema "example.com/shop/examples/booking/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up, schema.Set.Up) }

// What the tests call a row, a shared row, and a number of its units, and where these are stored.
const (
	subject, counter = "booking ", "course " // in a violation
	table, counters  = "bookings", "courses"
	sharedID         = "course_id" // the column of table that refers to counters
	lockCounter      = `SELECT FROM courses WHERE id = $1 FOR NO KEY UPDATE`
	insertCounter    = `INSERT INTO courses VALUES ($1, 'a course', $2, $2, now() + interval '1 day')`
	beginCounter     = `UPDATE courses SET begins_at = now() WHERE id = $1`
)

type row = booking

// of returns a wish for some units of a shared row.
func of(shared uuid.UUID, units int64) wish { return wish{course: shared, places: units} }

const (
	pastDeadline = `
		UPDATE ` + table + ` SET created_at = now() - interval '1 hour', expires_at = clock_timestamp() WHERE id = $1`
	extended = `UPDATE ` + table + ` SET expires_at = now() + interval '1 hour' WHERE id = $1`
	lockRow  = `SELECT FROM ` + table + ` WHERE id = $1 FOR UPDATE`
)

// testService is a service on a database of its own, without a queue. It waits for turns and locks as long as a test
// needs.
type testService struct {
	*service
	pool           *sql.DB
	published      *parttest.Published // the tasks that time out rows
	publishedCodes *parttest.Published
	table          *timeout.Table
}

func newTestService(t testing.TB) *testService {
	t.Helper()
	db, pool := parttest.OpenDB(t, testenv.Postgres(t), 20)
	published, codes := new(parttest.Published), new(parttest.Published)
	s := newService(db, &options{Timeout: time.Minute, MaxOpenPlaces: 10}, published, codes)
	s.turns, s.wait = postgres.NewKeyGate(100, time.Minute), time.Minute
	return &testService{
		service: s, pool: pool, published: published, publishedCodes: codes,
		table: timeout.NewTable(db, expireKind, rows, slog.New(slog.DiscardHandler)),
	}
}

// counter adds a shared row with a number of free units.
func (s *testService) counter(t testing.TB, units int) uuid.UUID {
	t.Helper()
	id := uuid.New()
	testenv.Exec(t, s.pool, insertCounter, id, units)
	return id
}

// free returns the number of free units of a shared row.
func (s *testService) free(t testing.TB, shared uuid.UUID) int {
	t.Helper()
	return testenv.Query[int](t, s.pool, `SELECT free FROM `+counters+` WHERE id = $1`, shared)
}

// make creates a row, or fails the test.
func (s *testService) make(t testing.TB, customer uuid.UUID, w wish) *row {
	t.Helper()
	b, replayed, err := s.create(t.Context(), customer, w)
	if err != nil || replayed {
		t.Fatalf("create returns replayed %v, error %v; want a new row", replayed, err)
	}
	return b
}

// makeOverdue creates a row of a new customer whose deadline has passed.
func (s *testService) makeOverdue(t testing.TB, w wish) *row {
	t.Helper()
	b := s.make(t, uuid.New(), w)
	testenv.Exec(t, s.pool, pastDeadline, b.ID)
	return b
}

// timeOut times out rows as the reconciler does, and returns how many have timed out and how many were locked.
func (s *testService) timeOut(t testing.TB, ids ...uuid.UUID) (done, locked int) {
	t.Helper()
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	done, locked, err := s.table.TimeOut(t.Context(), texts)
	testenv.Must(t, err)
	return done, locked
}

// violations returns the violations of the invariants.
func (s *testService) violations(t testing.TB, full bool) []app.Violation {
	t.Helper()
	found, err := app.FindViolations(t.Context(), s.db, full, invariantsSQL, time.Minute.Microseconds(), full)
	testenv.Must(t, err)
	return found
}

func (s *testService) checkInvariants(t testing.TB) {
	t.Helper()
	for _, full := range []bool{false, true} {
		if found := s.violations(t, full); len(found) > 0 {
			t.Errorf("the invariants are violated: %+v", found)
		}
	}
}

// checkClass checks the class of an error; "": there must be none.
func checkClass(t testing.TB, what string, err error, want string) {
	t.Helper()
	if got := parttest.ClassOf(err).Code; got != want {
		t.Errorf("%s: error %v of the class %q, want the class %q", what, err, got, want)
	}
}

// steps are what changes a row, besides its timeout.
var steps = map[string]func(*row) error{
	"confirm": func(b *row) error { return b.confirm(b.Code) },
	"release": (*row).release,
	"send a wrong code": func(b *row) error {
		return b.confirm("wrong")
	},
	"send the last wrong code": func(b *row) error {
		if b.Status == pending {
			b.WrongCodes = maxWrongCodes - 1
		}
		return b.confirm("wrong")
	},
}

// do changes a row by a step, or times it out.
func (s *testService) do(ctx context.Context, name string, customer, id uuid.UUID) error {
	if step, ok := steps[name]; ok {
		_, err := s.update(ctx, customer, id, step)
		return err
	}
	_, locked, err := s.table.TimeOut(ctx, []string{id.String()})
	if err == nil && locked > 0 {
		err = fmt.Errorf("%d rows are locked", locked)
	}
	return err
}

// overloaded reports whether the service has asked the caller to repeat a request.
func overloaded(err error) bool { return parttest.ClassOf(err) == rest.Overloaded }
