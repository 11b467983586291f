package order

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Problem is an answer that says what went wrong: RFC 9457.
type Problem struct {
	Type      string  `json:"type"`
	Title     string  `json:"title"`
	Status    int     `json:"status"`
	Detail    string  `json:"detail"`
	Instance  string  `json:"instance"`
	RequestID string  `json:"request_id"`
	Errors    []Fault `json:"errors,omitempty"`
}

// problems is how each code is told over HTTP.
var problems = map[Code]struct {
	status int
	title  string
}{
	CodeMalformed:        {http.StatusBadRequest, "Malformed request"},
	CodeUnauthorized:     {http.StatusUnauthorized, "Not signed in"},
	CodeCrossOrigin:      {http.StatusForbidden, "Request of another site"},
	CodeNotFound:         {http.StatusNotFound, "Not found"},
	CodeMethodNotAllowed: {http.StatusMethodNotAllowed, "Method not allowed"},
	CodeRequestTimeout:   {http.StatusRequestTimeout, "Request too slow"},
	CodeBodyTooLarge:     {http.StatusRequestEntityTooLarge, "Request body too large"},
	CodeMediaType:        {http.StatusUnsupportedMediaType, "Unsupported media type"},
	CodeInvalid:          {http.StatusUnprocessableEntity, "Invalid request"},
	CodeUnknownProduct:   {http.StatusUnprocessableEntity, "Unknown product"},
	CodeMixedCurrencies:  {http.StatusUnprocessableEntity, "Mixed currencies"},
	CodeKeyReused:        {http.StatusUnprocessableEntity, "Idempotency key reused"},
	CodeOutOfStock:       {http.StatusConflict, "Out of stock"},
	CodeDeadlinePassed:   {http.StatusConflict, "Payment deadline passed"},
	CodeOrderPaid:        {http.StatusConflict, "Order already paid"},
	CodeOrderCancelled:   {http.StatusConflict, "Order already cancelled"},
	CodeBusy:             {http.StatusConflict, "Already under way"},
	CodeUnavailable:      {http.StatusServiceUnavailable, "Temporarily unavailable"},
	CodeInternal:         {http.StatusInternalServerError, "Internal error"},
}

// Fail answers a request with the problem that an error is, and ends its handling. It is the one place
// where errors become answers; what is not an [Error] tells the caller nothing but the request's id.
func Fail(c *gin.Context, err error) {
	_ = c.Error(err) // for Log
	refusal := refusalOf(err)
	known := problems[refusal.Code]
	switch refusal.Code {
	case CodeUnauthorized:
		c.Header("WWW-Authenticate", "Bearer")
	case CodeUnavailable:
		c.Header("Retry-After", "1")
	case CodeRequestTimeout:
		c.Header("Connection", "close") // RFC 9110, 15.5.9
	}
	c.Header("Content-Type", "application/problem+json")
	c.AbortWithStatusJSON(known.status, Problem{
		Type:      "/problems/" + string(refusal.Code),
		Title:     known.title,
		Status:    known.status,
		Detail:    refusal.Detail,
		Instance:  c.Request.URL.Path,
		RequestID: requestID(c),
		Errors:    refusal.Faults,
	})
}

// NotFound answers for paths that do not exist.
func NotFound(c *gin.Context) {
	Fail(c, Errorf(CodeNotFound, "There is nothing at %s.", clip(c.Request.URL.Path, 256)))
}

// MethodNotAllowed answers for methods that a path does not have.
func MethodNotAllowed(c *gin.Context) {
	Fail(c, Errorf(CodeMethodNotAllowed, "%s does not have the method %s.", clip(c.Request.URL.Path, 256), clip(c.Request.Method, 32)))
}

// Handle makes a gin handler of a function whose error is the answer: see [Fail].
func Handle(do func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := do(c); err != nil {
			Fail(c, err)
		}
	}
}
