package trace

import (
	"context"
	"errors"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/timeout"
)

// Timeouts is a table whose rows time out, for the worker and the reconciler of a kind of task. Each batch that they
// time out has a span, which links to the requests that created the rows.
type Timeouts struct {
	*timeout.Table
	tracer *Tracer
	kind   string
}

// Timeouts returns a table whose timeouts are traced.
func (t *Tracer) Timeouts(kind string, table *timeout.Table) *Timeouts {
	return &Timeouts{table, t, kind}
}

// errPanicked ends the span of a batch that panics.
var errPanicked = errors.New("panicked")

// Handle is [timeout.Table.Handle] in a span.
func (t *Timeouts) Handle(ctx context.Context, tasks []delay.Task) (outcomes []delay.Outcome, err error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	ctx, end := t.tracer.startTasks(ctx, t.kind, ids)
	err = errPanicked // the return replaces it
	defer func() { end(err) }()
	return t.Table.Handle(ctx, tasks)
}

// TimeOut is [timeout.Table.TimeOut] in a span.
func (t *Timeouts) TimeOut(ctx context.Context, ids []string) (done, locked int, err error) {
	ctx, end := t.tracer.startTasks(ctx, t.kind, ids)
	err = errPanicked // the return replaces it
	defer func() { end(err) }()
	return t.Table.TimeOut(ctx, ids)
}
