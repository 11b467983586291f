package app

import (
	"context"
	"errors"
)

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
