package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Part is what a package adds to a process, besides its kinds of task. A field that is zero adds nothing.
type Part struct {
	// Routes adds routes to the router and to the group of the operators' API. It is called if the process has the
	// role API.
	Routes func(root, ops gin.IRouter)
	// Streams are the routes whose answers do not end: they have no time limit, and their time is not measured.
	Streams []string
	// Wrap returns a handler that sees each request before the router and its middleware do.
	Wrap func(http.Handler) http.Handler
	// Contract has pieces of the OpenAPI document that the process serves at /openapi.yaml: the tags, paths and
	// components of the routes. See [MergeContracts].
	Contract [][]byte

	// Components run while the process runs.
	Components []Component
	// Close is called by [Process.Close], before it closes the connections to the database and to Redis.
	Close func()

	// Relations are tables and indexes without which /readyz answers 503. Name indexes too, because the
	// restore of a backup creates them last.
	Relations []string
	// Invariants are checked by `doctor` and by the operators' page, which show their violations.
	Invariants Invariants
	// Checks are checks of `doctor`, besides those of [Process.Checks].
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

// Figures returns the values of all parts by their names.
func (p *Process) Figures(ctx context.Context) (map[string]any, error) {
	values := make(map[string]any, len(p.figures))
	for name, statement := range p.figures {
		var value []byte
		if err := p.Pool.QueryRowContext(ctx, statement).Scan(&value); err != nil {
			return nil, fmt.Errorf("read the figure %s: %w", name, err)
		}
		values[name] = json.RawMessage(value)
	}
	return values, nil
}

// Add adds a part to the process. Call it before [Process.Run].
func (p *Process) Add(part Part) {
	if part.Routes != nil && p.Has(API) {
		part.Routes(p.router, p.ops)
	}
	for _, route := range part.Streams {
		p.streams[route] = true
	}
	if part.Wrap != nil {
		p.outer = append(p.outer, part.Wrap)
	}
	p.contract = append(p.contract, part.Contract...)
	for _, c := range part.Components {
		switch {
		case c.Role != "" && !p.Has(c.Role):
		case c.Last:
			p.runLast(c.Run)
		default:
			p.components = append(p.components, c.Run)
		}
	}
	if part.Close != nil {
		p.closers = append(p.closers, part.Close)
	}
	p.relations = append(p.relations, part.Relations...)
	if part.Invariants != nil {
		p.invariants = append(p.invariants, part.Invariants)
	}
	p.checks = append(p.checks, part.Checks...)
	maps.Copy(p.figures, part.Figures)
}
