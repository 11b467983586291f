package app

import (
	"context"
	"errors"
	"time"

	"example.com/shop/internal/deadline"
)

// InvariantCheck returns the violations of a part's invariants. bound is how long past its due time a row may be pending.
type InvariantCheck func(ctx context.Context, bound time.Duration) ([]deadline.Violation, error)

// invariant is what checks the invariants of a part.
type invariant struct{ check, audit InvariantCheck }

// Invariant adds a check of invariants. `doctor` and the operators' page show its violations. audit is the check of
// `doctor --full`. check should read only rows that are open or ended lately, so that it stays fast, and audit reads every
// row. The two may be the same.
func (p *Process) Invariant(check, audit InvariantCheck) {
	p.invariants = append(p.invariants, invariant{check, audit})
}

// Violations returns the violations of the invariants of all parts.
func (p *Process) Violations(ctx context.Context) ([]deadline.Violation, error) {
	return p.violations(ctx, func(i invariant) InvariantCheck { return i.check })
}

// Audit is [Process.Violations] for every row.
func (p *Process) Audit(ctx context.Context) ([]deadline.Violation, error) {
	return p.violations(ctx, func(i invariant) InvariantCheck { return i.audit })
}

func (p *Process) violations(ctx context.Context, choose func(invariant) InvariantCheck) ([]deadline.Violation, error) {
	all := []deadline.Violation{}
	for _, i := range p.invariants {
		some, err := choose(i)(ctx, p.Kinds.Bound())
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// Check is a check of `doctor`. It prints Good if Run returns nil. An error that wraps [ErrUnchecked] is no failure.
type Check struct {
	Subject, Good string
	Run           func(context.Context) error
}

// ErrUnchecked means that something cannot be checked.
var ErrUnchecked = errors.New("not checked")

// Check adds a check.
func (p *Process) Check(subject, good string, run func(context.Context) error) {
	p.Checks = append(p.Checks, Check{subject, good, run})
}

// figure is a value that operators look at.
type figure struct {
	name string
	read func(context.Context) (any, error)
}

// Figure adds a value under a name to the answer of GET /ops/api/stats. The value is encoded as JSON. The part's piece of
// the contract describes it as a property of the schema Stats.
func (p *Process) Figure(name string, read func(context.Context) (any, error)) {
	p.figures = append(p.figures, figure{name, read})
}

// Figures returns the values of all parts by their names.
func (p *Process) Figures(ctx context.Context) (map[string]any, error) {
	values := make(map[string]any, len(p.figures))
	for _, f := range p.figures {
		value, err := f.read(ctx)
		if err != nil {
			return nil, err
		}
		values[f.name] = value
	}
	return values, nil
}
