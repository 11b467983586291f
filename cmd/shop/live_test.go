package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// TestEventsOfOtherCustomers opens the event streams of two customers. Each receives the ids of its own orders only, and
// both receive the event products.
func TestEventsOfOtherCustomers(t *testing.T) {
	o := validOptions()
	a := newTestApp(t, testenv.Redis(t), 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, ln) }()
	defer func() {
		stop()
		testenv.Must(t, <-ended)
		http.DefaultClient.CloseIdleConnections()
	}()
	tokens, err := rest.NewTokens(tokenConfig(o.TokenKey))
	testenv.Must(t, err)
	alice, bob := a.orders.SignUp(), a.orders.SignUp()
	// open returns a function that reads events up to the expected one, and returns all of them.
	open := func(customer uuid.UUID) (readTo func(expected string) (all string)) {
		token, err := tokens.Issue(customer)
		testenv.Must(t, err)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ln.Addr().String()+"/api/events", http.NoBody)
		testenv.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		testenv.Must(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		lines := bufio.NewReader(resp.Body)
		return func(expected string) (all string) {
			t.Helper()
			for !strings.HasSuffix(all, expected) {
				line, err := lines.ReadString('\n')
				all += line
				if err != nil {
					t.Fatalf("the stream ended after %q, want %q", all, expected)
				}
			}
			return all
		}
	}
	event := func(name string, id uuid.UUID) string { return fmt.Sprintf("event: %s\ndata: {\"id\":%q}\n", name, id) }
	ofAlice, ofBob := open(alice), open(bob)
	const isLive = "event: state\ndata: {\"live\":true}\n"
	ofAlice(isLive)
	ofBob(isLive)
	first, second := uuid.New(), uuid.New()
	a.orders.Notify(alice.String(), first.String())
	ofAlice(event("order", first))
	ofAlice("event: products\ndata: {}\n")
	a.orders.Notify(bob.String(), second.String())
	if all := ofBob(event("order", second)); strings.Contains(all, first.String()) {
		t.Errorf("bob received %q, which names an order of alice", all)
	}
}
