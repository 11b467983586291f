package order

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Code names what an [Error] refuses. Codes are part of the API: they end the type of a problem answer.
type Code string

// The codes that a request can be refused with.
const (
	CodeMalformed        Code = "malformed-request"
	CodeUnauthorized     Code = "unauthorized"
	CodeCrossOrigin      Code = "cross-origin"
	CodeNotFound         Code = "not-found"
	CodeMethodNotAllowed Code = "method-not-allowed"
	CodeRequestTimeout   Code = "request-timeout"
	CodeBodyTooLarge     Code = "body-too-large"
	CodeMediaType        Code = "unsupported-media-type"
	CodeInvalid          Code = "invalid-request"
	CodeUnknownProduct   Code = "unknown-product"
	CodeMixedCurrencies  Code = "mixed-currencies"
	CodeKeyReused        Code = "idempotency-key-reused"
	CodeOutOfStock       Code = "out-of-stock"
	CodeDeadlinePassed   Code = "deadline-passed"
	CodeOrderPaid        Code = "order-paid"
	CodeOrderCancelled   Code = "order-cancelled"
	CodeBusy             Code = "busy"
	CodeUnavailable      Code = "unavailable"
	CodeInternal         Code = "internal"
)

// Error is a refusal that its caller is told of.
type Error struct {
	Code   Code
	Detail string  // a sentence for the caller
	Faults []Fault // everything that is wrong with the request, if that is the reason
	Err    error   // the cause, for the log only
}

// Fault is one thing that is wrong with a request: at a JSON pointer into the body, or with a
// parameter or header.
type Fault struct {
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"`
	Detail    string `json:"detail"`
}

// Errorf returns an [Error] with a detail.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Detail, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Detail)
}

func (e *Error) Unwrap() error { return e.Err }

// refusalOf is what may be told of an error: all of an [Error], and of others whether to try again.
func refusalOf(err error) *Error {
	if refusal, ok := errors.AsType[*Error](err); ok {
		return refusal
	}
	if Unavailable(err) {
		return &Error{Code: CodeUnavailable, Detail: "The service cannot answer right now. Repeat the request in a moment.", Err: err}
	}
	return &Error{Code: CodeInternal, Detail: "Something went wrong here. The request_id helps to find out what.", Err: err}
}

// passing are the classes and codes of errors that a statement is not guilty of: connection, rollback,
// resources, operator, system; lock not available, read-only; no such schema, table or constraint, as while a backup is restored.
var passing = []string{"08", "40", "53", "57", "58", "55P03", "25006", "3F000", "42P01", "42704"}

// Unavailable reports whether an error is not a statement's own but the world's, and passes: the database cannot be
// reached, is stopping, full, read-only after a failover, too slow, or chose this transaction to break
// a deadlock.
func Unavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.ContainsFunc(passing, func(code string) bool { return strings.HasPrefix(pg.Code, code) })
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || pgconn.SafeToRetry(err)
}

// brokenDeadlock tells that a statement was rolled back in favour of another, and may just be repeated.
func brokenDeadlock(err error) bool {
	return hasCode(err, "40001", "40P01")
}

// TimedOut reports whether PostgreSQL ended a statement that took too long, as a statement on some orders may, and on
// others not.
func TimedOut(err error) bool { return hasCode(err, "57014") }

// lockTimedOut tells that a statement has waited for somebody's lock for as long as it may.
func lockTimedOut(err error) bool {
	return hasCode(err, "55P03")
}

// hasCode tells that PostgreSQL gave one of these codes.
func hasCode(err error, codes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(codes, pg.Code)
}
