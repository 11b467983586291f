package main

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// cinema is a service on a database of its own, without a queue. It waits for turns and locks as long as a test needs.
type cinema struct {
	*service
	db        *sql.DB // hides that of the service
	published *parttest.Published
	table     *timeout.Table
}

func newCinema(t testing.TB) *cinema {
	t.Helper()
	db, pool := parttest.OpenDB(t, testenv.Postgres(t), 20)
	testenv.Must(t, createTables(t.Context(), db, false))
	published := new(parttest.Published)
	s := newService(db, &options{Timeout: time.Minute, MaxOpenSeats: 10}, published)
	s.turns, s.lockTimeout = postgres.NewKeyGate(100, time.Minute), "1min"
	return &cinema{
		service: s, db: pool, published: published,
		table: timeout.NewTable(db, expireKind, rows, slog.New(slog.DiscardHandler)),
	}
}

// screening adds a screening with seats A01, A02 and so on, at most 99.
func (c *cinema) screening(t testing.TB, seats int) uuid.UUID {
	t.Helper()
	id := uuid.New()
	testenv.Exec(t, c.db, `INSERT INTO screenings VALUES ($1, 'a film', now() + interval '1 day')`, id)
	testenv.Exec(t, c.db, `
		INSERT INTO seats SELECT $1, 'A' || lpad(n::text, 2, '0') FROM generate_series(1, $2::int) AS n`, id, seats)
	return id
}

func named(screening uuid.UUID, seats ...string) wish {
	return wish{screening: screening, seats: seats, count: int64(len(seats))}
}

func anyOf(screening uuid.UUID, count int64) wish { return wish{screening: screening, count: count} }

// book creates a booking, or fails the test.
func (c *cinema) book(t testing.TB, customer uuid.UUID, w wish) *booking {
	t.Helper()
	b, replayed, err := c.create(t.Context(), customer, w)
	if err != nil || replayed {
		t.Fatalf("create returns replayed %v, error %v; want a new booking", replayed, err)
	}
	return b
}

const pastDeadline = `
	UPDATE bookings SET created_at = now() - interval '1 hour', expires_at = now() - interval '1 s' WHERE id = $1`

// expire times out bookings as the reconciler does, and returns how many have expired and how many were locked.
func (c *cinema) expire(t testing.TB, ids ...uuid.UUID) (done, locked int) {
	t.Helper()
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	done, locked, err := c.table.TimeOut(t.Context(), texts)
	testenv.Must(t, err)
	return done, locked
}

// free returns the number of free seats of a screening.
func (c *cinema) free(t testing.TB, screening uuid.UUID) int {
	t.Helper()
	return testenv.Query[int](t, c.db, `
		SELECT count(*) FROM seats WHERE screening_id = $1 AND booking_id IS NULL`, screening)
}

// violations returns the violations of the invariants.
func (c *cinema) violations(t testing.TB, full bool) []app.Violation {
	t.Helper()
	found, err := app.FindViolations(t.Context(), c.service.db, full, invariantsSQL, time.Minute.Microseconds(), full)
	testenv.Must(t, err)
	return found
}

func (c *cinema) checkInvariants(t testing.TB) {
	t.Helper()
	for _, full := range []bool{false, true} {
		if found := c.violations(t, full); len(found) > 0 {
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

// An operation is what changes a booking.
type operation func(ctx context.Context, c *cinema, customer uuid.UUID, b *booking) error

var operations = map[string]operation{
	"confirm": func(ctx context.Context, c *cinema, customer uuid.UUID, b *booking) error {
		_, err := c.confirm(ctx, customer, b.ID, b.Code)
		return err
	},
	"confirm with a wrong code": func(ctx context.Context, c *cinema, customer uuid.UUID, b *booking) error {
		_, err := c.confirm(ctx, customer, b.ID, "wrong")
		return err
	},
	"expire": func(ctx context.Context, c *cinema, _ uuid.UUID, b *booking) error {
		_, locked, err := c.table.TimeOut(ctx, []string{b.ID.String()})
		if err == nil && locked > 0 {
			err = fmt.Errorf("%d bookings are locked", locked)
		}
		return err
	},
}

// unavailable reports whether the service has asked the caller to repeat a request.
func unavailable(err error) bool { return parttest.ClassOf(err) == rest.Unavailable }
