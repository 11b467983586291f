package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/testenv"
)

// TestBookingPlans checks which indexes the statements use on large tables, and that no statement for few rows reads
// all of them by the statistics of new tables, because tables can grow before the next statistics.
func TestBookingPlans(t *testing.T) {
	c := newCinema(t)
	t.Run("new tables", func(t *testing.T) { c.testPlans(t, false) })
	testenv.Exec(t, c.db, `INSERT INTO screenings
		SELECT gen_random_uuid(), 'a film', now() + n * interval '1 hour' FROM generate_series(-30, 30) AS n`)
	testenv.Exec(t, c.db, `INSERT INTO bookings (id, customer_id, screening_id, seats, code, created_at, expires_at)
		SELECT gen_random_uuid(), md5('customer ' || n)::uuid, s.id, ARRAY['A' || n], 'code', now(), now() + interval '1 hour'
		FROM screenings s CROSS JOIN generate_series(1, 150) AS n`)
	testenv.Exec(t, c.db, `INSERT INTO seats SELECT screening_id, seats[1], id FROM bookings`)
	testenv.Exec(t, c.db, `INSERT INTO seats SELECT id, 'B' || n FROM screenings CROSS JOIN generate_series(1, 20) AS n`)
	testenv.Exec(t, c.db, `
		UPDATE bookings SET status = 'confirmed', ended_at = created_at, ended_by = 'customer' WHERE seats[1] > 'A15'`)
	testenv.Exec(t, c.db, `VACUUM ANALYZE`)
	t.Run("large tables", func(t *testing.T) { c.testPlans(t, true) })
}

func (c *cinema) testPlans(t *testing.T, large bool) {
	const notByDeadline = "bookings_pending_deadline" // which has the bookings of all customers
	id := "'" + uuid.NewString() + "'"
	ids := "'{" + strings.Repeat(uuid.NewString()+",", 499) + uuid.NewString() + "}'"
	create, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, createSQL, nil)
	testenv.Must(t, err)
	_, expire := rows.Statements()
	for name, test := range map[string]struct{ statement, params, uses, notUses string }{
		"get":        {getSQL, id + "," + id + ", NULL", "bookings_pkey bookings_idempotency_key", notByDeadline},
		"list":       {listSQL, id + ", NULL, " + id + ", 20", "bookings_customer", ""},
		"lock":       {lockSQL, id + "," + id + ", '1s'", "screenings_pkey", ""},
		"create":     {create, createParams(create), "bookings_open bookings_idempotency_key seats_free seats_pkey", notByDeadline},
		"confirm":    {confirmSQL + bookingSQL, id + "," + id + ", 'x'", "bookings_pkey", notByDeadline},
		"cancel":     {cancelSQL + bookingSQL, id + "," + id + ", '1s'", "bookings_pkey seats_taken", notByDeadline},
		"expire":     {expire, ids + ", 'worker'", "bookings_pkey seats_taken", notByDeadline},
		"free":       {freeSQL, ids, "seats_taken", ""},
		"invariants": {invariantsSQL, "1000000, false", "bookings_holding bookings_pending_deadline", ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan := testenv.Explain(t, c.db, test.statement, test.params)
			for _, index := range strings.Fields(test.uses) {
				if large && !strings.Contains(plan, index) {
					t.Errorf("the plan does not use %s:\n%s", index, plan)
				}
			}
			for _, index := range append(strings.Fields(test.notUses), "Seq Scan on bookings", "Seq Scan on seats") {
				if strings.Contains(plan, index) {
					t.Errorf("the plan has %s:\n%s", index, plan)
				}
			}
		})
	}
}

// createParams returns parameters of create.sql. All are NULL: a generic plan does not depend on them.
func createParams(statement string) string {
	n := 0
	for strings.Contains(statement, fmt.Sprintf("$%d", n+1)) {
		n++
	}
	return strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ")
}
