package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	schema "example.com/shop/examples/invite/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/testenv/programtest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { programtest.Main(m, migrations.Up, schema.Set.Up) }

// newProcess returns a process with all roles on a new database.
func newProcess(ctx context.Context, t *testing.T, redisURL string, timeout time.Duration) *app.Process {
	t.Helper()
	serve := serveCommand{timeoutOption: timeoutOption{timeout}, Ops: ops.Options{OpsToken: opsToken}}
	p, err := serve.open(ctx, app.Config{
		Name: "invite", DatabaseURL: testenv.Postgres(t), DatabaseConns: 20, RedisURL: redisURL, QueueShards: 1,
		Roles: []string{app.API, app.Relay, app.Worker, app.Reconciler},
	}, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	return p
}

const opsToken = "0123456789abcdef"

// service is a running service. Each answer is checked against its contract.
type service struct {
	url      string
	contract *parttest.Contract
}

func newService(t *testing.T, url string) *service {
	t.Helper()
	contract, err := parttest.LoadPieces("../../internal/app/openapi.yaml", "openapi.yaml")
	testenv.Must(t, err)
	return &service{url: url, contract: contract}
}

// start runs the service on a new database until the test ends.
func start(t *testing.T, redisURL string, timeout time.Duration) *service {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := newProcess(ctx, t, redisURL, timeout)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		p.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return newService(t, "http://"+ln.Addr().String())
}

// send sends a request, checks the answer against the contract, and returns the status and the invitation that it has.
func (s *service) send(t *testing.T, method, path, body string) (int, invitation) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.contract.Check(req, resp.StatusCode, resp.Header, text); err != nil {
		t.Error(err)
	}
	var i struct {
		invitation
		Status any `json:"status"` // a problem has a number
	}
	if err := json.Unmarshal(text, &i); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	i.invitation.Status, _ = i.Status.(string)
	return resp.StatusCode, i.invitation
}

func (s *service) create(t *testing.T) (path string) {
	t.Helper()
	status, i := s.send(t, "POST", "/invitations", `{"email":"ada@example.com"}`)
	if status != http.StatusCreated || i.Status != "pending" {
		t.Fatalf("POST /invitations is answered with %d, %+v; want 201 and a pending invitation", status, i)
	}
	return "/invitations/" + i.ID.String()
}

// waitForExpiry polls until an invitation has expired, and checks that it was not early.
func (s *service) waitForExpiry(t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		_, i := s.send(t, "GET", path, "")
		if i.Status == "expired" {
			if i.EndedAt.Before(i.ExpiresAt) {
				t.Errorf("the invitation expired at %v, before its deadline %v", i.EndedAt, i.ExpiresAt)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a minute later the invitation is %+v, want it expired", i)
		}
	}
}

func TestInvitations(t *testing.T) {
	t.Parallel() // it waits for a deadline most of the time
	s := start(t, testenv.Redis(t), 5*time.Second)
	accepted, expired := s.create(t), s.create(t)
	for range 2 { // it is idempotent
		if status, i := s.send(t, "POST", accepted+"/accept", ""); status != http.StatusOK || i.Status != "accepted" {
			t.Errorf("the answer to accept is %d, %+v; want 200 and an accepted invitation", status, i)
		}
	}
	s.waitForExpiry(t, expired)
	if status, _ := s.send(t, "POST", expired+"/accept", ""); status != http.StatusConflict {
		t.Errorf("accepting an expired invitation is answered with %d, want 409", status)
	}
	if _, i := s.send(t, "GET", accepted, ""); i.Status != "accepted" {
		t.Errorf("after the deadline the accepted invitation is %s", i.Status)
	}
	for path, want := range map[string]int{"/invitations/x": 400, "/invitations/01900000-0000-7000-8000-000000000000": 404, "/x": 404} {
		if status, _ := s.send(t, "GET", path, ""); status != want {
			t.Errorf("GET %s is answered with %d, want %d", path, status, want)
		}
	}
	if status, _ := s.send(t, "POST", "/invitations", `{"email":"nobody","x":1}`); status != http.StatusUnprocessableEntity {
		t.Errorf("an invitation without an e-mail address is answered with %d, want 422", status)
	}
}

// TestInviteRequestsWithoutDatabase sends requests that may have taken effect. The answers say how to go on.
func TestInviteRequestsWithoutDatabase(t *testing.T) {
	url := testenv.Postgres(t)
	db, _ := parttest.OpenDB(t, url, 1)
	contract, router := newService(t, "").contract, parttest.NewRouter(slog.New(slog.DiscardHandler))
	addRoutes(router, &store{db: db}, nil, time.Minute)
	testenv.DisablePostgres(t, url)
	for path, advice := range map[string]string{
		"/invitations": "second invitation", "/invitations/" + uuid.NewString() + "/accept": "idempotent",
	} {
		answer := contract.Send(t, router, "POST", path, `{"email":"ada@example.com"}`)
		if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), advice) {
			t.Errorf("POST %s: status %d, %s; want 503 and a detail with %q", path, answer.Code, answer.Body, advice)
		}
	}
}

// TestCommands runs the commands that need no process that serves. The doctor finds no fault after a sweep, and finds an
// invitation that is pending too long.
func TestCommands(t *testing.T) {
	database := testenv.Postgres(t)
	servers := []string{"--database-url=" + database, "--redis-url=" + testenv.Redis(t)}
	var out strings.Builder
	run := func(command string, options ...string) error {
		p := program()
		p.Out, p.Err = &out, &out
		return app.Run(t.Context(), p, &commands{}, append([]string{command}, options...))
	}
	for range 2 { // it is idempotent
		testenv.Must(t, run("migrate", servers[0]))
	}
	testenv.Must(t, run("reconcile", servers...))
	if err := run("doctor", servers...); err != nil {
		t.Errorf("doctor: %v: %s", err, out.String())
	}
	db, err := sql.Open("pgx", database)
	testenv.Must(t, err)
	defer db.Close()
	for _, step := range []struct{ change, want string }{
		{`INSERT INTO invitations (id, email, created_at, expires_at)
			VALUES (gen_random_uuid(), 'ada@example.com', now() - interval '2 days', now() - interval '1 day')`,
			"pending 1 day"},
		{`ALTER TABLE invitations RENAME ended_at TO other`, "does not fit the schema"},
		{`DELETE FROM ` + schema.Set.Table(), "lacks the migrations [1] of " + schema.Set.Name},
	} {
		testenv.Exec(t, db, step.change)
		out.Reset()
		err := run("doctor", servers...)
		if text := fmt.Sprint(out.String(), err); err == nil || !strings.Contains(text, step.want) {
			t.Errorf("after %s: doctor: error %v, %s; want %q", step.change, err, out.String(), step.want)
		}
	}
	for command, flag := range map[string]string{"serve": "--timeout=0s", "reconcile": "--database-conns=1"} {
		if err := run(command, append(servers, flag)...); !errors.As(err, new(app.UsageError)) || !strings.Contains(err.Error(), "want at least") {
			t.Errorf("%s %s: error %v, want one of the option", command, flag, err)
		}
	}
}

// TestInvitationsAfterRedisWipe wipes Redis. The reconciler finds that the marker is missing, and adds the task again.
func TestInvitationsAfterRedisWipe(t *testing.T) {
	t.Parallel() // it waits for a deadline most of the time
	url := testenv.Redis(t)
	s := start(t, url, 5*time.Second)
	path := s.create(t)
	rdb, err := delay.Connect(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	if err := rdb.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.waitForExpiry(t, path)
}

// TestInvitationPlans checks that a batch is read by the ids of its invitations, and the pending ones by their index.
func TestInvitationPlans(t *testing.T) {
	_, db := parttest.OpenDB(t, testenv.Postgres(t), 1)
	pending, expire := rows.Statements()
	ids := "'{" + uuid.NewString() + strings.Repeat(","+uuid.NewString(), 499) + "}'"
	byDeadline, byID := []string{"invitations_pending_deadline"}, []string{"invitations_pkey"}
	testenv.CheckPlans(t, db, []string{"invitations"}, map[string]testenv.Plan{
		"pending": {Statement: pending, Params: "'0001-01-01', '" + uuid.NewString() + "', -1, 500", Uses: byDeadline},
		"expire":  {Statement: expire, Params: ids + ", 'worker'", Uses: byID, Never: byDeadline},
		"accept":  {Statement: acceptSQL, Params: "'" + uuid.NewString() + "'", Uses: byID, Never: byDeadline},
		// FindViolations has PostgreSQL plan the statement for the values of its parameters.
		"invariants": {
			Statement: strings.NewReplacer("$1", "1000000", "$2", "false").Replace(invariantsSQL), Uses: byDeadline,
		},
	}, func(t testing.TB) {
		testenv.Exec(t, db, `INSERT INTO invitations (id, email, status, created_at, expires_at, ended_at)
			SELECT gen_random_uuid(), 'ada@example.com', CASE WHEN n % 100 = 0 THEN 'pending' ELSE 'accepted' END, now(),
			       now() + interval '1 min', CASE WHEN n % 100 > 0 THEN now() END
			FROM generate_series(1, 20000) AS n`)
	})
}
