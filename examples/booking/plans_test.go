package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
)

// TestPlans checks which indexes the statements use, and that none for few rows reads all of them.
func TestPlans(t *testing.T) {
	s := newTestService(t)
	id := "'" + uuid.NewString() + "'"
	ids := "'{" + strings.Repeat(uuid.NewString()+",", 499) + uuid.NewString() + "}'"
	create, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, createSQL, nil)
	testenv.Must(t, err)
	pendingRows, timeOut := rows.Statements()
	pendingCodes, _ := codes(nil, nil, nil).Statements()
	first := "'0001-01-01', " + id + ", 1000000, 500"
	byDeadline := []string{"bookings_pending_deadline"} // it has the rows of all customers
	byID, counter := []string{"bookings_pkey"}, []string{"courses_pkey"}
	testenv.CheckPlans(t, s.pool, []string{table, counters}, map[string]testenv.Plan{
		"get":         {Statement: readBooking, Params: id + "," + id, Uses: byID, Never: byDeadline},
		"lock":        {Statement: lockBooking, Params: id + "," + id, Uses: byID, Never: byDeadline},
		"lock shared": {Statement: lockCourse, Params: id, Uses: counter},
		"by key": {
			Statement: readByKey, Params: id + ", 'key'", Uses: []string{"bookings_idempotency_key"}, Never: byDeadline,
		},
		"open":    {Statement: readOpen, Params: id, Uses: []string{"bookings_open"}, Never: byDeadline},
		"create":  {Statement: create, Params: nulls(create), Uses: counter},
		"update":  {Statement: updateSQL, Params: nulls(updateSQL), Uses: append(counter, byID...), Never: byDeadline},
		"pending": {Statement: pendingRows, Params: first, Uses: byDeadline},
		"time out": {
			Statement: timeOut, Params: ids + ", '" + string(timeout.ByWorker) + "'",
			Uses: append(counter, byID...), Never: byDeadline,
		},
		"free":  {Statement: freeSQL, Params: ids, Uses: append(counter, byID...)},
		"codes": {Statement: pendingCodes, Params: first, Uses: []string{"bookings_code_due"}},
		"claim": {Statement: claimSQL, Params: ids + ", 1000000", Uses: byID, Never: byDeadline},
		"sent":  {Statement: sentSQL, Params: id, Uses: byID},
		"invariants": {
			// FindViolations has PostgreSQL plan the statement for the values of its parameters.
			Statement: strings.NewReplacer("$1", "1000000", "$2", "false").Replace(invariantsSQL),
			Uses:      []string{"bookings_taken", "bookings_pending_deadline", "courses_begins_at"},
		},
	}, func(t testing.TB) {
		testenv.Exec(t, s.pool, `INSERT INTO courses
			SELECT gen_random_uuid(), 'a course', 200, 50, now() + n * interval '1 hour' FROM generate_series(-60, 60) AS n`)
		testenv.Exec(t, s.pool, `
			INSERT INTO bookings (id, customer_id, course_id, places, code, code_due_at, created_at, expires_at)
			SELECT gen_random_uuid(), md5('customer ' || n)::uuid, c.id, 1, 'code', CASE n WHEN 1 THEN now() END, now(),
			       now() + interval '1 hour'
			FROM courses c CROSS JOIN generate_series(1, 150) AS n`)
		testenv.Exec(t, s.pool, `
			UPDATE bookings SET status = 'confirmed', ended_at = created_at, ended_by = 'customer'
			WHERE customer_id > 'a0000000-0000-0000-0000-000000000000'`)
	})
}

// nulls returns parameters of a statement. All are NULL: a generic plan does not depend on them.
func nulls(statement string) string {
	n := 0
	for strings.Contains(statement, fmt.Sprintf("$%d", n+1)) {
		n++
	}
	return strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ")
}
