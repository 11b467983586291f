package rest_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	const create, start, key = "POST /things", "POST /things/" + thingID + "/start", "Idempotency-Key"
	for _, test := range []struct {
		name, request, body string
		headers             string // separated by new lines
		class               rest.Class
		fields              string // pointers and parameters of the field errors
	}{
		{"no body", create, "", "Content-Type: application/json", rest.Malformed, ""},
		{"not JSON", create, `parts=1`, "", rest.Malformed, ""},
		{"second value", create, thing + thing, "", rest.Malformed, ""},
		{"duplicate field", create, `{"parts":[],` + thing[1:], "", rest.Malformed, ""},
		{"duplicate field of a part", create, `{"parts":[{"name":"a","name":"b"}]}`, "", rest.Malformed, ""},
		{"nested too deeply", create, strings.Repeat("[", 15_000), "", rest.Malformed, ""},
		{"not UTF-8", create, "{\"parts\":[\"\xff\"]}", "", rest.Malformed, ""},
		{"half a surrogate pair", create, `{"parts":["\ud800"]}`, "", rest.Malformed, ""},
		{"compressed body", create, thing, "Content-Encoding: gzip", rest.MediaType, ""},
		{"no content type", create, thing, "Content-Type: ", rest.MediaType, ""},
		{"text content type", create, thing, "Content-Type: text/plain", rest.MediaType, ""},
		{"unsupported charset", create, thing, "Content-Type: application/json; charset=latin1", rest.MediaType, ""},
		{"body over the limit", create, `{"parts":"` + strings.Repeat("x", 16<<10) + `"}`, "", rest.BodyTooLarge, ""},
		{"body and spaces over the limit", create, thing + strings.Repeat(" ", 16<<10), "", rest.BodyTooLarge, ""},
		{"array as body", create, `[]`, "", rest.Invalid, "the body"},
		{"null as body", create, `null`, "", rest.Invalid, "the body"},
		{"unknown fields", create, `{"parts":[{"name":"a"}],"Parts":1,"a/b~c":2}`, "", rest.Invalid, "/Parts /a~1b~0c"},
		{"number beyond float64", create, `{"parts":[{"name":-1e400}]}`, "", rest.Invalid, "/parts/0/name"},
		{"unknown fields of parts", create, `{"parts":[{"x":1},{"name":"a"},{"name":"a","y":1}]}`, "", rest.Invalid,
			"/parts/0/x /parts/2/y"},
		{"empty idempotency key", create, thing, key + ": ", rest.Malformed, key},
		{"idempotency key too long", create, thing, key + ": " + strings.Repeat("k", 256), rest.Malformed, key},
		{"idempotency key not printable", create, thing, key + ": a\tb", rest.Malformed, key},
		{"idempotency key not ASCII", create, thing, key + ": clé", rest.Malformed, key},
		{"two idempotency keys", create, thing, key + ": a\n" + key + ": b", rest.Malformed, key},
		{"id not a UUID", "GET /things/1", "", "", rest.Malformed, "id"},
		{"UUID without hyphens", "GET /things/" + strings.ReplaceAll(thingID, "-", ""), "", "", rest.Malformed, "id"},
		{"UUID in braces", "GET /things/%7B" + thingID + "%7D", "", "", rest.Malformed, "id"},
		{"start: id not a UUID", "POST /things/1/start", "", "", rest.Malformed, "id"},
		{"start: body with a field", start, `{"speed":1}`, "", rest.Invalid, "/speed"},
		{"start: text body", start, `1`, "Content-Type: text/plain", rest.MediaType, ""},
		{"limit 0", "GET /things?limit=0", "", "", rest.Malformed, "limit"},
		{"limit 101", "GET /things?limit=101", "", "", rest.Malformed, "limit"},
		{"empty limit", "GET /things?limit=", "", "", rest.Malformed, "limit"},
		{"bad limit and cursor", "GET /things?limit=ten&cursor=x", "", "", rest.Malformed, "limit cursor"},
		{"cursor not base64", "GET /things?cursor=%00%ff", "", "", rest.Malformed, "cursor"},
		{"duplicate limit", "GET /things?limit=1&limit=2", "", "", rest.Malformed, "limit"},
		{"unknown parameters", "GET /things?limit=1&page=2&Cursor=x", "", "", rest.Malformed, "Cursor page"},
		{"parameter of another route", "POST /things?limit=1", thing, "", rest.Malformed, "limit"},
		{"malformed query", "GET /things?limit=%zz", "", "", rest.Malformed, ""},
		{"semicolon in the query", "GET /things?limit=1;cursor=x", "", "", rest.Malformed, ""},
		{"unknown path", "GET /nothing", "", "", rest.NotFound, ""},
		{"method not allowed", "DELETE /things", "", "", rest.MethodNotAllowed, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			method, path, _ := strings.Cut(test.request, " ")
			var headers []string
			if test.headers != "" {
				headers = strings.Split(test.headers, "\n")
			}
			a := parttest.Send(t, h, method, path, test.body, headers...)
			problem := checkProblem(t, a.Code, a.Header(), a.Body.Bytes(), test.class)
			target, err := url.Parse(path)
			testenv.Must(t, err)
			if problem.Instance != target.Path {
				t.Errorf("the instance is %q, want %q", problem.Instance, target.Path)
			}
			var fields []string
			for _, e := range problem.Errors {
				fields = append(fields, cmp.Or(e.Pointer+e.Parameter, "the body"))
				if e.Detail == "" {
					t.Errorf("the field error %+v has no detail", e)
				}
			}
			if got := strings.Join(fields, " "); got != test.fields {
				t.Errorf("field errors are at %q, want %q", got, test.fields)
			}
		})
	}
}

// checkProblem checks the problem in an answer, and returns it.
func checkProblem(t *testing.T, code int, header http.Header, body []byte, class rest.Class) rest.Problem {
	t.Helper()
	var p rest.Problem
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("answer of status %d: %v: %s", code, err, body)
	}
	if code != class.Status || p.Status != code || p.Type != "/problems/"+class.Code {
		t.Errorf("the answer is %d %s, want %d and %s", code, body, class.Status, class.Code)
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
		a := parttest.Send(t, h, "POST", "/things", body, "Content-Type: application/json")
		p := checkProblem(t, a.Code, a.Header(), a.Body.Bytes(), rest.Malformed)
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
			if a := parttest.Send(t, h, test.method, test.path, test.body, test.headers...); a.Code != http.StatusOK {
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
				checkProblem(t, resp.StatusCode, resp.Header, body, rest.RequestTimeout)
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
