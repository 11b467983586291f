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

	schema "example.com/shop/examples/booking/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

const collection = "/api/bookings"

// body returns the body of a request for units of a shared row.
func body(shared uuid.UUID, units int) string {
	return fmt.Sprintf(`{"course_id":%q,"places":%d}`, shared, units)
}

// client sends requests to the routes of a service, and checks each answer against the contract.
type client struct {
	t        *testing.T
	contract *parttest.Contract
	handler  http.Handler
	token    string
}

// answered is an answer: the members of a row, of a customer or of a problem.
type answered struct {
	row
	Status       any    `json:"status"`
	Type         string `json:"type"`
	Detail       string `json:"detail"`
	AttemptsLeft *int   `json:"attempts_left"`
	Token        string
}

func newClient(t *testing.T, s *testService) *client {
	t.Helper()
	const internal = "../../internal/"
	contract, err := parttest.LoadPieces(internal+"app/openapi.yaml", internal+"rest/openapi.yaml", "openapi.yaml")
	testenv.Must(t, err)
	router := parttest.NewRouter(slog.New(slog.DiscardHandler))
	addRoutes(router, parttest.NewTokens(t), s.service)
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

// signUp makes the client a new customer.
func (c *client) signUp() {
	c.t.Helper()
	c.token = "" // with it, the customer would get a new token, and stay the same
	c.token = c.send(http.StatusCreated, "POST", signUpPath, "").Token
}

func TestAPI(t *testing.T) {
	s := newTestService(t)
	shared := s.counter(t, 3)
	c := newClient(t, s)
	c.send(http.StatusUnauthorized, "GET", collection+"/"+uuid.NewString(), "")
	c.signUp()
	b := c.send(http.StatusCreated, "POST", collection, body(shared, 2), "Idempotency-Key: 1")
	if b.Status != "pending" || s.free(t, shared) != 1 {
		t.Errorf("the new row is %+v, and %d units are free; want it pending, and 1", b, s.free(t, shared))
	}
	if again := c.send(http.StatusOK, "POST", collection, body(shared, 2), "Idempotency-Key: 1"); again.ID != b.ID {
		t.Errorf("the repeated request is answered with %+v, want %+v", again, b)
	}
	c.send(http.StatusUnprocessableEntity, "POST", collection, body(shared, 1), "Idempotency-Key: 1")
	c.send(http.StatusConflict, "POST", collection, body(shared, 2))
	path := collection + "/" + b.ID.String()
	if got := c.send(http.StatusOK, "GET", path, ""); got.ID != b.ID {
		t.Errorf("GET %s is answered with %+v, want the row", path, got)
	}
	wrong := c.send(http.StatusUnprocessableEntity, "POST", path+"/confirm", `{"code":"wrong"}`)
	if wrong.AttemptsLeft == nil || *wrong.AttemptsLeft != maxWrongCodes-1 {
		t.Errorf("a wrong code is answered with %+v, want attempts_left", wrong)
	}
	code := testenv.Query[string](t, s.pool, `SELECT code FROM `+table+` WHERE id = $1`, b.ID)
	for range 2 { // it is idempotent
		if got := c.send(http.StatusOK, "POST", path+"/confirm", `{"code":"`+code+`"}`); got.Status != "confirmed" {
			t.Errorf("the confirmed row is %v", got.Status)
		}
	}
	if got := c.send(http.StatusConflict, "POST", path+"/release", ""); got.Type != "/problems/"+alreadyConfirmed.Code {
		t.Errorf("the release of a confirmed row is answered with %+v", got)
	}
	other := c.send(http.StatusCreated, "POST", collection, body(shared, 1))
	for range 2 {
		got := c.send(http.StatusOK, "POST", collection+"/"+other.ID.String()+"/release", "")
		if got.Status != "released" || s.free(t, shared) != 1 {
			t.Errorf("the released row is %+v, and %d units are free; want 1", got, s.free(t, shared))
		}
	}
	c.signUp()
	c.send(http.StatusNotFound, "GET", path, "")
	c.send(http.StatusNotFound, "POST", path+"/release", "")
}

// TestRequestsAreChecked sends requests that must be rejected before they reach the database.
func TestRequestsAreChecked(t *testing.T) {
	s := newTestService(t)
	c := newClient(t, s)
	c.signUp()
	shared := s.counter(t, 5).String()
	for _, change := range [][2]string{
		{`:1`, `:0`}, {`:1`, fmt.Sprint(":", maxPlaces+1)}, {`:1`, `:1.5`}, {`:1`, `:"1"`}, {`:1`, `:null`}, {`}`, `,"x":1}`}, {shared, "x"},
	} {
		request := strings.Replace(body(uuid.MustParse(shared), 1), change[0], change[1], 1)
		c.send(http.StatusUnprocessableEntity, "POST", collection, request)
	}
	c.send(http.StatusUnprocessableEntity, "POST", collection, `{}`)
	unknown := collection + "/" + uuid.NewString()
	c.send(http.StatusUnprocessableEntity, "POST", unknown+"/confirm", `{"code":1}`)
	c.send(http.StatusUnprocessableEntity, "POST", unknown+"/release", `{"code":1}`)
	for path, status := range map[string]int{
		unknown: 404, collection + "/x": 400, unknown + "?x=1": 400,
	} {
		c.send(status, "GET", path, "")
	}
}

// TestRequestsSayHowToGoOn sends requests that may have taken effect, because the database does not answer.
func TestRequestsSayHowToGoOn(t *testing.T) {
	url := testenv.Postgres(t)
	db, _ := parttest.OpenDB(t, url, 1)
	published := new(parttest.Published)
	c := newClient(t, &testService{service: newService(db, new(options), published, published)})
	c.signUp()
	testenv.DisablePostgres(t, url)
	for path, advice := range map[string]string{
		"": "same Idempotency-Key", "/" + uuid.NewString() + "/release": "ends once",
	} {
		text := body(uuid.New(), 1)
		if path != "" {
			text = ""
		}
		got := c.send(http.StatusServiceUnavailable, "POST", collection+path, text)
		if !strings.Contains(got.Detail, advice) {
			t.Errorf("POST %s is answered with %+v, want a detail with %q", path, got, advice)
		}
	}
}

// TestCommandsThatRunOnce runs the commands that need no process that serves, also on a schema that is behind.
func TestCommandsThatRunOnce(t *testing.T) {
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
	if n := testenv.Query[int](t, db, `SELECT count(*) FROM `+counters); n != 3 {
		t.Errorf("the sample has %d shared rows, want 3", n)
	}
	testenv.Must(t, run("reconcile", servers...))
	if err := run("doctor", servers...); err != nil {
		t.Errorf("doctor: %v: %s", err, out.String())
	}
	doctorFinds := func(change, want string) {
		t.Helper()
		testenv.Exec(t, db, change)
		out.Reset()
		err := run("doctor", servers...)
		if text := fmt.Sprint(out.String(), err); err == nil || !strings.Contains(text, want) {
			t.Errorf("after %s: doctor: error %v, %s; want %q", change, err, out.String(), want)
		}
	}
	doctorFinds(`UPDATE `+counters+` SET free = free - 1`, "pending and confirmed 0")
	doctorFinds(`ALTER TABLE `+table+` RENAME ended_by TO other`, "does not fit the schema")
	doctorFinds(`DELETE FROM `+schema.Set.Table(), "lacks the migrations [1] of "+schema.Set.Name)
	if err := run("serve", append(servers, "--http-addr=127.0.0.1:0", "--roles=relay")...); err == nil ||
		!strings.Contains(err.Error(), "lacks the migrations") {
		t.Errorf("serve on a schema that is behind: error %v", err)
	}
	for _, flag := range []string{"--timeout=0s", "--max-open-places=0", "--token-key=short"} {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		err := run("serve", append(servers, "--http-addr=127.0.0.1:0", flag)...)
		if !errors.As(err, new(app.UsageError)) || !strings.Contains(err.Error(), name) {
			t.Errorf("serve %s: error %v, want one of the option", flag, err)
		}
	}
}
