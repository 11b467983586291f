package delay

import (
	"context"
	"fmt"
	"time"
)

// State is the state of a task.
type State uint8

// The states of a task. The script locate returns the same numbers.
const (
	Absent State = iota
	Scheduled
	Leased
	Dead
)

// Location is the state of a task in the queue.
type Location struct {
	State    State
	Left     time.Duration // until a scheduled task is due, or until the lease of a leased task ends, by Redis's clock
	Attempts int           // failed attempts so far
}

// Locate returns one location for each id, at the same index.
func (q *Queue) Locate(ctx context.Context, ids []string) ([]Location, error) {
	parts := q.parts(ids)
	calls := make([]call, len(parts))
	for n, p := range parts {
		args := make([]any, len(p.indexes))
		for k, i := range p.indexes {
			args[k] = ids[i]
		}
		calls[n] = call{[]string{p.due, p.leased, p.dead, p.attempts}, args}
	}
	replies, err := q.runEach(ctx, scripts.locate, calls)
	if err != nil {
		return nil, fmt.Errorf("locate %s: %w", q.kind, err)
	}
	found := make([]Location, len(ids))
	for n, p := range parts {
		values, err := integers(replies[n], 3*len(p.indexes))
		if err != nil {
			return nil, fmt.Errorf("locate %s: %w", q.kind, err)
		}
		for k, i := range p.indexes {
			found[i] = Location{
				State: State(values[3*k]), Left: fromMicros(values[3*k+1]), Attempts: int(values[3*k+2]),
			}
		}
	}
	return found, nil
}
