package parttest_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

const things = `
openapi: 3.0.3
info: {title: things, version: "1"}
paths:
  /things:
    get:
      responses:
        "200":
          description: the things
          content: {application/json: {schema: {type: array, items: {type: string}}}}
        "503":
          description: the service is overloaded
          content: {application/problem+json: {schema: {type: object, required: [type]}}}
`

const others = `
paths:
  /others:
    get: {responses: {"204": {description: nothing}}}
`

func load(t *testing.T, documents ...string) (*parttest.Contract, error) {
	t.Helper()
	root := t.TempDir()
	for i, document := range documents {
		folder := filepath.Join(root, "internal", strconv.Itoa(i))
		testenv.Must(t, os.MkdirAll(folder, 0o700))
		testenv.Must(t, os.WriteFile(filepath.Join(folder, "openapi.yaml"), []byte(document), 0o600))
	}
	return parttest.LoadContract(root)
}

// TestContract checks which answers the contract of two documents accepts.
func TestContract(t *testing.T) {
	contract, err := load(t, things, others)
	testenv.Must(t, err)
	const json, problem = "application/json", "application/problem+json"
	for name, test := range map[string]struct {
		request     string
		status      int
		contentType string
		body        string
		want        string // a part of the error, "" for none
	}{
		"as promised":        {"GET /things", 200, json, `["a"]`, ""},
		"the other document": {"GET /others", 204, "", "", ""},
		"wrong body":         {"GET /things", 200, json, `[1]`, "value must be a string"},
		"wrong status":       {"GET /things", 201, json, `[]`, "status"},
		"wrong content type": {"GET /things", 503, json, `{"type":"x"}`, "Content-Type"},
		"leak":               {"GET /things", 503, problem, `{"type":"dial tcp 10.0.0.1"}`, "internal"},
		"unlisted path":      {"GET /nothing", 404, problem, `{"type":"x"}`, ""},
		"unlisted method":    {"POST /things", 405, problem, `{"type":"x"}`, ""},
		"unlisted text":      {"GET /nothing", 404, "text/plain", `x`, "application/problem+json"},
		"unlisted success":   {"GET /nothing", 200, json, `{}`, "does not list"},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(test.request, " ")
			request := httptest.NewRequestWithContext(t.Context(), method, path, nil)
			header := http.Header{"X-Request-Id": {"id"}, "Content-Type": {test.contentType}}
			err := contract.Check(request, test.status, header, []byte(test.body))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Check returns %v, want an error with %q", err, test.want)
			}
			header.Del("X-Request-Id")
			if err := contract.Check(request, test.status, header, []byte(test.body)); err == nil || !strings.Contains(err.Error(), "X-Request-Id") {
				t.Errorf("Check of an answer without a request id returns %v, want an error", err)
			}
		})
	}
}

func TestLoadContractFails(t *testing.T) {
	if _, err := load(t, things, "openapi: 3.0.3"); err == nil {
		t.Error("LoadContract accepts a document without paths, want an error")
	}
	if _, err := parttest.LoadContract(t.TempDir()); err == nil {
		t.Error("LoadContract accepts a file that does not exist, want an error")
	}
}

// TestContractOfThisModule checks that the pieces of this module's contract fit together.
func TestContractOfThisModule(t *testing.T) {
	_, err := parttest.LoadContract("../../..")
	testenv.Must(t, err)
}
