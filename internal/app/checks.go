package app

import (
	"context"
	"errors"
	"time"
)

// InvariantCheck returns the violations of a part's invariants. bound is how long past its due time a row may be pending.
type InvariantCheck func(ctx context.Context, bound time.Duration) ([]Violation, error)

// Invariants checks the invariants of a part. It needs both functions, which may be the same.
type Invariants struct {
	Check InvariantCheck // reads only rows that are open or ended lately, so that it stays fast
	Audit InvariantCheck // reads every row, for `doctor --full`
}

// Violations returns the violations of the invariants of all parts.
func (p *Process) Violations(ctx context.Context) ([]Violation, error) {
	return p.violations(ctx, func(i Invariants) InvariantCheck { return i.Check })
}

// Audit is [Process.Violations] for every row.
func (p *Process) Audit(ctx context.Context) ([]Violation, error) {
	return p.violations(ctx, func(i Invariants) InvariantCheck { return i.Audit })
}

func (p *Process) violations(ctx context.Context, choose func(Invariants) InvariantCheck) ([]Violation, error) {
	all := []Violation{}
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

// Figures returns the values of all parts by their names.
func (p *Process) Figures(ctx context.Context) (map[string]any, error) {
	values := make(map[string]any, len(p.figures))
	for name, read := range p.figures {
		value, err := read(ctx)
		if err != nil {
			return nil, err
		}
		values[name] = value
	}
	return values, nil
}
