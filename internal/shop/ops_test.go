package shop_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestStatsAreInContract checks the operators' figures against the contract, which describes those of all parts: it has
// each figure of the answer, and the answer has each figure that it requires.
func TestStatsAreInContract(t *testing.T) {
	contract, err := parttest.LoadContract(repositoryRoot)
	testenv.Must(t, err)
	a, o := newTestApp(t, testenv.Redis(t), 1), validOptions()
	handler := a.Handler()
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
	if figures["redis"] != "up" || figures["queue"] == nil {
		t.Errorf("the figures have redis %v and queue %v, want up and a queue", figures["redis"], figures["queue"])
	}
	if _, letters := get("/ops/api/dead-letters"); letters.Code != http.StatusOK {
		t.Errorf("the dead letters are answered with %d, want 200", letters.Code)
	}
}
