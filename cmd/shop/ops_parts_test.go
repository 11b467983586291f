package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
)

// TestOperatorsRoutes erases a customer over the operators' API.
func TestOperatorsRoutes(t *testing.T) {
	a, o := newTestApp(t, testenv.Redis(t), 1), validOptions()
	handler, err := a.Handler()
	testenv.Must(t, err)
	server := httptest.NewServer(handler) // the routes set deadlines of the connection
	defer server.Close()
	pendingOrders(t, a, 3, time.Hour)
	erase := "/ops/api/customers/" + testenv.Query[string](t, a.Pool, `SELECT id FROM customers`) + "/erase"
	const noCustomer = "/ops/api/customers/1/erase"
	unknownCustomer := strings.Replace(noCustomer, "1", uuid.NewString(), 1)
	token := o.Ops.OpsToken
	for _, test := range []struct {
		name, path, token string
		status            int
		body              string // a part of it
	}{
		{"erase, unauthorized", erase, "x", http.StatusUnauthorized, "/problems/unauthorized"},
		{"erase, no UUID", noCustomer, token, http.StatusBadRequest, "/problems/malformed-request"},
		{"erase a customer with three orders", erase, token, http.StatusOK, `{"orders_left":3}`},
		{"erase an unknown customer", unknownCustomer, token, http.StatusOK, `{"orders_left":0}`},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+test.path, http.NoBody)
		testenv.Must(t, err)
		request.Header.Set("Authorization", "Bearer "+test.token)
		answer, err := server.Client().Do(request)
		testenv.Must(t, err)
		body, err := io.ReadAll(answer.Body)
		testenv.Must(t, err)
		answer.Body.Close()
		if answer.StatusCode != test.status || !strings.Contains(string(body), test.body) {
			t.Errorf("%s: the answer is %d %s, want %d and %q",
				test.name, answer.StatusCode, body, test.status, test.body)
		}
	}
}
