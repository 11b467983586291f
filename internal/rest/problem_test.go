package rest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv/parttest"
)

// TestProblemWithExtensions checks that extensions stand beside the other members of a problem, and that a problem
// without them has no further members.
func TestProblemWithExtensions(t *testing.T) {
	const none = `"type":"","title":"","status":0,"detail":"","instance":"","request_id":""`
	for want, problem := range map[string]rest.Problem{
		"{" + none + "}":                       {},
		"{" + none + `,"open_rows":["a","b"]}`: {Extensions: map[string]any{"open_rows": []string{"a", "b"}}},
		"{" + none + `,"errors":[{"detail":"d"}],"x":1,"y":"}"}`: {
			Errors: []rest.FieldError{{Detail: "d"}}, Extensions: map[string]any{"x": 1, "y": "}"},
		},
	} {
		got, err := json.Marshal(problem)
		if err != nil || string(got) != want {
			t.Errorf("the problem is %s, %v; want %s", got, err, want)
		}
	}
	body, err := json.Marshal(rest.Problem{Instance: "/<\xff", Extensions: map[string]any{"x": "\xff"}})
	var decoded struct{ Instance, X string }
	if err := errors.Join(err, json.Unmarshal(body, &decoded)); err != nil || decoded.Instance != "/<\ufffd" ||
		decoded.X != "\ufffd" {
		t.Errorf("a problem with texts that are not UTF-8 is %s, %v; want U+FFFD in them", body, err)
	}
	if _, err := json.Marshal(rest.Problem{Extensions: map[string]any{"x": func() {}}}); err == nil {
		t.Error("a problem with an extension that is no JSON is marshalled without an error")
	}
}

// TestLevelOfRequests checks the level of the line that Log writes for an answer. Requests rejected because of
// overload are many, and have the level DEBUG.
func TestLevelOfRequests(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	text := &bytes.Buffer{}
	log := slog.New(slog.NewJSONHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := gin.New()
	r.Use(rest.RequestID(), rest.Log(log, "/quiet", "/quiet/error"))
	answer := func(err error) gin.HandlerFunc { return rest.Handle(func(*gin.Context) error { return err }) }
	r.GET("/", answer(nil))
	r.GET("/quiet", answer(nil))
	r.GET("/quiet/error", answer(errors.New("failed")))
	r.GET("/overloaded", answer(rest.Overloaded.Errorf("too many")))
	r.GET("/unavailable", answer(rest.Unavailable.Errorf("down")))
	r.GET("/not-found", answer(rest.NotFound.Errorf("none")))
	for path, test := range map[string]struct {
		level  string
		status int
	}{
		"/": {"INFO", 200}, "/quiet": {"DEBUG", 200}, "/quiet/error": {"ERROR", 500}, "/overloaded": {"DEBUG", 503},
		"/unavailable": {"ERROR", 503}, "/not-found": {"INFO", 404},
	} {
		text.Reset()
		a := parttest.Send(t, r, "GET", path, "")
		var line struct {
			Level  string
			Path   string
			Status int
		}
		if err := json.Unmarshal(text.Bytes(), &line); err != nil {
			t.Fatalf("%s: the log is %q: %v", path, text, err)
		}
		if line.Level != test.level || line.Path != path || line.Status != test.status || a.Code != test.status {
			t.Errorf("the answer to %s has status %d, and the log the line %s; want level %s and status %d", path,
				a.Code, text, test.level, test.status)
		}
		if retry := a.Header().Get("Retry-After"); (retry == "1") != (test.status == 503) {
			t.Errorf("the answer to %s has Retry-After %q", path, retry)
		}
	}
}
