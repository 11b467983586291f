package stripesim

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v85"
)

// call is one request to the API.
type call struct {
	requestID string
	key       string // the idempotency key; "" if the request has none
	form      *form
	id        string // of the object in the path; "" if the path has none
	owner     owner
}

// endpoint executes a call in a transaction. An [apiError] is the answer to the client. Any other error is internal.
type endpoint func(ctx context.Context, tx pgx.Tx, c *call) (any, error)

// answer is what the simulator sends to the client of the API.
type answer struct {
	status   int
	body     []byte
	replayed bool // the answer of an earlier request with the same idempotency key
}

// apiError is an error that the client of the API sees. See https://docs.stripe.com/api/errors.
type apiError struct {
	status   int
	executed bool // the execution had begun, so the simulator stores the error for the idempotency key

	Type    string `json:"type"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
	Param   string `json:"param,omitempty"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s %s: %s", e.Type, e.Code, e.Message) }

// invalidRequest returns an error that the simulator finds before it executes the request.
func invalidRequest(code, param, message string) *apiError {
	return &apiError{
		status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Param: param, Message: message,
	}
}

// rejectedByState returns an error that depends on the state of an object.
func rejectedByState(code, param, message string) *apiError {
	e := invalidRequest(code, param, message)
	e.executed = true
	return e
}

// missing returns the error for an object that does not exist. noun is what Stripe calls the object in messages.
func missing(noun, id, param string) *apiError {
	e := rejectedByState("resource_missing", param, fmt.Sprintf("No such %s: '%s'", noun, id))
	if param == "session" {
		e.status = http.StatusNotFound
	}
	return e
}

// Handler serves the API, the checkout pages and the control API.
func (s *Simulator) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/checkout/sessions", s.api(s.createSession))
	mux.Handle("GET /v1/checkout/sessions", s.api(s.listSessions))
	mux.Handle("GET /v1/checkout/sessions/{id}", s.api(s.retrieveSession))
	mux.Handle("POST /v1/checkout/sessions/{id}/expire", s.api(s.expireSession))
	mux.Handle("GET /v1/balance_transactions", s.api(s.listBalanceTransactions))
	mux.Handle("GET /v1/account", s.api(s.retrieveAccount))
	mux.Handle("GET /v1/webhook_endpoints", s.api(s.listEndpoints))
	mux.Handle("POST /v1/refunds", s.api(s.createRefund))
	mux.Handle("GET /v1/refunds", s.api(s.listRefunds))
	mux.Handle("/v1/", s.api(nil))
	s.addCheckout(mux)
	s.addControl(mux)
	return http.NewCrossOriginProtection().Handler(mux)
}

const (
	maxBody     = 256 << 10        // the largest size of a request, in bytes
	callTimeout = 10 * time.Second // for one call, so that it does not keep its locks while the database hangs
)

// api returns the handler of an endpoint. The endpoint nil stands for the paths that do not exist.
func (s *Simulator) api(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The body must be read before the wait: only then does the server notice that a client disconnects.
		body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		status := 0
		defer func() { s.limits.count(r.Pattern, status) }()
		reason := s.limits.take(r.Pattern, s.knobs.get(), time.Now())
		if reason == "" {
			s.knobs.delay()
		}
		api := s.knobs.awaitAnswers(r.Context())
		c := &call{requestID: newID("req_"), key: r.Header.Get("Idempotency-Key"), id: r.PathValue("id")}
		var a answer
		if reason != "" {
			w.Header().Set("Stripe-Rate-Limited-Reason", reason)
			a = answerTo(nil, errRateLimit)
		} else if err := s.readCall(r, c, e, string(body), readErr); err != nil {
			a = answerTo(nil, err)
		} else {
			// A client that disconnects does not abort the execution, as at Stripe.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callTimeout)
			defer cancel()
			a = s.execute(ctx, r, c, e, api)
		}
		if api == "loses_answers" {
			panic(http.ErrAbortHandler)
		}
		if api == "empty" && a.status == http.StatusOK {
			a.body = []byte("{}")
		}
		status = a.status
		s.write(w, c, a)
	})
}

// readCall checks everything of a request that does not depend on the endpoint.
func (s *Simulator) readCall(r *http.Request, c *call, e endpoint, body string, readErr error) error {
	if err := s.authenticate(r, c); err != nil {
		return err
	}
	if e == nil {
		return &apiError{
			status: http.StatusNotFound, Type: "invalid_request_error",
			Message: fmt.Sprintf("Unrecognized request URL (%s: %s).", r.Method, r.URL.Path),
		}
	}
	if readErr != nil {
		return invalidRequest("", "", "Invalid request: the body is too large, or did not arrive.")
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if body != "" && media != "application/x-www-form-urlencoded" {
		return invalidRequest("", "", "Invalid request: the body must be application/x-www-form-urlencoded.")
	}
	if len(c.key) > 255 {
		return &apiError{
			status: http.StatusBadRequest, Type: "idempotency_error",
			Message: "Idempotency keys can have up to 255 characters.",
		}
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		c.key = "" // at Stripe, keys have an effect only on POST
	}
	encoded := r.URL.RawQuery
	if encoded != "" && body != "" {
		encoded += "&"
	}
	var err error
	c.form, err = parseForm(encoded + body)
	return err
}

// authenticate checks the key and its permissions, and sets the call's owner.
func (s *Simulator) authenticate(r *http.Request, c *call) error {
	k := s.knobs.get()
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	message := "Invalid API Key provided."
	switch {
	case !ok:
		message = "You did not provide an API key. Provide it in the Authorization header, using Bearer auth."
	case subtle.ConstantTimeCompare([]byte(key), []byte(k.Key)) == 1:
		c.owner = owner{Account: k.Account, Livemode: strings.Contains(k.Key, "_live_")}
		return k.permit(r)
	}
	return &apiError{status: http.StatusUnauthorized, Type: "invalid_request_error", Message: message}
}

// execute runs an endpoint, or replays the stored answer of the call's idempotency key. The effects and the stored
// answer are committed together.
func (s *Simulator) execute(ctx context.Context, r *http.Request, c *call, e endpoint, api string) answer {
	var a answer
	request := r.Method + " " + r.URL.Path + "?" + c.form.canonical()
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		stored, err := findAnswer(ctx, tx, c.key, request)
		switch {
		case err != nil:
			return err
		case api == "errors":
			a = answerTo(nil, errBroken)
			if stored != nil {
				return nil
			}
			return storeAnswer(ctx, tx, c.key, request, a)
		case stored != nil:
			a = *stored
			return nil
		}
		if s.knobs.get().Locks == "timeout" {
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`); err != nil {
				return err
			}
		}
		object, err := e(ctx, tx, c)
		if api == "executes_then_500" && err == nil {
			err = errBroken
		}
		if refused, ok := errors.AsType[*apiError](err); err != nil && (!ok || !refused.executed) {
			return err
		}
		a = answerTo(object, err)
		return storeAnswer(ctx, tx, c.key, request, a)
	})
	if hasCode(err, "55P03") { // lock_not_available
		err = errLockTimeout
	}
	if err != nil {
		if _, expected := errors.AsType[*apiError](err); !expected {
			s.log.Error("a call of the simulated API failed",
				"method", r.Method, "path", r.URL.Path, "request_id", c.requestID, "error", err)
		}
		a = answerTo(nil, err)
	}
	wake(s.wakeTimers)
	wake(s.wakeWebhook)
	return a
}

// errBroken is the error of each call while the knob API is errors or executes_then_500.
var errBroken = &apiError{
	status: http.StatusInternalServerError, executed: true, Type: "api_error",
	Message: "The knob api of the simulator says that calls fail.",
}

// answerTo returns the answer for an object or an error.
func answerTo(object any, err error) answer {
	if err == nil {
		return answer{status: http.StatusOK, body: encode(object)}
	}
	e, expected := errors.AsType[*apiError](err)
	if !expected {
		e = &apiError{
			status: http.StatusInternalServerError, Type: "api_error",
			Message: "An unknown error occurred. The log of the simulator has the cause.",
		}
	}
	return answer{status: e.status, body: encode(fields{"error": e})}
}

func (s *Simulator) write(w http.ResponseWriter, c *call, a answer) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Request-Id", c.requestID)
	h.Set("Stripe-Version", stripe.APIVersion)
	if c.key != "" {
		h.Set("Idempotency-Key", c.key)
	}
	if a.replayed {
		h.Set("Idempotent-Replayed", "true")
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the client may have disconnected
}

// fields are the fields of an object of the API.
type fields map[string]any

// encode returns v as JSON.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types of this package always encode
	}
	return text
}

// page holds the parameters of a list.
type page struct {
	limit int
	after string // the id of the last object of the page before; "" for the first page
}

func (f *form) page() page {
	return page{limit: int(f.integer("limit", 10, 1, 100)), after: f.optional("starting_after")}
}

// position returns the seq of an object, as the exclusive upper bound of the next page. The id "" stands for the first
// page. noun is what Stripe calls the object in messages.
func position(ctx context.Context, tx pgx.Tx, noun, id string) (int64, error) {
	if id == "" {
		return math.MaxInt64, nil
	}
	var seq int64
	table := strings.TrimPrefix(noun, "checkout.") + "s"
	err := tx.QueryRow(ctx, `SELECT seq FROM stripesim.`+table+` WHERE id = $1`, id).Scan(&seq)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, missing(noun, id, "starting_after")
	}
	return seq, err
}

// list returns up to p.limit of the objects. The caller has read one object more, if there is one.
func (p page) list(url string, objects []fields) fields {
	shown := append([]fields{}, objects[:min(len(objects), p.limit)]...)
	return fields{"object": "list", "url": url, "has_more": len(objects) > p.limit, "data": shown}
}
