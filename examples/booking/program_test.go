package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/testenv/programtest"
)

// TestBookingDocs checks that the files exist that the module's README names. In a copy it is that of this program.
func TestBookingDocs(t *testing.T) {
	const module = "../.."
	docs := programtest.Read(t, module+"/README.md")
	programtest.Links(t, docs)
	programtest.NamedFiles(t, docs, module)
}

// TestBookingOptions checks the names of the options, and those that hold secrets.
func TestBookingOptions(t *testing.T) {
	programtest.OptionNames(t, programtest.Options(t, &commands{}))
}

// TestBookingReadiness checks that a process that lacks a table is not ready.
func TestBookingReadiness(t *testing.T) {
	const opsToken = "0123456789abcdef"
	o := options{
		Timeout: time.Minute, MaxOpenPlaces: 10, TokenKey: "0123456789abcdef0123456789abcdef",
		Ops: ops.Options{OpsToken: opsToken},
	}
	p, err := o.open(t.Context(), app.Config{
		Name: "booking", DatabaseURL: testenv.Postgres(t), DatabaseConns: 20, RedisURL: testenv.Redis(t), QueueShards: 1,
		Roles: []string{app.API, app.Relay, app.Worker, app.Reconciler},
	}, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	defer p.Close()
	for _, step := range []struct {
		change string
		status int // of /readyz after it
	}{
		{`SELECT`, http.StatusOK},
		{`ALTER TABLE ` + counters + ` RENAME TO other`, http.StatusServiceUnavailable},
	} {
		testenv.Exec(t, p.Pool, step.change)
		answer := httptest.NewRecorder()
		p.Handler().ServeHTTP(answer, parttest.NewRequest(t, "GET", "/readyz", ""))
		if answer.Code != step.status {
			t.Errorf("after %s /readyz is answered with %d %s, want %d", step.change, answer.Code, answer.Body, step.status)
		}
	}
}

// sample is a shared row that `migrate --seed` adds.
const sample = "01900000-0000-7000-8000-000000000002"

// TestBookingDemo runs the demo, confirms a row with the code that its log shows, and waits until another one has timed
// out.
func TestBookingDemo(t *testing.T) {
	t.Parallel() // it waits for a deadline most of the time
	demo, log := program(), new(testenv.LogBuffer)
	demo.Err = log
	url := programtest.Demo(t, demo, &commands{}, "--timeout=3s")
	token := ""
	send := func(method, path, body string) (a answered) {
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, bytes.NewBufferString(body))
		testenv.Must(t, err)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		testenv.Must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testenv.Must(t, err)
		testenv.Must(t, json.Unmarshal(text, &a))
		return a
	}
	token = send(http.MethodPost, signUpPath, "").Token
	b := send(http.MethodPost, collection, body(uuid.MustParse(sample), 2))
	if b.Status != "pending" {
		t.Fatalf("the new row is %+v, want it pending", b)
	}
	var code []string
	line := regexp.MustCompile(`"code":"(\w+)".*` + b.ID.String())
	testenv.Eventually(t, "the log shows the code", func() bool {
		code = line.FindStringSubmatch(log.String())
		return code != nil
	})
	path := collection + "/" + b.ID.String()
	if got := send(http.MethodPost, path+"/confirm", `{"code":"`+code[1]+`"}`); got.Status != "confirmed" &&
		got.Type != "/problems/"+deadlinePassed.Code { // on a slow machine
		t.Errorf("the confirmed row is %+v", got)
	}
	b = send(http.MethodPost, collection, body(uuid.MustParse(sample), 2))
	testenv.Eventually(t, "the row has timed out", func() bool {
		b = send(http.MethodGet, collection+"/"+b.ID.String(), "")
		return b.Status == "expired"
	})
	if b.EndedAt == nil || b.EndedAt.Before(b.ExpiresAt) {
		t.Errorf("the row that has timed out is %+v, want that it ended at its deadline or later", b)
	}
}
