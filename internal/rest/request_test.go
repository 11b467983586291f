package rest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// newAPI returns an API of things. Its handlers read requests with the functions of this package, and answer 200.
func newAPI() http.Handler {
	r := parttest.NewRouter(slog.New(slog.DiscardHandler))
	r.POST("/things", rest.Parameters(), rest.Handle(createThing))
	r.GET("/things", rest.Parameters("limit", "cursor"), rest.Handle(func(c *gin.Context) error {
		_, err := rest.ReadPage(c)
		return err
	}))
	r.GET("/things/:id", rest.Parameters(), rest.Handle(readThingID))
	r.POST("/things/:id/start", rest.Parameters(), rest.Handle(func(c *gin.Context) error {
		if err := rest.RequireEmptyBody(c); err != nil {
			return err
		}
		return readThingID(c)
	}))
	return r
}

// createThing reads a thing: an object with the field parts, an array of objects with the field name.
func createThing(c *gin.Context) error {
	if _, err := rest.IdempotencyKey(c); err != nil {
		return err
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return err
	}
	errs := body.UnknownFields("", "parts")
	parts, _ := body["parts"].([]any)
	for i, part := range parts {
		fields, _ := part.(map[string]any)
		errs = append(errs, rest.Object(fields).UnknownFields(fmt.Sprintf("/parts/%d", i), "name")...)
	}
	if len(errs) > 0 {
		return rest.InvalidFields(errs...)
	}
	return nil
}

func readThingID(c *gin.Context) error {
	_, err := rest.PathID(c, "a thing")
	return err
}

const thing, thingID = `{"parts":[{"name":"a"}]}`, "01900000-0000-7000-8000-000000000001"

// TestInvalidRequests checks the problem that answers each form of invalid request.
func TestInvalidRequests(t *testing.T) {
	h := newAPI()
	for name, test := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		class              rest.Class
		fields             []string // pointers and parameters of the field errors
	}{
		"no body": {"POST", "/things", "", []string{"Content-Type: application/json"}, 400,
			rest.Malformed, nil},
		"not JSON":     {"POST", "/things", `parts=1`, nil, 400, rest.Malformed, nil},
		"second value": {"POST", "/things", thing + thing, nil, 400, rest.Malformed, nil},
		"duplicate field": {"POST", "/things", `{"parts":[],` + thing[1:], nil, 400, rest.Malformed,
			nil},
		"duplicate field of a part": {"POST", "/things", `{"parts":[{"name":"a","name":"b"}]}`, nil, 400,
			rest.Malformed, nil},
		"nested too deeply": {"POST", "/things", strings.Repeat("[", 15_000), nil, 400, rest.Malformed,
			nil},
		"not UTF-8":             {"POST", "/things", "{\"parts\":[\"\xff\"]}", nil, 400, rest.Malformed, nil},
		"half a surrogate pair": {"POST", "/things", `{"parts":["\ud800"]}`, nil, 400, rest.Malformed, nil},
		"compressed body": {"POST", "/things", thing, []string{"Content-Encoding: gzip"}, 415,
			rest.MediaType, nil},
		"no content type": {"POST", "/things", thing, []string{"Content-Type: "}, 415, rest.MediaType,
			nil},
		"text content type": {"POST", "/things", thing, []string{"Content-Type: text/plain"}, 415,
			rest.MediaType, nil},
		"form content type": {"POST", "/things", thing,
			[]string{"Content-Type: application/x-www-form-urlencoded"}, 415, rest.MediaType, nil},
		"unsupported charset": {"POST", "/things", thing,
			[]string{"Content-Type: application/json; charset=latin1"}, 415, rest.MediaType, nil},
		"body over the limit": {"POST", "/things", `{"parts":"` + strings.Repeat("x", 16<<10) + `"}`, nil,
			413, rest.BodyTooLarge, nil},
		"body and spaces over the limit": {"POST", "/things", thing + strings.Repeat(" ", 16<<10), nil, 413,
			rest.BodyTooLarge, nil},
		"array as body": {"POST", "/things", `[]`, nil, 422, rest.Invalid, []string{""}},
		"null as body":  {"POST", "/things", `null`, nil, 422, rest.Invalid, []string{""}},
		"unknown fields": {"POST", "/things", `{"parts":[{"name":"a"}],"Parts":1,"a/b~c":2}`, nil, 422,
			rest.Invalid, []string{"/Parts", "/a~1b~0c"}},
		"number beyond float64": {"POST", "/things", `{"parts":[{"name":"a"},{"name":-1e400}]}`, nil, 422,
			rest.Invalid, []string{"/parts/1/name"}},
		"unknown fields of parts": {"POST", "/things", `{"parts":[{"x":1},{"name":"a"},{"name":"a","y":1}]}`,
			nil, 422, rest.Invalid, []string{"/parts/0/x", "/parts/2/y"}},
		"empty idempotency key": {"POST", "/things", thing, []string{"Idempotency-Key: "}, 400,
			rest.Malformed, []string{"Idempotency-Key"}},
		"idempotency key too long": {"POST", "/things", thing,
			[]string{"Idempotency-Key: " + strings.Repeat("k", 256)}, 400, rest.Malformed, []string{"Idempotency-Key"}},
		"idempotency key not printable": {"POST", "/things", thing, []string{"Idempotency-Key: a\tb"}, 400,
			rest.Malformed, []string{"Idempotency-Key"}},
		"idempotency key not ASCII": {"POST", "/things", thing, []string{"Idempotency-Key: clé"}, 400,
			rest.Malformed, []string{"Idempotency-Key"}},
		"two idempotency keys": {"POST", "/things", thing,
			[]string{"Idempotency-Key: a", "Idempotency-Key: b"}, 400, rest.Malformed, []string{"Idempotency-Key"}},
		"id not a UUID": {"GET", "/things/1", "", nil, 400, rest.Malformed, []string{"id"}},
		"UUID without hyphens": {"GET", "/things/" + strings.ReplaceAll(thingID, "-", ""), "", nil, 400,
			rest.Malformed, []string{"id"}},
		"UUID in braces": {"GET", "/things/%7B" + thingID + "%7D", "", nil, 400, rest.Malformed,
			[]string{"id"}},
		"start: id not a UUID": {"POST", "/things/1/start", "", nil, 400, rest.Malformed, []string{"id"}},
		"start: body with a field": {"POST", "/things/" + thingID + "/start", `{"speed":1}`, nil, 422,
			rest.Invalid, []string{"/speed"}},
		"start: text body": {"POST", "/things/" + thingID + "/start", `1`,
			[]string{"Content-Type: text/plain"}, 415, rest.MediaType, nil},
		"limit 0":     {"GET", "/things?limit=0", "", nil, 400, rest.Malformed, []string{"limit"}},
		"limit 101":   {"GET", "/things?limit=101", "", nil, 400, rest.Malformed, []string{"limit"}},
		"empty limit": {"GET", "/things?limit=", "", nil, 400, rest.Malformed, []string{"limit"}},
		"bad limit and cursor": {"GET", "/things?limit=ten&cursor=x", "", nil, 400, rest.Malformed,
			[]string{"limit", "cursor"}},
		"cursor not base64": {"GET", "/things?cursor=%00%ff", "", nil, 400, rest.Malformed,
			[]string{"cursor"}},
		"duplicate limit": {"GET", "/things?limit=1&limit=2", "", nil, 400, rest.Malformed,
			[]string{"limit"}},
		"unknown parameters": {"GET", "/things?limit=1&page=2&Cursor=x", "", nil, 400, rest.Malformed,
			[]string{"Cursor", "page"}},
		"parameter of another route": {"POST", "/things?limit=1", thing, nil, 400, rest.Malformed,
			[]string{"limit"}},
		"malformed query":        {"GET", "/things?limit=%zz", "", nil, 400, rest.Malformed, nil},
		"semicolon in the query": {"GET", "/things?limit=1;cursor=x", "", nil, 400, rest.Malformed, nil},
		"unknown path":           {"GET", "/nothing", "", nil, 404, rest.NotFound, nil},
		"method not allowed":     {"DELETE", "/things", "", nil, 405, rest.MethodNotAllowed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := send(t, h, test.method, test.path, test.body, test.headers...)
			problem := checkProblem(t, a.Code, a.Header(), a.Body.Bytes(), test.status, test.class)
			target, err := url.Parse(test.path)
			testenv.Must(t, err)
			if problem.Instance != target.Path {
				t.Errorf("the instance is %q, want %q", problem.Instance, target.Path)
			}
			var fields []string
			for _, e := range problem.Errors {
				fields = append(fields, e.Pointer+e.Parameter)
				if e.Detail == "" {
					t.Errorf("the field error %+v has no detail", e)
				}
			}
			if !slices.Equal(fields, test.fields) {
				t.Errorf("field errors are at %q, want %q", fields, test.fields)
			}
		})
	}
}

// checkProblem checks the problem in an answer, and returns it.
func checkProblem(t *testing.T, code int, header http.Header, body []byte, status int, class rest.Class) rest.Problem {
	t.Helper()
	var p rest.Problem
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("answer of status %d: %v: %s", code, err, body)
	}
	if code != status || p.Status != status || p.Type != "/problems/"+class.Code {
		t.Errorf("the answer is %d %s, want %d and %s", code, body, status, class.Code)
	}
	if p.Title != class.Title || p.Title == "" || p.Detail == "" {
		t.Errorf("the problem lacks the title %q or a detail: %s", class.Title, body)
	}
	if id := header.Get("X-Request-Id"); id == "" || p.RequestID != id {
		t.Errorf("the request id is %q in the problem and %q in the header, want the same", p.RequestID, id)
	}
	if got := header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("the content type of the problem is %q, want application/problem+json", got)
	}
	if part := testenv.FindLeak(body); part != "" {
		t.Errorf("the problem discloses %q, which is internal: %s", part, body)
	}
	return p
}

// TestMalformedBodyDetail checks that the detail of the problem says where a body is wrong, and clips long names.
func TestMalformedBodyDetail(t *testing.T) {
	h := newAPI()
	long := strings.Repeat("n", 1000)
	for body, want := range map[string]string{
		"  ":                               "The body is empty or incomplete.",
		`{"parts":[{"name":"a"`:            "The body is empty or incomplete.",
		`{"parts":[{"a/b":1,"a/b":2}]}`:    `(JSON pointer "/parts/0/a~1b", after byte 19).`,
		`{"` + long + `":0,"` + long + `"`: `(JSON pointer "/` + long[:99] + `…", after byte 1006).`,
	} {
		a := send(t, h, "POST", "/things", body, "Content-Type: application/json")
		p := checkProblem(t, a.Code, a.Header(), a.Body.Bytes(), 400, rest.Malformed)
		if !strings.HasSuffix(p.Detail, want) {
			t.Errorf("the detail for %q is %q, want %q at its end", body, p.Detail, want)
		}
	}
}

// TestValidRequests sends valid requests, some of them at a limit. It shows that the handlers of [TestInvalidRequests]
// do not simply reject every request.
func TestValidRequests(t *testing.T) {
	h := newAPI()
	for name, test := range map[string]struct {
		method, path, body string
		headers            []string
	}{
		"thing":               {"POST", "/things", thing, nil},
		"UTF-8":               {"POST", "/things", thing, []string{"Content-Type: application/json; charset=UTF-8"}},
		"identity encoding":   {"POST", "/things", thing, []string{"Content-Encoding: identity"}},
		"large number":        {"POST", "/things", `{"parts":[{"name":1e300}]}`, nil},
		"16 KiB":              {"POST", "/things", thing + strings.Repeat(" ", 16<<10-len(thing)), nil},
		"idempotency key":     {"POST", "/things", thing, []string{"Idempotency-Key: ~ " + strings.Repeat("k", 253)}},
		"UUID":                {"GET", "/things/" + thingID, "", nil},
		"start":               {"POST", "/things/" + thingID + "/start", "", nil},
		"start: empty object": {"POST", "/things/" + thingID + "/start", "{}", nil},
		"first page":          {"GET", "/things", "", nil},
		"limit 1":             {"GET", "/things?limit=1", "", nil},
		"limit 100, cursor": {"GET", "/things?limit=100&cursor=" + keyset.Cursor{At: time.UnixMicro(1)}.String(), "",
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			if a := send(t, h, test.method, test.path, test.body, test.headers...); a.Code != http.StatusOK {
				t.Errorf("the answer is %d %s, want 200", a.Code, a.Body)
			}
		})
	}
}

// TestBodyReadTimeout sends requests whose body does not arrive within the server's ReadTimeout, or only in part.
func TestBodyReadTimeout(t *testing.T) {
	server := httptest.NewUnstartedServer(newAPI())
	server.Config.ReadHeaderTimeout, server.Config.ReadTimeout = time.Minute, 100*time.Millisecond
	server.Start()
	defer server.Close()
	for _, path := range []string{"/things", "/things/" + thingID + "/start"} {
		for _, part := range []string{"", `{"parts":`} {
			t.Run(fmt.Sprintf("%q to %s", part, path), func(t *testing.T) {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				testenv.Must(t, err)
				defer conn.Close()
				fmt.Fprintf(conn,
					"POST %s HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n%s", path, part)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				testenv.Must(t, err)
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				testenv.Must(t, err)
				checkProblem(t, resp.StatusCode, resp.Header, body, 408, rest.RequestTimeout)
				if !resp.Close {
					t.Errorf("the headers are %v, want Connection: close", resp.Header)
				}
			})
		}
	}
}

// TestRequireEmptyBody sends bodies of unknown length, which are chunked, and may be empty.
func TestRequireEmptyBody(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/", rest.Handle(rest.RequireEmptyBody))
	for _, text := range []string{"", "{}"} {
		request := httptest.NewRequestWithContext(t.Context(), "POST", "/", io.MultiReader(strings.NewReader(text)))
		request.Header.Set("Content-Type", "application/json")
		if request.ContentLength != -1 {
			t.Fatalf("the length of the body is %d, want -1", request.ContentLength)
		}
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, request)
		if recorder.Code != http.StatusOK {
			t.Errorf("the answer to %q is %d %s, want 200", text, recorder.Code, recorder.Body)
		}
	}
}
