// Package rest provides the parts that every HTTP handler shares: errors as RFC 9457 problems, request ids, the log
// and the metrics of requests, recovery from panics, customers' tokens, the reading of bodies, queries, pages and
// idempotency keys, and a server with timeouts that stops gracefully.
package rest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/shop/internal/clip"
	"example.com/shop/internal/postgres"
)

// Class is a class of error that the service reports to clients. Other packages declare further classes. The code is
// part of the API, because the type of a problem is /problems/ followed by the code.
type Class struct {
	Code   string
	Status int // the HTTP status of the answer
	Title  string
}

// The classes of error that every API has.
var (
	Malformed        = Class{"malformed-request", http.StatusBadRequest, "Malformed request"}
	Unauthorized     = Class{"unauthorized", http.StatusUnauthorized, "Not signed in"}
	CrossOrigin      = Class{"cross-origin", http.StatusForbidden, "Request from another site"}
	NotFound         = Class{"not-found", http.StatusNotFound, "Not found"}
	MethodNotAllowed = Class{"method-not-allowed", http.StatusMethodNotAllowed, "Method not allowed"}
	RequestTimeout   = Class{"request-timeout", http.StatusRequestTimeout, "Request too slow"}
	BodyTooLarge     = Class{"body-too-large", http.StatusRequestEntityTooLarge, "Request body too large"}
	MediaType        = Class{"unsupported-media-type", http.StatusUnsupportedMediaType, "Unsupported media type"}
	Invalid          = Class{"invalid-request", http.StatusUnprocessableEntity, "Invalid request"}
	KeyReused        = Class{"idempotency-key-reused", http.StatusUnprocessableEntity, "Idempotency key reused"}
	Busy             = Class{"busy", http.StatusConflict, "Already under way"}
	Unavailable      = Class{"unavailable", http.StatusServiceUnavailable, "Temporarily unavailable"}
	Overloaded       = Class{"overloaded", http.StatusServiceUnavailable, "Overloaded"}
	Internal         = Class{"internal", http.StatusInternalServerError, "Internal error"}
)

// Errorf returns an error of the class with a detail.
func (c Class) Errorf(format string, args ...any) *Error {
	return &Error{Class: c, Detail: fmt.Sprintf(format, args...)}
}

// Error is an error whose class, detail and field errors the service reports to the client.
type Error struct {
	Class  Class
	Detail string       // a sentence for the client
	Fields []FieldError // one for each wrong field, parameter and header; nil if the error has another reason
	// Extensions are further members of the problem, by their names: anything that JSON has; may be nil. See RFC 9457,
	// section 3.2.
	Extensions map[string]any
	Err        error // the cause, for the log only; may be nil
}

// FieldError describes one wrong field, parameter or header of a request. A JSON pointer (RFC 6901) names a field of
// the body.
type FieldError struct {
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"` // the name of a parameter or header
	Detail    string `json:"detail"`
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Class.Code, e.Detail, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Class.Code, e.Detail)
}

func (e *Error) Unwrap() error { return e.Err }

// AsError returns the [Error] to report to the client: err itself, or the [Error] that it wraps. For any other err it
// returns a general [Error], which discloses only whether the client should repeat the request.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if postgres.Unavailable(err) {
		return &Error{Class: Unavailable,
			Detail: "The service cannot answer right now. Repeat the request in a moment.", Err: err}
	}
	return &Error{Class: Internal,
		Detail: "The service failed to answer. Its log has the cause under the request_id.", Err: err}
}

// OutcomeUnknown replaces an error after which the database may or may not have committed. The advice tells the client
// how to find out. OutcomeUnknown returns any other error, an [Error] among them, and nil, unchanged.
func OutcomeUnknown(err error, advice string) error {
	if errors.As(err, new(*Error)) || !postgres.Unavailable(err) {
		return err
	}
	return &Error{Class: Unavailable, Detail: "The request may or may not have taken effect. " + advice, Err: err}
}

// Problem is the body of an answer that reports an error. See RFC 9457.
type Problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Instance  string       `json:"instance"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors,omitempty"`

	Extensions map[string]any `json:",inline"` // further members; see [Error]
}

// MarshalJSON puts the extensions beside the other members.
func (p Problem) MarshalJSON() ([]byte, error) {
	type members Problem // has no MarshalJSON
	return json.Marshal(members(p), json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}

// Fail answers a request with the problem for an error, and skips the handlers that follow. [AsError] decides how much
// of the error the client sees.
func Fail(c *gin.Context, err error) {
	_ = c.Error(err) // for Log
	e := AsError(err)
	e.setHeaders(c.Writer.Header())
	c.AbortWithStatusJSON(e.Class.Status, e.problem(c.Request.URL.Path, c.GetString(requestIDKey)))
}

// Reject answers a request with the problem for an error, outside of gin and without middleware.
func Reject(w http.ResponseWriter, r *http.Request, e *Error) {
	id := idOf(r)
	h := w.Header()
	h.Set("X-Request-ID", id)
	h.Set("Cache-Control", "no-store")
	e.setHeaders(h)
	w.WriteHeader(e.Class.Status)
	_ = json.MarshalWrite(w, e.problem(r.URL.Path, id)) // the client may have gone
}

func (e *Error) setHeaders(h http.Header) {
	switch e.Class.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case http.StatusRequestTimeout:
		h.Set("Connection", "close") // RFC 9110, section 15.5.9
	}
	h.Set("Content-Type", "application/problem+json")
}

func (e *Error) problem(path, requestID string) Problem {
	return Problem{
		Type: "/problems/" + e.Class.Code, Title: e.Class.Title, Status: e.Class.Status, Detail: e.Detail,
		Instance: path, RequestID: requestID, Errors: e.Fields, Extensions: e.Extensions,
	}
}

const noPage = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>Not found</title><p>There is nothing at this address. <a href="/">Go to the start</a>.</p></html>
`

// NoRoute answers requests for paths that do not exist. A browser that asks for a page outside of the APIs gets a page,
// not a problem.
func NoRoute(c *gin.Context) {
	if !strings.Contains(c.Request.URL.Path, "/api/") && c.NegotiateFormat(gin.MIMEJSON, gin.MIMEHTML) == gin.MIMEHTML {
		c.Data(http.StatusNotFound, "text/html; charset=utf-8", []byte(noPage))
		return
	}
	Fail(c, NotFound.Errorf("There is nothing at %s.", clip.Text(c.Request.URL.Path, 256)))
}

// NoMethod answers requests with a method that the path does not support.
func NoMethod(c *gin.Context) {
	Fail(c, MethodNotAllowed.Errorf("%s does not support the method %s.",
		clip.Text(c.Request.URL.Path, 256), clip.Text(c.Request.Method, 32)))
}

// Handle returns a gin handler that calls do and answers its error with [Fail].
func Handle(do func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := do(c); err != nil {
			Fail(c, err)
		}
	}
}
