package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// client sends requests to the routes of a cinema, and checks each answer against the contract.
type client struct {
	t        *testing.T
	contract *parttest.Contract
	handler  http.Handler
	token    string
}

// answered is an answer: the members of a booking, of a customer or of a problem.
type answered struct {
	booking
	Status any    `json:"status"`
	Code   string `json:"code"`
	Token  string
}

func newClient(t *testing.T, c *cinema) *client {
	t.Helper()
	const internal = "../../internal/"
	contract, err := parttest.LoadPieces(internal+"app/openapi.yaml", internal+"rest/openapi.yaml", "openapi.yaml")
	testenv.Must(t, err)
	router := parttest.NewRouter(slog.New(slog.DiscardHandler))
	addRoutes(router, parttest.NewTokens(t), c.service)
	return &client{t: t, contract: contract, handler: router}
}

// send sends a request, checks the status of the answer, and returns the answer.
func (c *client) send(status int, method, path, body string, headers ...string) (a answered) {
	c.t.Helper()
	if c.token != "" {
		headers = append(headers, "Authorization: Bearer "+c.token)
	}
	got := c.contract.Send(c.t, c.handler, method, path, body, headers...)
	if got.Code != status {
		c.t.Errorf("%s %s %s: status %d, want %d: %s", method, path, body, got.Code, status, got.Body)
	}
	testenv.Must(c.t, json.Unmarshal(got.Body.Bytes(), &a))
	return a
}

func TestBookingsAPI(t *testing.T) {
	cinema := newCinema(t)
	screening := cinema.screening(t, 5)
	c := newClient(t, cinema)
	c.send(http.StatusUnauthorized, "GET", "/api/bookings/"+uuid.NewString(), "")
	c.token = c.send(http.StatusCreated, "POST", "/api/customers", "").Token

	any2 := fmt.Sprintf(`{"screening_id":%q,"count":2}`, screening)
	b := c.send(http.StatusCreated, "POST", "/api/bookings", any2, "Idempotency-Key: 1")
	if b.Status != "pending" || strings.Join(b.Seats, " ") != "A01 A02" || b.Code == "" {
		t.Errorf("the new booking is %+v, want it pending, with the seats A01 and A02 and a code", b)
	}
	again := c.send(http.StatusOK, "POST", "/api/bookings", any2, "Idempotency-Key: 1")
	if again.ID != b.ID || again.Code != b.Code {
		t.Errorf("the repeated request is answered with %+v, want %+v", again, b)
	}
	any1 := fmt.Sprintf(`{"screening_id":%q,"count":1}`, screening)
	c.send(http.StatusUnprocessableEntity, "POST", "/api/bookings", any1, "Idempotency-Key: 1")
	path := "/api/bookings/" + b.ID.String()
	if got := c.send(http.StatusOK, "GET", path, ""); got.ID != b.ID || got.Code != "" {
		t.Errorf("GET %s is answered with %+v, want the booking without its code", path, got)
	}
	c.send(http.StatusUnprocessableEntity, "POST", path+"/confirm", `{"code":"wrong"}`)
	for range 2 { // it is idempotent
		if got := c.send(http.StatusOK, "POST", path+"/confirm", `{"code":"`+b.Code+`"}`); got.Status != "confirmed" {
			t.Errorf("the confirmed booking is %v", got.Status)
		}
	}

	a05 := fmt.Sprintf(`{"screening_id":%q,"seats":["A05"]}`, screening)
	c.send(http.StatusCreated, "POST", "/api/bookings", a05)
	c.send(http.StatusConflict, "POST", "/api/bookings", a05)
	c.token = "" // with it, the customer would get a new token, and stay the same
	c.token = c.send(http.StatusCreated, "POST", "/api/customers", "").Token
	c.send(http.StatusNotFound, "GET", path, "")
}

// TestBookingRequestsAreChecked sends requests that must be rejected before they reach the database.
func TestBookingRequestsAreChecked(t *testing.T) {
	cinema := newCinema(t)
	c := newClient(t, cinema)
	c.token = c.send(http.StatusCreated, "POST", "/api/customers", "").Token
	screening := fmt.Sprintf(`"screening_id":%q`, cinema.screening(t, 5))
	for _, fields := range []string{
		`"count":1`, `"screening_id":"x","count":1`, screening, screening + `,"count":1,"seats":["A01"]`,
		screening + `,"count":0`, screening + `,"count":11`, screening + `,"count":1.5`, screening + `,"count":"1"`,
		screening + `,"seats":[]`, screening + `,"seats":"A01"`, screening + `,"seats":["A01","A01"]`,
		screening + `,"seats":["A01\u0000"]`, screening + `,"seats":[1]`, screening + `,"count":1,"x":1`,
	} {
		c.send(http.StatusUnprocessableEntity, "POST", "/api/bookings", "{"+fields+"}")
	}
	unknown := "/api/bookings/" + uuid.NewString()
	c.send(http.StatusUnprocessableEntity, "POST", unknown+"/confirm", `{"code":1}`)
	for path, status := range map[string]int{
		unknown: 404, "/api/bookings/x": 400, unknown + "?x=1": 400,
	} {
		c.send(status, "GET", path, "")
	}
}

// TestBookingCommands runs the commands that need no process that serves.
func TestBookingCommands(t *testing.T) {
	database := testenv.Postgres(t)
	servers := []string{"--database-url=" + database, "--redis-url=" + testenv.Redis(t)}
	var out strings.Builder
	run := func(command string, options ...string) error {
		p := program()
		p.Out, p.Err = &out, &out
		return app.Run(t.Context(), p, &commands{}, append([]string{command}, options...))
	}
	for range 2 { // it is idempotent
		testenv.Must(t, run("migrate", "--seed", servers[0]))
	}
	db, err := sql.Open("pgx", database)
	testenv.Must(t, err)
	defer db.Close()
	if n := testenv.Query[int](t, db, `SELECT count(*) FROM seats`); n != 26*50+8*12+6 {
		t.Errorf("the sample has %d seats, want %d", n, 26*50+8*12+6)
	}
	testenv.Must(t, run("reconcile", servers...))
	if err := run("doctor", servers...); err != nil {
		t.Errorf("doctor: %v: %s", err, out.String())
	}
	testenv.Exec(t, db, `INSERT INTO bookings (id, customer_id, screening_id, seats, code, created_at, expires_at)
		SELECT gen_random_uuid(), gen_random_uuid(), id, '{A01}', 'code', now(), now() + interval '1 hour'
		FROM screenings LIMIT 1`)
	out.Reset()
	if err := run("doctor", servers...); err == nil || !strings.Contains(out.String(), "its booking is none") {
		t.Errorf("doctor: error %v, want one, because a booking has no seat: %s", err, out.String())
	}
	for _, flag := range []string{"--timeout=0s", "--max-open-seats=0", "--token-key=short"} {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		err := run("serve", append(servers, "--http-addr=127.0.0.1:0", flag)...)
		if !errors.As(err, new(app.UsageError)) || !strings.Contains(err.Error(), name) {
			t.Errorf("serve %s: error %v, want one of the option", flag, err)
		}
	}
}
