package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/closesale"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// TestCloseSaleRoute closes the sale of a product over the operators' API.
func TestCloseSaleRoute(t *testing.T) {
	a, o := newTestApp(t, testenv.Redis(t), 1), validOptions()
	handler, err := a.Handler()
	testenv.Must(t, err)
	pendingOrders(t, a, 3, time.Hour)
	var product uuid.UUID
	testenv.Must(t, a.Pool.QueryRowContext(t.Context(), `SELECT id FROM products`).Scan(&product))
	for _, test := range []struct {
		name, path, token string
		status            int
		orders            int64
		problem           string
	}{
		{"unauthorized", product.String(), "x", http.StatusUnauthorized, 0, rest.Unauthorized.Code},
		{"no UUID", "1", o.Ops.OpsToken, http.StatusBadRequest, 0, rest.Malformed.Code},
		{"unknown product", uuid.NewString(), o.Ops.OpsToken, http.StatusNotFound, 0, rest.NotFound.Code},
		{"product with three orders", product.String(), o.Ops.OpsToken, http.StatusOK, 3, ""},
		{"again", product.String(), o.Ops.OpsToken, http.StatusOK, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			defer server.Close()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				server.URL+"/ops/api/products/"+test.path+"/close-sale", http.NoBody)
			testenv.Must(t, err)
			req.Header.Set("Authorization", "Bearer "+test.token)
			resp, err := server.Client().Do(req)
			testenv.Must(t, err)
			defer resp.Body.Close()
			var answer struct {
				closesale.Closed
				Type string
			}
			testenv.Must(t, json.NewDecoder(resp.Body).Decode(&answer))
			if resp.StatusCode != test.status || answer.Orders != test.orders || test.problem != "" && answer.Type != "/problems/"+test.problem {
				t.Errorf("the answer is %d %+v, want %d, %d orders, problem %q", resp.StatusCode, answer, test.status, test.orders, test.problem)
			}
			if answer.Deadline.IsZero() != (test.status != http.StatusOK) {
				t.Errorf("the deadline is %v", answer.Deadline)
			}
		})
	}
}
