package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	"example.com/shop/internal/closesale"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
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

// TestStatsAreInContract checks the operators' figures against the contract, which describes those of all parts: it has
// each figure of the answer, and the answer has each figure that it requires.
func TestStatsAreInContract(t *testing.T) {
	contract, err := parttest.LoadContract(repositoryRoot)
	testenv.Must(t, err)
	a, o := newTestApp(t, testenv.Redis(t), 1), validOptions()
	handler, err := a.Handler()
	testenv.Must(t, err)
	get := func(path string) (*http.Request, *httptest.ResponseRecorder) {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		request.Header.Set("Authorization", "Bearer "+o.Ops.OpsToken)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return request, recorder
	}

	_, served := get("/openapi.yaml")
	var document struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	testenv.Must(t, yaml.Unmarshal(served.Body.Bytes(), &document))
	known := slices.Sorted(maps.Keys(document.Components.Schemas["Stats"].Properties))

	request, answer := get("/ops/api/stats")
	if err := contract.Check(request, answer.Code, answer.Header(), answer.Body.Bytes()); err != nil {
		t.Error(err)
	}
	var figures map[string]any
	testenv.Must(t, json.Unmarshal(answer.Body.Bytes(), &figures))
	if names := slices.Sorted(maps.Keys(figures)); !slices.Equal(names, known) {
		t.Errorf("the figures are %q, want %q as the contract describes", names, known)
	}
}
