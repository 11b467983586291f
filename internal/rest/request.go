package rest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"example.com/shop/internal/clip"
	"example.com/shop/internal/keyset"
)

const (
	maxBody      = 16 << 10 // bytes
	maxKeyLength = 255      // bytes of an idempotency key
	defaultLimit = 20       // items of a page, unless the client sets a limit
	maxLimit     = 100      // items of a page
)

// ReadMethods are the methods of a route that changes nothing. net/http sends no body in answer to HEAD.
var ReadMethods = []string{http.MethodGet, http.MethodHead}

// Object is a decoded JSON object. It is a map and not a struct, so that a handler can report all wrong fields at
// once. A number is a float64, which [Integer] reads.
type Object map[string]any

// UnknownFields returns an error for each field that is not known. at is the JSON pointer to the object, "" for the
// whole body.
func (o Object) UnknownFields(at string, known ...string) []FieldError {
	var errs []FieldError
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(known, name) {
			pointer := string(jsontext.Pointer(at).AppendToken(name))
			errs = append(errs, FieldError{Pointer: pointer, Detail: "is not a known field"})
		}
	}
	return errs
}

// Text returns the text of a field of the body without the blanks around it, and an error unless it has 1 to most
// characters. PostgreSQL stores no text with the character NUL.
func (o Object) Text(field string, most int) (string, []FieldError) {
	text, _ := o[field].(string)
	text = strings.TrimSpace(text)
	if n := utf8.RuneCountInString(text); n < 1 || n > most || strings.ContainsRune(text, 0) {
		detail := fmt.Sprintf("must be a text of 1 to %d characters, not only blanks", most)
		return text, []FieldError{{Pointer: "/" + field, Detail: detail}}
	}
	return text, nil
}

// ReadObject reads the body of a request: one JSON object of at most 16 KiB in UTF-8. It returns an [Error] for any
// other body.
func ReadObject(c *gin.Context) (Object, error) {
	media, params, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	charset := cmp.Or(params["charset"], "utf-8")
	if err != nil || media != "application/json" || !strings.EqualFold(charset, "utf-8") {
		return nil, MediaType.Errorf("The body must be application/json in UTF-8, " +
			"and the Content-Type header must say so.")
	}
	if encoding := c.GetHeader("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, MediaType.Errorf("The body must not have a Content-Encoding.")
	}
	// The package json rejects an object that has two fields with the same name, because programs differ in which of
	// them they read. It also rejects text that is not UTF-8.
	var body any
	err = json.UnmarshalRead(http.MaxBytesReader(c.Writer, c.Request.Body, maxBody), &body)
	if err != nil {
		return nil, bodyError(err)
	}
	fields, ok := body.(map[string]any)
	if !ok {
		return nil, InvalidFields(FieldError{Pointer: "", Detail: "must be an object"})
	}
	return fields, nil
}

// Integer returns the value of a field if it is an integer between -2^53 and 2^53, because every program reads these
// integers alike (RFC 8259, section 6). As in JSON Schema, only the value counts: 1.0 and 10e-1 are the integer 1.
func Integer(value any) (n int64, ok bool) {
	number, ok := value.(float64)
	if !ok || number != math.Trunc(number) || math.Abs(number) >= 1<<53 {
		return 0, false
	}
	return int64(number), true
}

// RequireEmptyBody accepts a request without a body, or with the body {}. It rejects any other body, because the
// service would ignore its content.
func RequireEmptyBody(c *gin.Context) error {
	body := bufio.NewReader(c.Request.Body)
	if _, err := body.Peek(1); errors.Is(err, io.EOF) { // Content-Length does not tell: a chunked body may be empty
		return nil
	}
	c.Request.Body = io.NopCloser(body)
	fields, err := ReadObject(c)
	if err != nil {
		return err
	}
	if errs := fields.UnknownFields(""); len(errs) > 0 {
		return InvalidFields(errs...)
	}
	return nil
}

// bodyError returns the [Error] for a body that could not be read. An error of the connection contains addresses, so
// the client does not see its text.
func bodyError(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &Error{Class: BodyTooLarge, Detail: fmt.Sprintf("The body is larger than %d bytes.", maxBody), Err: err}
	}
	if large, ok := errors.AsType[*json.SemanticError](err); ok { // only a number that is too large causes this error
		return InvalidFields(FieldError{Pointer: string(large.JSONPointer), Detail: "is too large a number"})
	}
	syntax, isSyntax := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Error{Class: RequestTimeout,
			Detail: "The body did not arrive in time. Send it at once, after the headers.", Err: err}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Class: Malformed, Detail: "The body is empty or incomplete.", Err: err}
	case isSyntax:
		detail := fmt.Sprintf("The body is not acceptable JSON: %v (JSON pointer %q, after byte %d).",
			syntax.Err, clip.Text(string(syntax.JSONPointer), 100), syntax.ByteOffset)
		return &Error{Class: Malformed, Detail: detail, Err: err}
	default:
		return &Error{Class: Malformed, Detail: "The service cannot read the body.", Err: err}
	}
}

// InvalidFields returns the error for well-formed JSON with wrong fields.
func InvalidFields(errs ...FieldError) error {
	return &Error{Class: Invalid, Detail: "The request has invalid fields.", Fields: errs}
}

// MalformedRequest returns the error for wrong parameters and headers.
func MalformedRequest(errs ...FieldError) error {
	return &Error{Class: Malformed, Detail: "The request is not well-formed.", Fields: errs}
}

// IdempotencyKey returns the value of the header Idempotency-Key: 1 to 255 printable ASCII characters. It returns ""
// if the request does not have the header.
func IdempotencyKey(c *gin.Context) (string, error) {
	const name = "Idempotency-Key"
	keys := c.Request.Header.Values(name)
	switch {
	case len(keys) == 0:
		return "", nil
	case len(keys) > 1:
		return "", MalformedRequest(FieldError{Parameter: name, Detail: "must be sent once"})
	case len(keys[0]) < 1 || len(keys[0]) > maxKeyLength || strings.ContainsFunc(keys[0], notPrintable):
		return "", MalformedRequest(FieldError{Parameter: name,
			Detail: fmt.Sprintf("must be 1 to %d printable ASCII characters", maxKeyLength)})
	}
	return keys[0], nil
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

// PathID reads the path parameter "id", a UUID. The error tells the client that it must be the UUID of owner, for
// instance "a customer".
func PathID(c *gin.Context, owner string) (uuid.UUID, error) {
	id, err := keyset.ParseID(c.Param("id"))
	if err != nil {
		return uuid.Nil, MalformedRequest(FieldError{Parameter: "id", Detail: "must be the UUID of " + owner})
	}
	return id, nil
}

// Parameters rejects queries that are not well-formed, and parameters that are unknown or that the client sent twice,
// because the service would ignore them.
func Parameters(known ...string) gin.HandlerFunc {
	return Handle(func(c *gin.Context) error {
		query, err := url.ParseQuery(c.Request.URL.RawQuery)
		if err != nil {
			return &Error{Class: Malformed, Detail: "The query is not well-formed. It must consist of name=value " +
				"pairs separated by &; characters other than letters and digits must be percent-encoded.", Err: err}
		}
		var errs []FieldError
		for _, name := range slices.Sorted(maps.Keys(query)) {
			switch {
			case !slices.Contains(known, name):
				errs = append(errs, FieldError{Parameter: clip.Text(name, 100), Detail: "is not a known parameter"})
			case len(query[name]) > 1:
				errs = append(errs, FieldError{Parameter: name, Detail: "must be given once"})
			}
		}
		if len(errs) > 0 {
			return MalformedRequest(errs...)
		}
		return nil
	})
}

// Page is the part of a list that a client requests.
type Page struct {
	After *keyset.Cursor // nil: the first page
	Limit int            // 1 to 100
}

// ReadPage reads the query parameters limit and cursor.
func ReadPage(c *gin.Context) (p Page, err error) {
	var errs []FieldError
	p.Limit = defaultLimit
	if text, ok := c.GetQuery("limit"); ok {
		if p.Limit, err = strconv.Atoi(text); err != nil || p.Limit < 1 || p.Limit > maxLimit {
			detail := fmt.Sprintf("must be a whole number from 1 to %d", maxLimit)
			errs = append(errs, FieldError{Parameter: "limit", Detail: detail})
		}
	}
	if text, ok := c.GetQuery("cursor"); ok {
		after, err := keyset.ParseCursor(text)
		if err != nil {
			errs = append(errs, FieldError{Parameter: "cursor", Detail: "must be the next_cursor of an earlier page"})
		}
		p.After = &after
	}
	if len(errs) > 0 {
		return Page{}, MalformedRequest(errs...)
	}
	return p, nil
}

// List is the body of an answer with a whole list.
type List[T any] struct {
	Items []T `json:"items"`
}

// ListPage is the body of an answer with one page of a list.
type ListPage[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"` // null on the last page
}

// ExtendDeadline allows a request to take longer than other requests: up to limit. It returns a context that ends
// after this time. The context does not end when the client closes the connection.
func ExtendDeadline(c *gin.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	// It fails only if the client has gone.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(limit + time.Second))
	return context.WithTimeout(context.WithoutCancel(c.Request.Context()), limit)
}
