// Package provider calls the payment provider, which is Stripe. It hides the types, the codes and the limits of
// Stripe's API from the other packages.
//
// [Stripe] makes single calls. [Calls] adds to each the limits of calls a second, a timeout, and the circuit breaker
// of its class. [Guard] forbids calls that write to a process that has a copy of the database, or another key.
package provider

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
)

// Provider is a payment provider, as the shop uses it. Its methods call the provider once, and repeat nothing. Their
// errors are [*Error].
type Provider interface {
	Checkouts
	Returns
	Books
	Identity
	Clock() time.Time // the provider's time, estimated; without an answer yet, the time of this process
}

// Checkouts makes sessions and ends them.
type Checkouts interface {
	Create(ctx context.Context, c Checkout) (Session, error)
	Retrieve(ctx context.Context, session string) (Session, error)
	Expire(ctx context.Context, session string) (Session, error)
}

// Returns returns money.
type Returns interface {
	Refunds(ctx context.Context, intent string) ([]Refund, error) // all of a payment, the latest first
	Refund(ctx context.Context, r Return) (Refund, error)
}

// Books reads what the provider has booked. Both lists have the newest first. after is the id of the last row of the
// page before, "" for the first page.
type Books interface {
	Movements(ctx context.Context, from, to time.Time, after string) (Page[Movement], error) // from <= At < to
	OpenSessions(ctx context.Context, since time.Time, after string) (Page[Session], error)
}

// Identity tells who the key belongs to.
type Identity interface {
	Account(ctx context.Context) (id string, err error) // Denied: the key may not read it
	Endpoints(ctx context.Context) ([]Endpoint, error)  // the receivers of webhooks
}

// Owner is what the shop writes on its sessions and payments, so that they can be found without its database.
type Owner struct{ Deployment, Order, Attempt string }

// In reports whether an object names a deployment. An object of another application names none.
func (o Owner) In(deployment string) bool { return o.Deployment != "" && o.Deployment == deployment }

// Checkout is what [Checkouts.Create] makes a session of.
type Checkout struct {
	Owner
	AmountCents int64
	Currency    string // lower case
	Title       string
	ExpiresAt   time.Time // by the provider's clock
	ReturnURL   string    // success and cancel: where browsers return to
	Key         string    // equal calls with the same key have one effect
}

// Session is one checkout at the provider.
type Session struct {
	Owner
	ID, URL              string
	Expired              bool // final: the customer cannot pay any more, and has not paid
	Paid                 bool // final: the customer has paid
	Intent               string
	AmountCents          int64
	Currency             string
	CreatedAt, ExpiresAt time.Time
}

// Return is what [Returns.Refund] returns.
type Return struct {
	Refund      string // our refund's id
	Try         int
	Intent      string
	AmountCents int64
	Key         string
}

// Refund is a refund as the provider has it.
type Refund struct {
	ID, Refund  string // Refund: our refund's id from the metadata; "": made by hand
	Try         int
	AmountCents int64
	Currency    string
	State       RefundState // Sent, Confirmed or Failed
	Reason      string      // why it failed, or why it waits
}

// RefundState is the state of a refund.
type RefundState string

// The states of a refund. A confirmed one may still fail. A failed one is confirmed if the provider returns the money
// after all. Otherwise only an operator moves it.
const (
	Owed           RefundState = "owed"            // not known to the provider
	Sent           RefundState = "sent"            // the provider has it, and has not confirmed it yet
	Confirmed      RefundState = "confirmed"       // the provider has returned the money
	Failed         RefundState = "failed"          // the provider could not return the money: an operator must act
	SettledOutside RefundState = "settled_outside" // final: an operator has settled a failed one in another way
)

// MovementKind is the kind of a row of the provider's books.
type MovementKind string

// The kinds of movements.
const (
	Captured        MovementKind = "captured"
	Refunded        MovementKind = "refunded"
	RefundFailed    MovementKind = "refund_failed"
	Disputed        MovementKind = "disputed"
	DisputeReversed MovementKind = "dispute_reversed"
	OtherMovement   MovementKind = "" // payouts, fees and so on
)

// Movement is a row of the provider's books.
type Movement struct {
	Owner
	ID                     string
	Kind                   MovementKind
	At                     time.Time
	AmountCents            int64  // of the source, positive
	Currency               string // of the source
	Source, Intent, Refund string
}

// Page is a page of a list.
type Page[T any] struct {
	Rows []T
	More bool
	Now  time.Time // the provider's clock when it answered
}

// Event is what a webhook says about a session. It decides nothing: the provider is asked.
type Event struct {
	Owner           // of the session
	ID, Type string // as the provider names them
	Live     bool
	Wanted   bool // reports whether the shop reads events of this type; otherwise the event names no session
	Session  string
	Complete bool // reports whether the session is complete: most likely its customer has paid
}

// Endpoint is a receiver of the provider's webhooks.
type Endpoint struct {
	URL     string
	Enabled bool
	Events  []string // "*": all
}

// ErrorClass says what an error of the provider means for the caller.
type ErrorClass int

// The classes of error.
const (
	NoAnswer ErrorClass = iota // unknown whether it was executed: the same call again, with the same key
	Busy                       // too many calls, or another with the same key, or the caller ended it: again later
	Denied                     // the key is wrong, or may not do this
	Missing                    // the provider does not know the object
	Replayed                   // the key has a stored error, or belongs to another call: another key may succeed
	Refused                    // the provider refuses this call for good
	Blocked                    // this process makes no call that writes; see [Guard]
)

// Cause is why the provider was busy, as far as the shop distinguishes it.
type Cause string

// The causes that the shop distinguishes.
const (
	LowBalance   Cause = "balance too low"
	KeyInUse     Cause = "key in use" // another call with the same key is under way
	TooManyCalls Cause = "too many calls"
)

// Error is the error of a call to the provider.
type Error struct {
	Class     ErrorClass
	Cause     Cause
	Operation string
	Err       error
}

func (e *Error) Error() string {
	return "payment provider: " + e.Operation + ": " + e.Err.Error()
}
func (e *Error) Unwrap() error { return e.Err }

// classOf returns the class of an error, and ok = false if it is not the provider's.
func classOf(err error) (c ErrorClass, ok bool) {
	if e, is := errors.AsType[*Error](err); is {
		return e.Class, true
	}
	return 0, false
}

// IsClass reports whether an error has one of the classes.
func IsClass(err error, want ...ErrorClass) bool {
	got, ok := classOf(err)
	return ok && slices.Contains(want, got)
}

// CauseIs reports whether an error is the provider's, with the given cause.
func CauseIs(err error, cause Cause) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Cause == cause
}

// OptionalID returns an id, or nil if a text is none.
func OptionalID(text string) *uuid.UUID {
	id, err := keyset.ParseID(text)
	if err != nil {
		return nil
	}
	return &id
}
