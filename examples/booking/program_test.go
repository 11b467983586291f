package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/testenv"
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
	options := programtest.Options(t, &commands{})
	programtest.VariableNames(t, options)
	programtest.SecretFiles(t, options)
}

// TestBookingRoutes checks that each path answers HEAD as it answers GET.
func TestBookingRoutes(t *testing.T) {
	const opsToken = "0123456789abcdef"
	o := options{
		Timeout: time.Minute, MaxOpenSeats: 10, TokenKey: "0123456789abcdef0123456789abcdef",
		Ops: ops.Options{OpsToken: opsToken},
	}
	p, err := o.open(t.Context(), app.Config{
		Name: "booking", DatabaseURL: testenv.Postgres(t), DatabaseConns: 20, RedisURL: testenv.Redis(t), QueueShards: 1,
		Roles: []string{app.API, app.Relay, app.Worker, app.Reconciler},
	}, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	defer p.Close()
	testenv.Must(t, createTables(t.Context(), p.DB, true))
	programtest.HeadMatchesGet(t, p, opsToken)
}

// TestBookingDemo runs the demo, and waits until a booking has expired.
func TestBookingDemo(t *testing.T) {
	t.Parallel() // it waits for a deadline most of the time
	url := programtest.Demo(t, program(), &commands{}, "--timeout=2s")
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
	token = send(http.MethodPost, "/api/customers", "").Token
	b := send(http.MethodPost, "/api/bookings", `{"screening_id":"01900000-0000-7000-8000-000000000002","count":2}`)
	if b.Status != "pending" {
		t.Fatalf("the new booking is %+v, want it pending", b)
	}
	testenv.Eventually(t, "the booking has expired", func() bool {
		b = send(http.MethodGet, "/api/bookings/"+b.ID.String(), "")
		return b.Status == "expired"
	})
	if b.EndedAt == nil || b.EndedAt.Before(b.ExpiresAt) {
		t.Errorf("the expired booking is %+v, want that it ended at its deadline or later", b)
	}
}
