package app

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// Part is what a package adds to a process, besides its kinds of task. A field that is zero adds nothing.
type Part struct {
	// Routes adds routes to the router and to the group of the operators' API. It is called if the process has the
	// role API.
	Routes func(root, ops gin.IRouter)
	// Guard lets operators pass to the operators' API, and rejects all others. If no part has a guard, there is no such
	// API.
	Guard gin.HandlerFunc
	// Streams are the routes whose answers do not end: they have no time limit, and their time is not measured.
	Streams []string
	// First handles each request before all other handlers of the router do, except requests for Streams.
	First gin.HandlerFunc
	// Wrap returns a handler that sees each request before the router and its middleware do.
	Wrap func(http.Handler) http.Handler
	// Contract has pieces of the OpenAPI document that the process serves at /openapi.yaml: the tags, paths and
	// components of the routes. See [rest.MergeContracts].
	Contract [][]byte

	// Components run while the process runs.
	Components []Component
	// Workers runs the components of the role Worker by calling run, and stops them when it ends the context of the
	// call. nil: they run while the process runs.
	Workers func(ctx context.Context, run func(context.Context) error) error
	// Close is called by [Process.Close], before it closes the connections to the database and to Redis.
	Close func()

	// Relations are tables and indexes without which /readyz answers 503. Name indexes too, because the
	// restore of a backup creates them last.
	Relations []string
	// Invariants are checked by `doctor` and by the operators' page, which show their violations.
	Invariants Invariants
	// Checks are checks of `doctor`, besides those that it makes in every program.
	Checks []Check
	// Figures holds statements. Each key is the name of a value in the answer of GET /ops/api/stats, and its statement
	// returns this value as JSON. The contract describes the value as a property of the schema Stats.
	Figures map[string]string
}

// Component is a function that runs while the process runs.
type Component struct {
	Role string // the role of the processes that run it; "": all processes do
	// Run returns when ctx ends. If it returns an error, the process stops.
	Run func(ctx context.Context) error
	// Last makes Run begin at once and end in [Process.Close], so that Run can pass on what the other
	// components do while they stop. The error of such a Run is only logged.
	Last bool
}

// Check is a check of `doctor`, which prints Good if Run returns nil. If the error is a [Warning] or wraps
// [ErrUnchecked], the check has not failed.
type Check struct {
	Subject, Good string
	Run           func(context.Context) error
}

// Warning is the error of a check that found something which an operator should change, although the service works
// with it.
type Warning string

func (w Warning) Error() string { return string(w) }

// ErrUnchecked means that a check could not be made, for example because a server does not tell a setting.
var ErrUnchecked = errors.New("not checked")

// Parts are the parts of a process.
type Parts []Part

// Violations returns the violations of the invariants of all parts. The arguments are those of [Invariants].
func (all Parts) Violations(ctx context.Context, bound time.Duration, full bool) ([]Violation, error) {
	violations := []Violation{}
	for _, part := range all {
		if part.Invariants == nil {
			continue
		}
		some, err := part.Invariants(ctx, bound, full)
		if err != nil {
			return nil, err
		}
		violations = append(violations, some...)
	}
	return violations, nil
}
