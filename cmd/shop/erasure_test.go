package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestEraseRoute erases a customer over the operators' API.
func TestEraseRoute(t *testing.T) {
	a, o := newTestApp(t, testenv.Redis(t), 1), validOptions()
	handler, err := a.Handler()
	testenv.Must(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	pendingOrders(t, a, 3, time.Hour)
	var customer string
	testenv.Must(t, a.Pool.QueryRowContext(t.Context(), `SELECT id FROM customers`).Scan(&customer))
	for name, test := range map[string]struct {
		path, token string
		status      int
		body        string // "": any
	}{
		"unauthorized": {customer, "x", http.StatusUnauthorized, ""},
		"no UUID":      {"1", o.Ops.OpsToken, http.StatusBadRequest, ""},
		"customer":     {customer, o.Ops.OpsToken, http.StatusOK, `{"orders_left":3}`},
		"unknown":      {"01900000-0000-7000-8000-0000000000ff", o.Ops.OpsToken, http.StatusOK, `{"orders_left":0}`},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/ops/api/customers/"+test.path+"/erase", http.NoBody)
			testenv.Must(t, err)
			req.Header.Set("Authorization", "Bearer "+test.token)
			resp, err := server.Client().Do(req)
			testenv.Must(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			testenv.Must(t, err)
			if resp.StatusCode != test.status || test.body != "" && string(body) != test.body {
				t.Errorf("the answer is %d %s, want %d %s", resp.StatusCode, body, test.status, test.body)
			}
		})
	}
}
