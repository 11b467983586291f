package provider

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"
)

// The operations of a provider, as logs, errors and metrics name them.
const (
	opCreate    = "create"
	opRetrieve  = "retrieve"
	OpExpire    = "expire"
	opRefunds   = "list_refunds"
	OpRefund    = "refund"
	opAccount   = "account"
	opEndpoints = "list_endpoints"
	opMovements = "list_movements"
	opSessions  = "list_sessions"
)

// guarded are the operations that a process with another key must not call: they change something at the provider, or
// what they read moves the position in the books.
var guarded = []string{opCreate, OpExpire, OpRefund, opMovements, opSessions}

// Class is a class of calls to the provider. Each class has a part of the limits and a breaker of its own, so that what
// fails in one of them does not stop the others.
type Class string

// The classes, from the one that customers wait for most to the one that can wait longest.
const (
	ClassCreate  Class = "create"
	ClassConfirm Class = "confirm" // the check of a payment that somebody waits for
	ClassExpire  Class = "expire"
	ClassRefund  Class = "refund"
	ClassPoll    Class = "poll"
)

var classes = []Class{ClassCreate, ClassConfirm, ClassExpire, ClassRefund, ClassPoll}

const (
	// callTimeout is the time for a call: two fit into the 8 s that a handler has for a batch of tasks.
	callTimeout = 3 * time.Second
	// breakerFailures is the number of calls in a row without an answer after which the breaker of their class opens.
	breakerFailures = 5
	// breakerOpen is the time for which a breaker stays open: less than between two checks of a closing attempt.
	breakerOpen = time.Second
)

// Calls makes the calls to a provider. It adds to each the limits of calls a second, a time limit, the breaker of its
// class, metrics and the log of an outage. All its errors are [*Error]. It is safe for concurrent use.
type Calls struct {
	provider Provider
	limiter  *limiter
	log      *slog.Logger
	metrics  callMetrics
	breakers map[Class]*gobreaker.CircuitBreaker[struct{}]
	mayWrite func(ctx context.Context, operation string) error
	trace    func(ctx context.Context, name string) (span context.Context, end func(error))
	failing  atomic.Bool // the provider could not be used when it was called last
}

// CallsConfig configures the calls to a provider.
type CallsConfig struct {
	Limits Limits

	// MayWrite is called before each call that writes or reads the books. If it returns an error, the call is not made,
	// and returns this error. nil: each may be made.
	MayWrite func(ctx context.Context, operation string) error

	// Trace begins a span of a call, and returns the function that ends it. Calls that tell who the key belongs to have
	// none. nil: no call has one.
	Trace func(ctx context.Context, name string) (span context.Context, end func(error))
}

// NewCalls returns the calls to a provider. It registers its metrics with reg.
func NewCalls(p Provider, cfg CallsConfig, log *slog.Logger, reg prometheus.Registerer) *Calls {
	if cfg.MayWrite == nil {
		cfg.MayWrite = func(context.Context, string) error { return nil }
	}
	if cfg.Trace == nil {
		cfg.Trace = func(ctx context.Context, _ string) (context.Context, func(error)) { return ctx, func(error) {} }
	}
	c := &Calls{
		provider: p, limiter: newLimiter(cfg.Limits), log: log, metrics: newCallMetrics(reg),
		breakers: map[Class]*gobreaker.CircuitBreaker[struct{}]{},
		mayWrite: cfg.MayWrite, trace: cfg.Trace,
	}
	for _, class := range classes {
		c.breakers[class] = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
			Name:        string(class),
			Timeout:     breakerOpen,
			ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= breakerFailures },
			// The provider works if it says that it is busy, or that a key may not do this.
			IsExcluded:   func(err error) bool { return IsClass(err, Busy, Denied, Blocked) },
			IsSuccessful: func(err error) bool { return err == nil || !IsClass(err, NoAnswer) },
		})
	}
	return c
}

// Allowed returns the guard's error for a call that writes.
func (c *Calls) Allowed(ctx context.Context, operation string) error {
	return providerError(operation, c.mayWrite(ctx, operation))
}

// Clock returns the provider's time, estimated. Without an answer yet, it is the time of this process.
func (c *Calls) Clock() time.Time { return c.provider.Clock() }

// Ready returns an error if the process may not create sessions now. Otherwise the provider has answered this process
// before, so that its clock is known.
func (c *Calls) Ready(ctx context.Context) error {
	err := c.Allowed(ctx, opCreate)
	if err != nil {
		c.metrics.ended(ClassCreate, err)
	}
	return err
}

// Create is [Checkouts.Create].
func (c *Calls) Create(ctx context.Context, checkout Checkout) (Session, error) {
	return call(ctx, c, ClassCreate, opCreate, func(ctx context.Context) (Session, error) {
		return c.provider.Create(ctx, checkout)
	})
}

// Retrieve is [Checkouts.Retrieve].
func (c *Calls) Retrieve(ctx context.Context, class Class, session string) (Session, error) {
	return call(ctx, c, class, opRetrieve, func(ctx context.Context) (Session, error) {
		return c.provider.Retrieve(ctx, session)
	})
}

// Expire is [Checkouts.Expire].
func (c *Calls) Expire(ctx context.Context, session string) (Session, error) {
	return call(ctx, c, ClassExpire, OpExpire, func(ctx context.Context) (Session, error) {
		return c.provider.Expire(ctx, session)
	})
}

// Refunds is [Returns.Refunds].
func (c *Calls) Refunds(ctx context.Context, intent string) ([]Refund, error) {
	return call(ctx, c, ClassRefund, opRefunds, func(ctx context.Context) ([]Refund, error) {
		return c.provider.Refunds(ctx, intent)
	})
}

// Refund is [Returns.Refund].
func (c *Calls) Refund(ctx context.Context, r Return) (Refund, error) {
	return call(ctx, c, ClassRefund, OpRefund, func(ctx context.Context) (Refund, error) {
		return c.provider.Refund(ctx, r)
	})
}

// Movements is [Books.Movements].
func (c *Calls) Movements(ctx context.Context, from, to time.Time, after string) (Page[Movement], error) {
	return call(ctx, c, ClassPoll, opMovements, func(ctx context.Context) (Page[Movement], error) {
		return c.provider.Movements(ctx, from, to, after)
	})
}

// OpenSessions is [Books.OpenSessions].
func (c *Calls) OpenSessions(ctx context.Context, since time.Time, after string) (Page[Session], error) {
	return call(ctx, c, ClassPoll, opSessions, func(ctx context.Context) (Page[Session], error) {
		return c.provider.OpenSessions(ctx, since, after)
	})
}

// identify makes a call that tells who the key belongs to. A process makes few of them, and a key that may not make
// them is no outage: so they need no breaker, and tell the log nothing.
func identify[T any](ctx context.Context, operation string, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := do(ctx)
	return answer, providerError(operation, err)
}

// Endpoints is [Identity.Endpoints].
func (c *Calls) Endpoints(ctx context.Context) ([]Endpoint, error) {
	return identify(ctx, opEndpoints, c.provider.Endpoints)
}

// call makes one call, as soon as the limits allow it.
func call[T any](
	ctx context.Context, c *Calls, class Class, operation string, do func(context.Context) (T, error),
) (answer T, err error) {
	if slices.Contains(guarded, operation) {
		if err := c.Allowed(ctx, operation); err != nil {
			c.metrics.ended(class, err)
			return answer, err
		}
	}
	_, err = c.breakers[class].Execute(func() (struct{}, error) {
		if err := c.limiter.await(ctx, class, operation); err != nil {
			return struct{}{}, err
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		limited, end := c.trace(limited, "payment provider: "+operation)
		began := time.Now()
		err := errPanicked // until do returns
		defer func() { end(err) }()
		answer, err = do(limited)
		err = providerError(operation, err)
		if IsClass(err, NoAnswer) && ctx.Err() != nil { // the caller has ended the call: the provider may be well
			err = &Error{Class: Busy, Operation: operation, Err: err}
		}
		c.metrics.seconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
		if CauseIs(err, TooManyCalls) {
			c.limiter.throttled()
		}
		c.logChange(ctx, operation, err)
		return struct{}{}, err
	})
	err = providerError(operation, err) // the error of an open breaker is not a *Error yet
	c.metrics.ended(class, err)
	return answer, err
}

// errPanicked ends the span of a call that panics.
var errPanicked = errors.New("panicked")

// providerError returns err as a [*Error]. One that is none, such as that of an open breaker, has the class
// [NoAnswer].
func providerError(operation string, err error) error {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return err
	}
	return &Error{Class: NoAnswer, Operation: operation, Err: err}
}

// logChange logs that the provider became unusable, or usable again. Failures in between are not logged.
func (c *Calls) logChange(ctx context.Context, operation string, err error) {
	if IsClass(err, Busy) { // this tells nothing new
		return
	}
	failing := IsClass(err, NoAnswer, Denied)
	if c.failing.Swap(failing) == failing {
		return
	}
	if failing {
		c.log.WarnContext(ctx, "the payment provider cannot be used; payments wait for it",
			"call", operation, "error", err)
	} else {
		c.log.InfoContext(ctx, "the payment provider can be used again", "call", operation)
	}
}
