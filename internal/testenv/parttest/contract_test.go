package parttest_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
			if test.want == "" && err != nil || test.want != "" &&
				(err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Check returns %v, want an error with %q", err, test.want)
			}
			header.Del("X-Request-Id")
			if err := contract.Check(request, test.status, header, []byte(test.body)); err == nil ||
				!strings.Contains(err.Error(), "X-Request-Id") {
				t.Errorf("Check of an answer without a request id returns %v, want an error", err)
			}
		})
	}
}

// TestClassesAreInContract reads the classes of error from the sources that declare them. The contract's pieces in the
// folder of the package must describe each code. Those of package rest, which has no routes, are in the piece of
// package app. No two classes may have the same code.
func TestClassesAreInContract(t *testing.T) {
	sources, err := filepath.Glob("../../*/*.go")
	testenv.Must(t, err)
	declaration := regexp.MustCompile(`Class\{(?:Code: )?"([a-z-]+)"(, (?:Status: )?http\.Status\w+, (?:Title: )?"[A-Z].+"\})?`)
	seen := map[string]bool{}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		testenv.Must(t, err)
		folder := filepath.Base(filepath.Dir(name))
		if folder == "rest" {
			folder = "app"
		}
		for _, m := range declaration.FindAllStringSubmatch(string(source), -1) {
			code := m[1]
			if m[2] == "" {
				t.Errorf("the class %s has no status or no title", code)
			}
			if seen[code] {
				t.Errorf("two classes have the code %s", code)
			}
			seen[code] = true
			if !describes(t, pieces(t, folder), code) {
				t.Errorf("no piece of the contract in internal/%s describes `/problems/%s`, which %s declares", folder,
					code, name)
			}
		}
	}
	if len(seen) < 10 {
		t.Fatalf("the sources declare only the codes %v, want at least 10", seen)
	}
}

// describes reports whether one of the pieces describes a code.
func describes(t *testing.T, pieces []string, code string) bool {
	t.Helper()
	return slices.ContainsFunc(pieces, func(file string) bool {
		text, err := os.ReadFile(file)
		testenv.Must(t, err)
		return strings.Contains(string(text), "`/problems/"+code+"`")
	})
}

// pieces returns the files of this module's contract that are in a folder, which is a pattern.
func pieces(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*openapi.yaml"))
	testenv.Must(t, err)
	return files
}
