package order

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
)

const (
	maxBody      = 16 << 10 // bytes
	maxKeyLength = 255
	defaultLimit = 20
	maxLimit     = 100
)

// object is a JSON object as it came. It is looked through by hand, and not decoded into a struct, so that
// everything that is wrong with it can be named at once.
type object map[string]any

// unknown names the fields that an object at a JSON pointer should not have.
func (o object) unknown(at string, known ...string) []Fault {
	var faults []Fault
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(known, name) {
			escaped := strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
			faults = append(faults, Fault{Pointer: at + "/" + escaped, Detail: "is not a known field"})
		}
	}
	return faults
}

// readObject reads a request's body: one JSON object, and nothing after it.
func readObject(c *gin.Context) (object, error) {
	media, params, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	charset := cmp.Or(params["charset"], "utf-8")
	if err != nil || media != "application/json" || !strings.EqualFold(charset, "utf-8") {
		return nil, Errorf(CodeMediaType, "The body must be application/json in UTF-8, and the Content-Type header must say so.")
	}
	if encoding := c.GetHeader("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, Errorf(CodeMediaType, "The body must not have a Content-Encoding.")
	}
	body, err := readJSON(http.MaxBytesReader(c.Writer, c.Request.Body, maxBody))
	if err != nil {
		return nil, unreadable(err)
	}
	fields, ok := body.(map[string]any)
	if !ok {
		return nil, invalid(Fault{Pointer: "", Detail: "must be an object"})
	}
	return fields, nil
}

// readJSON reads one JSON value, and nothing after it. It does so token by token, because a [json.Decoder] takes the
// last of several fields of one name, and another reader of the same body may take the first: RFC 8259, section 4.
func readJSON(r io.Reader) (any, error) {
	decoder := json.NewDecoder(r)
	decoder.UseNumber()
	value, err := nextValue(decoder, 0)
	if err != nil {
		return nil, err
	}
	switch _, err := decoder.Token(); {
	case err == nil:
		return nil, jsonError("there is more after the first value")
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return value, nil
}

// jsonError says why a body is not one JSON value that can be read here.
type jsonError string

func (e jsonError) Error() string { return string(e) }

// maxDepth is more than any request needs.
const maxDepth = 10

func nextValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	switch {
	case errors.Is(err, io.EOF) && depth > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case depth > maxDepth:
		return nil, jsonError(fmt.Sprintf("it is nested deeper than %d levels", maxDepth))
	}
	switch token {
	case json.Delim('{'):
		return nextObject(d, depth)
	case json.Delim('['):
		return nextArray(d, depth)
	}
	return token, nil
}

func nextObject(d *json.Decoder, depth int) (any, error) {
	fields := map[string]any{}
	for d.More() {
		name, err := nextValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		if _, twice := fields[name.(string)]; twice { // the decoder lets only strings be names
			return nil, jsonError(fmt.Sprintf("it has the field %q twice", clip(name.(string), 100)))
		}
		if fields[name.(string)], err = nextValue(d, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := nextValue(d, depth+1) // the end
	return fields, err
}

func nextArray(d *json.Decoder, depth int) (any, error) {
	values := []any{}
	for d.More() {
		value, err := nextValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	_, err := nextValue(d, depth+1) // the end
	return values, err
}

// unreadable is the answer to a body that cannot be read. The text of an error of the connection is not for the client:
// it has addresses in it.
func unreadable(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &Error{Code: CodeBodyTooLarge, Detail: fmt.Sprintf("The body is larger than %d bytes.", maxBody), Err: err}
	}
	_, notJSON := errors.AsType[*json.SyntaxError](err)
	_, unfit := errors.AsType[jsonError](err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Error{Code: CodeRequestTimeout, Detail: "The body did not come in time. Send it at once, after the headers.", Err: err}
	case errors.Is(err, io.EOF):
		return &Error{Code: CodeMalformed, Detail: "The body is empty.", Err: err}
	case notJSON, unfit, errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Code: CodeMalformed, Detail: fmt.Sprintf("The body is not one JSON value: %v.", err), Err: err}
	default:
		return &Error{Code: CodeMalformed, Detail: "The body cannot be read.", Err: err}
	}
}

func invalid(faults ...Fault) error {
	return &Error{Code: CodeInvalid, Detail: "The request is not one that can be served.", Faults: faults}
}

func malformed(faults ...Fault) error {
	return &Error{Code: CodeMalformed, Detail: "The request is not well-formed.", Faults: faults}
}

// ReadNothing refuses a body that says more than {}: what it asks for would not be done.
func ReadNothing(c *gin.Context) error {
	buffered := bufio.NewReaderSize(c.Request.Body, 16)
	switch _, err := buffered.Peek(1); {
	case errors.Is(err, io.EOF): // whatever its length was said to be
		return nil
	case err != nil:
		return unreadable(err)
	}
	c.Request.Body = struct {
		io.Reader
		io.Closer
	}{buffered, c.Request.Body}
	body, err := readObject(c)
	if err != nil {
		return err
	}
	if faults := body.unknown(""); len(faults) > 0 {
		return invalid(faults...)
	}
	return nil
}

func readPlacement(c *gin.Context) (Placement, error) {
	key, err := idempotencyKey(c.Request.Header)
	if err != nil {
		return Placement{}, err
	}
	body, err := readObject(c)
	if err != nil {
		return Placement{}, err
	}
	lines, faults := readLines(body)
	p := Placement{IdempotencyKey: key, Lines: lines}
	if faults = append(faults, p.faults()...); len(faults) > 0 {
		return Placement{}, invalid(faults...)
	}
	return p, nil
}

// readLines takes the lines from a placement's body and names the fields that it should not have. What is
// missing or of another type is left zero, which is no line that can be placed.
func readLines(body object) ([]Line, []Fault) {
	faults := body.unknown("", "items")
	items, _ := body["items"].([]any)
	lines := make([]Line, len(items))
	for i, item := range items {
		fields, _ := item.(map[string]any)
		faults = append(faults, object(fields).unknown(fmt.Sprintf("/items/%d", i), "product_id", "quantity")...)
		if id, ok := fields["product_id"].(string); ok {
			lines[i].ProductID, _ = parseID(id)
		}
		if quantity, ok := fields["quantity"].(json.Number); ok {
			lines[i].Quantity, _ = strconv.ParseInt(quantity.String(), 10, 64)
		}
	}
	return lines, faults
}

// idempotencyKey reads the optional header. A key that is there must be one that can be told from others.
func idempotencyKey(h http.Header) (string, error) {
	keys := h.Values("Idempotency-Key")
	switch {
	case len(keys) == 0:
		return "", nil
	case len(keys) > 1:
		return "", malformed(Fault{Parameter: "Idempotency-Key", Detail: "must be sent once"})
	case len(keys[0]) < 1 || len(keys[0]) > maxKeyLength || strings.ContainsFunc(keys[0], notPrintable):
		return "", malformed(Fault{Parameter: "Idempotency-Key",
			Detail: fmt.Sprintf("must be 1 to %d printable ASCII characters", maxKeyLength)})
	}
	return keys[0], nil
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

// readOrderID reads the id in a path, and has it logged.
func readOrderID(c *gin.Context) (uuid.UUID, error) {
	id, err := parseID(c.Param("id"))
	if err != nil {
		return uuid.Nil, malformed(Fault{Parameter: "id", Detail: "must be the UUID of an order"})
	}
	c.Set(orderIDKey, id.String())
	return id, nil
}

// page is which part of a list is asked for.
type page struct {
	after *Cursor // nil: the first
	limit int
}

// Parameters refuses queries that are not well-formed, parameters that the route does not know, and those that are
// given twice: what they ask for would not be done.
func Parameters(known ...string) gin.HandlerFunc {
	return Handle(func(c *gin.Context) error {
		query, err := url.ParseQuery(c.Request.URL.RawQuery)
		if err != nil {
			return &Error{Code: CodeMalformed, Detail: "The query is not well-formed: pairs of name=value are parted by &, " +
				"and other characters than letters and digits are percent-encoded.", Err: err}
		}
		var faults []Fault
		for _, name := range slices.Sorted(maps.Keys(query)) {
			switch {
			case !slices.Contains(known, name):
				faults = append(faults, Fault{Parameter: clip(name, 100), Detail: "is not a known parameter"})
			case len(query[name]) > 1:
				faults = append(faults, Fault{Parameter: name, Detail: "must be given once"})
			}
		}
		if len(faults) > 0 {
			return malformed(faults...)
		}
		return nil
	})
}

func readPage(c *gin.Context) (page, error) {
	p := page{limit: defaultLimit}
	var faults []Fault
	if text, ok := c.GetQuery("limit"); ok {
		var err error
		if p.limit, err = strconv.Atoi(text); err != nil || p.limit < 1 || p.limit > maxLimit {
			faults = append(faults, Fault{Parameter: "limit", Detail: fmt.Sprintf("must be a whole number from 1 to %d", maxLimit)})
		}
	}
	if text, ok := c.GetQuery("cursor"); ok {
		after, err := ParseCursor(text)
		if err != nil {
			faults = append(faults, Fault{Parameter: "cursor", Detail: "must be the next_cursor of an earlier page"})
		}
		p.after = &after
	}
	if len(faults) > 0 {
		return page{}, malformed(faults...)
	}
	return p, nil
}
