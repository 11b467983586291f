// Package e2e breaks the program booking under load, with the fault tests of package faulttest.
package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

func TestMain(m *testing.M) { faulttest.Main(m, bookings) }

func TestBookingsSurviveCrash(t *testing.T)     { faulttest.Crash(t, bookings) }
func TestBookingsThatCannotExpire(t *testing.T) { faulttest.Stuck(t, bookings) }
func TestBookingsInChaos(t *testing.T)          { faulttest.Chaos(t, bookings) }
func TestBrokenBookings(t *testing.T)           { faulttest.Broken(t, bookings, module) }

func TestBookingsWithoutRedis(t *testing.T) {
	slow(t)
	faulttest.RedisDown(t, bookings)
}

func TestBookingsUnderProcessFaults(t *testing.T) {
	slow(t)
	faulttest.Faults(t, bookings, append(bookings.ProcessFaults(), bookings.FrozenInTransaction())...)
}

func TestBookingsUnderRedisFaults(t *testing.T) {
	slow(t)
	faulttest.Faults(t, bookings, bookings.RedisFaults()...)
}

func TestBookingsUnderPostgresFaults(t *testing.T) {
	slow(t)
	faulttest.Faults(t, bookings, bookings.PostgresFaults()...)
}

// slow keeps go test fast in the original, whose own program runs the same tests. A service of your own does not call
// it.
func slow(t *testing.T) { testenv.Slow(t, "an example") }

// module is the directory of the module.
const module = "../../.."

// bookings is the program examples/booking. The shared row of a booking is its course.
var bookings = &faulttest.Service{
	Program: "booking",
	Module:  module,
	Source:  "examples/booking",
	Migrate: []string{"migrate", "--seed"},
	Kind:    "booking.expire",
	Timeout: "TIMEOUT",

	Contract: sync.OnceValues(func() (*parttest.Contract, error) {
		return parttest.LoadPieces(module+"/internal/app/openapi.yaml", module+"/internal/ops/openapi.yaml",
			module+"/internal/rest/openapi.yaml", module+"/examples/booking/openapi.yaml")
	}),
	SignUp:     "/api/customers",
	Collection: "/api/bookings",
	Actions: map[faulttest.Operation]func(row, code string) faulttest.Request{
		faulttest.Confirm:   confirm,
		faulttest.Cancel:    faulttest.Post("release"),
		"send a wrong code": func(row, code string) faulttest.Request { return confirm(row, "not "+code) },
	},
	MostOthers: 4, // the fifth wrong code ends a booking
	Secret:     `SELECT code FROM bookings WHERE id = $1`,
	Create: func(body, key string) faulttest.Request {
		r := faulttest.Request{Method: http.MethodPost, Path: "/api/bookings", Body: body}
		if key != "" {
			r.Headers = []string{"Idempotency-Key: " + key}
		}
		return r
	},
	Keyed:  true,
	Bodies: []string{body(large, 1), body(other, 2), body(large, 2), body(scarce, 1), body(scarce, 2)},
	Decode: decode,
	Rejections: map[string]faulttest.Rejection{
		"/problems/booking-confirmed":      faulttest.RejectedConfirmed,
		"/problems/booking-released":       faulttest.RejectedCancelled,
		"/problems/booking-expired":        faulttest.RejectedLate,
		"/problems/wrong-code":             faulttest.RejectedOther,
		"/problems/sold-out":               faulttest.RejectedExhausted,
		"/problems/too-many-places":        faulttest.RejectedBound,
		"/problems/idempotency-key-reused": faulttest.RejectedReuse,
		"/problems/overloaded":             faulttest.RejectedOverloaded,
	},

	Table: "bookings",
	Rows: `
		SELECT idempotency_key AS key, id, expires_at AS deadline, ended_at,
		       CASE status WHEN 'expired' THEN 'timed out' WHEN 'released' THEN 'cancelled' ELSE status END AS status
		FROM bookings`,
	// A batch has a customer and a course of its own, both with the batch's id. No code is owed.
	InsertBatch: `
		WITH course AS (
			INSERT INTO courses (id, title, capacity, free, begins_at)
			VALUES ($1, 'batch', $3::bigint, 0, now() + interval '1 day')
		)
		INSERT INTO bookings (id, customer_id, course_id, places, code, created_at, expires_at)
		SELECT gen_random_uuid(), $1, $1, 1, 'code', now(), now() + $2 * interval '1 s'
		FROM generate_series(1, $3::bigint)
		RETURNING id`,

	Shared: &faulttest.SharedRows{
		Rush:     func(rush, i int) string { return body(fmt.Sprintf(hot+"%012d", rush), 1+i%4/3) },
		Rushes:   hotCourses,
		Units:    func(body string) map[string]int { return map[string]int{parse(body).CourseID: parse(body).Places} },
		Supplies: `SELECT id, free FROM courses`,
		Stock: fmt.Sprintf(`
			UPDATE courses SET capacity = 1000000, free = 1000000 WHERE id <> '`+scarce+`';
			INSERT INTO courses (id, title, capacity, free, begins_at)
			SELECT ('`+hot+`' || lpad(n::text, 12, '0'))::uuid, 'hot', 5, 5, now() + interval '1 day'
			FROM generate_series(0, %d) AS n`, hotCourses-1),
		Lock: `SELECT FROM courses WHERE id::text = ANY ($1::text[]) ORDER BY id FOR UPDATE`,
	},
	Bounds: &faulttest.CustomerBounds{
		Env: []string{fmt.Sprintf("SHOP_MAX_OPEN_PLACES=%d", maxOpenPlaces)},
		Exceeds: func(body string, rows []string) bool {
			places := parse(body).Places
			for _, row := range rows {
				places += parse(row).Places
			}
			return places > maxOpenPlaces
		},
		Open: func(problem []byte) ([]string, error) {
			var p struct {
				OpenBookings []string `json:"open_bookings"`
			}
			err := json.Unmarshal(problem, &p)
			return p.OpenBookings, err
		},
		// The time of an end is read before its transaction commits, so that the service may have seen more open
		// bookings than the table shows for that time, but not fewer.
		Exceeded: fmt.Sprintf(`
			SELECT count(*) FROM bookings b WHERE (
				SELECT sum(open.places) FROM bookings open
				WHERE open.customer_id = b.customer_id AND open.created_at <= b.created_at
				  AND least(open.ended_at, open.expires_at) > b.created_at
			) > %d`, maxOpenPlaces),
	},
}

// The ids of the sample courses.
const (
	large  = "01900000-0000-7000-8000-000000000001"
	other  = "01900000-0000-7000-8000-000000000002"
	scarce = "01900000-0000-7000-8000-000000000003"
)

// The ids of the courses that rushes want begin with hot and end with a number of 12 digits below hotCourses.
const (
	hot        = "01900000-0000-7000-9000-"
	hotCourses = 200
)

// maxOpenPlaces is the bound on the places in a customer's pending bookings. Two bookings of two places exceed it.
const maxOpenPlaces = 3

// wish is the body of a request for a booking.
type wish struct {
	CourseID string `json:"course_id"`
	Places   int    `json:"places"`
}

func body(course string, places int) string {
	return fmt.Sprintf(`{"course_id":%q,"places":%d}`, course, places)
}

func parse(body string) (w wish) {
	if err := json.Unmarshal([]byte(body), &w); err != nil {
		panic(err)
	}
	return w
}

// confirm returns the request that confirms a booking.
func confirm(row, code string) faulttest.Request {
	return faulttest.Request{Method: http.MethodPost, Path: row + "/confirm", Body: fmt.Sprintf(`{"code":%q}`, code)}
}

// decode reads a booking from the body of an answer.
func decode(body []byte) (faulttest.Row, error) {
	var b struct {
		ID        string
		Status    string
		ExpiresAt time.Time `json:"expires_at"`
		EndedAt   time.Time `json:"ended_at"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return faulttest.Row{}, err
	}
	decoded := faulttest.Row{State: faulttest.State{Status: faulttest.Status(b.Status), ID: b.ID}, Deadline: b.ExpiresAt}
	switch b.Status {
	case "released":
		decoded.Status, decoded.CancelledAt = faulttest.Cancelled, b.EndedAt
	case "expired":
		decoded.Status, decoded.CancelledAt = faulttest.TimedOut, b.EndedAt
	}
	return decoded, nil
}
