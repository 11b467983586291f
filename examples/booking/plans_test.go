package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/testenv"
)

// TestBookingPlans checks which indexes the statements use, and that none for few rows reads all of them.
func TestBookingPlans(t *testing.T) {
	c := newCinema(t)
	id := "'" + uuid.NewString() + "'"
	ids := "'{" + strings.Repeat(uuid.NewString()+",", 499) + uuid.NewString() + "}'"
	create, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, createSQL, nil)
	testenv.Must(t, err)
	_, expire := rows.Statements()
	byDeadline := []string{"bookings_pending_deadline"} // it has the bookings of all customers
	testenv.CheckPlans(t, c.db, []string{"bookings", "seats"}, map[string]testenv.Plan{
		"get": {
			Statement: getSQL, Params: id + "," + id + ", NULL",
			Uses: []string{"bookings_pkey", "bookings_idempotency_key"}, Never: byDeadline,
		},
		"lock": {Statement: lockSQL, Params: id + "," + id + ", '1s'", Uses: []string{"screenings_pkey"}},
		"create": {
			Statement: create, Params: createParams(create),
			Uses:  []string{"bookings_open", "bookings_idempotency_key", "seats_free", "seats_pkey"},
			Never: byDeadline,
		},
		"confirm": {
			Statement: confirmSQL + bookingSQL, Params: id + "," + id + ", 'x'",
			Uses: []string{"bookings_pkey"}, Never: byDeadline,
		},
		"expire": {
			Statement: expire, Params: ids + ", 'worker'",
			Uses: []string{"bookings_pkey", "seats_taken"}, Never: byDeadline,
		},
		"free": {Statement: freeSQL, Params: ids, Uses: []string{"seats_taken"}},
		"invariants": {
			// FindViolations has PostgreSQL plan the statement for the values of its parameters.
			Statement: strings.NewReplacer("$1", "1000000", "$2", "false").Replace(invariantsSQL),
			Uses:      []string{"bookings_holding", "bookings_pending_deadline"},
		},
	}, func(t testing.TB) {
		testenv.Exec(t, c.db, `INSERT INTO screenings
			SELECT gen_random_uuid(), 'a film', now() + n * interval '1 hour' FROM generate_series(-30, 30) AS n`)
		testenv.Exec(t, c.db, `
			INSERT INTO bookings (id, customer_id, screening_id, seats, code, created_at, expires_at)
			SELECT gen_random_uuid(), md5('customer ' || n)::uuid, s.id, ARRAY['A' || n], 'code', now(),
			       now() + interval '1 hour'
			FROM screenings s CROSS JOIN generate_series(1, 150) AS n`)
		testenv.Exec(t, c.db, `INSERT INTO seats SELECT screening_id, seats[1], id FROM bookings`)
		testenv.Exec(t, c.db, `
			INSERT INTO seats SELECT id, 'B' || n FROM screenings CROSS JOIN generate_series(1, 20) AS n`)
		testenv.Exec(t, c.db, `
			UPDATE bookings SET status = 'confirmed', ended_at = created_at, ended_by = 'customer'
			WHERE seats[1] > 'A15'`)
	})
}

// createParams returns parameters of create.sql. All are NULL: a generic plan does not depend on them.
func createParams(statement string) string {
	n := 0
	for strings.Contains(statement, fmt.Sprintf("$%d", n+1)) {
		n++
	}
	return strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ")
}
