package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

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
	programtest.OptionNames(t, programtest.Options(t, &commands{}))
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
