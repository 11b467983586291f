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

func TestBookingsWithoutRedis(t *testing.T) {
	slow(t)
	faulttest.RedisDown(t, bookings)
}

func TestBookingsUnderProcessFaults(t *testing.T) {
	slow(t)
	faulttest.Faults(t, bookings, bookings.ProcessFaults()...)
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

// bookings is the program examples/booking. The shared rows of a booking are seats: those that it names, or any of its
// screening.
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
	Actions:    map[faulttest.Operation]func(row, code string) faulttest.Request{faulttest.Confirm: confirm},
	Secret:     `SELECT code FROM bookings WHERE id = $1`,
	Create: func(body, key string) faulttest.Request {
		r := faulttest.Request{Method: http.MethodPost, Path: "/api/bookings", Body: body}
		if key != "" {
			r.Headers = []string{"Idempotency-Key: " + key}
		}
		return r
	},
	Keyed: true,
	Bodies: []string{
		`{"screening_id":"` + general + `","count":1}`,
		`{"screening_id":"` + metropolis + `","count":2}`,
		`{"screening_id":"` + general + `","count":3}`,
		`{"screening_id":"` + sunrise + `","count":1}`,
		`{"screening_id":"` + sunrise + `","count":2}`,
	},
	Decode: decodeBooking,
	Rejections: map[string]faulttest.Rejection{
		"/problems/booking-expired":        faulttest.RejectedLate,
		"/problems/seats-taken":            faulttest.RejectedExhausted,
		"/problems/too-many-seats":         faulttest.RejectedBound,
		"/problems/idempotency-key-reused": faulttest.RejectedReuse,
	},

	Table: "bookings",
	Rows: `
		SELECT idempotency_key AS key, id, expires_at AS deadline, ended_at,
		       CASE status WHEN 'expired' THEN 'timed out' ELSE status END AS status
		FROM bookings`,
	// A batch has a customer and a screening of its own, both with the batch's id.
	InsertBatch: `
		WITH screening AS (
			INSERT INTO screenings (id, title, starts_at) VALUES ($1, 'batch', now() + interval '1 day')
		), created AS (
			INSERT INTO bookings (id, customer_id, screening_id, seats, code, created_at, expires_at)
			SELECT gen_random_uuid(), $1, $1, ARRAY['seat ' || n], 'code', now(), now() + $2 * interval '1 s'
			FROM generate_series(1, $3::bigint) AS n
			RETURNING id, seats
		), seats AS (
			INSERT INTO seats (screening_id, seat, booking_id) SELECT $1, seats[1], id FROM created
		)
		SELECT id FROM created`,

	Shared: &faulttest.SharedRows{
		// In every second rush the customers name one seat that all want, and one that nobody else wants: a booking
		// that is rejected must not take it. In the others they want any seats of a screening with too few.
		Rush: func(rush, i int) string {
			screening := fmt.Sprintf(hot+"%012d", rush)
			if rush%2 == 0 {
				return fmt.Sprintf(`{"screening_id":%q,"seats":["A01","B%02d"]}`, screening, i)
			}
			return fmt.Sprintf(`{"screening_id":%q,"count":%d}`, screening, 1+i%4/3)
		},
		Rushes: hotScreenings,
		Units:  unitsOf,
		// Seats of a screening with the title "named" are shared rows of their own. Any other screening is two shared
		// rows, because its bookings lock the screening first and then some of its seats: one stands for the screening
		// and its seats, and the other one for the seats alone.
		Supplies: `
			SELECT c.id || suffix, count(*) FILTER (WHERE s.booking_id IS NULL)
			FROM screenings c JOIN seats s ON s.screening_id = c.id CROSS JOIN unnest(ARRAY['', ' seats']) AS suffix
			WHERE c.title <> 'named'
			GROUP BY c.id, suffix
			UNION ALL
			SELECT c.id || ' ' || s.seat, count(*) FILTER (WHERE s.booking_id IS NULL)
			FROM screenings c JOIN seats s ON s.screening_id = c.id
			WHERE c.title = 'named'
			GROUP BY c.id, s.seat`,
		Stock: fmt.Sprintf(`
			INSERT INTO seats (screening_id, seat)
			SELECT id, 'S' || lpad(n::text, 6, '0') FROM screenings CROSS JOIN generate_series(1, 10000) AS n
			WHERE id <> '`+sunrise+`';
			INSERT INTO screenings (id, title, starts_at)
			SELECT ('`+hot+`' || lpad(n::text, 12, '0'))::uuid, CASE n %% 2 WHEN 0 THEN 'named' ELSE 'hot' END,
			       now() + interval '1 day'
			FROM generate_series(0, %d) AS n;
			INSERT INTO seats (screening_id, seat)
			SELECT id, unnest(CASE title WHEN 'named' THEN '{A01,B00,B01,B02,B03,B04,B05,B06,B07}'
			                             ELSE '{A01,A02,A03,A04,A05}' END::text[])
			FROM screenings WHERE title IN ('named', 'hot')`, hotScreenings-1),
		Lock: `
			WITH locked AS MATERIALIZED (
				SELECT id FROM screenings WHERE id::text = ANY ($1::text[]) ORDER BY id FOR UPDATE
			)
			SELECT FROM seats
			WHERE (SELECT count(*) FROM locked) >= 0
			  AND ARRAY[screening_id::text, screening_id || ' seats', screening_id || ' ' || seat] && $1::text[]
			ORDER BY screening_id, seat
			FOR UPDATE`,
	},
	Bounds: &faulttest.CustomerBounds{
		Env: []string{fmt.Sprintf("SHOP_MAX_OPEN_SEATS=%d", maxOpenSeats)},
		Exceeds: func(body string, rows []string) bool {
			seats := seatsOf(body)
			for _, row := range rows {
				seats += seatsOf(row)
			}
			return seats > maxOpenSeats
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
				SELECT sum(cardinality(open.seats)) FROM bookings open
				WHERE open.customer_id = b.customer_id AND open.created_at <= b.created_at
				  AND least(open.ended_at, open.expires_at) > b.created_at
			) > %d`, maxOpenSeats),
	},
}

// The ids of the sample screenings.
const (
	general    = "01900000-0000-7000-8000-000000000001"
	metropolis = "01900000-0000-7000-8000-000000000002"
	sunrise    = "01900000-0000-7000-8000-000000000003" // the scarce one
)

// The ids of the screenings that rushes want begin with hot and end with a number of 12 digits below hotScreenings.
const (
	hot           = "01900000-0000-7000-9000-"
	hotScreenings = 200
)

// maxOpenSeats is the bound on the seats in a customer's pending bookings. Two bookings of three seats exceed it.
const maxOpenSeats = 5

// request is the body of a request for a booking.
type request struct {
	Screening string `json:"screening_id"`
	Seats     []string
	Count     int
}

func parse(body string) (r request) {
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		panic(err)
	}
	return r
}

func seatsOf(body string) int {
	r := parse(body)
	return r.Count + len(r.Seats)
}

// unitsOf returns the shared rows that a booking with this body needs.
func unitsOf(body string) map[string]int {
	r, units := parse(body), map[string]int{}
	if r.Count > 0 {
		units[r.Screening], units[r.Screening+" seats"] = r.Count, r.Count
	}
	for _, seat := range r.Seats {
		units[r.Screening+" "+seat] = 1
	}
	return units
}

// confirm returns the request that confirms a booking.
func confirm(row, code string) faulttest.Request {
	return faulttest.Request{Method: http.MethodPost, Path: row + "/confirm", Body: fmt.Sprintf(`{"code":%q}`, code)}
}

// decodeBooking reads a booking from the body of an answer.
func decodeBooking(body []byte) (faulttest.Row, error) {
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
	if b.Status == "expired" {
		decoded.Status, decoded.CancelledAt = faulttest.TimedOut, b.EndedAt
	}
	return decoded, nil
}
