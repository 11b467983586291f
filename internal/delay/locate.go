package delay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// TaskState is the state of a task.
type TaskState uint8

// The states of a task. The script locate returns the same numbers.
const (
	Absent    TaskState = iota // the queue does not have the task
	Scheduled                  // the task waits for its due time, or is due and waits for a worker
	Leased                     // a worker has claimed the task
	Dead                       // the task is a dead letter
)

func (s TaskState) String() string { return [...]string{"absent", "scheduled", "leased", "dead"}[s] }

// Location is the state of a task in the queue.
type Location struct {
	State    TaskState
	Left     time.Duration // the time until a scheduled task is due, or until a lease ends, by Redis's clock
	Attempts int           // failed attempts so far
}

var locateScript = load("locate")

// Locate returns one location for each id, at the same index.
func (q *Queue) Locate(ctx context.Context, ids []string) ([]Location, error) {
	groups := q.groupByShard(ids)
	calls := make([]call, len(groups))
	for n, g := range groups {
		args := make([]any, len(g.indexes))
		for k, i := range g.indexes {
			args[k] = ids[i]
		}
		calls[n] = call{[]string{g.due, g.leased, g.dead, g.attempts}, args}
	}
	replies, err := q.runEach(ctx, locateScript, calls)
	if err != nil {
		return nil, fmt.Errorf("locate %s: %w", q.kind, err)
	}
	found := make([]Location, len(ids))
	for n, g := range groups {
		values, err := integers(replies[n], 3*len(g.indexes))
		if err != nil {
			return nil, fmt.Errorf("locate %s: %w", q.kind, err)
		}
		for k, i := range g.indexes {
			found[i] = Location{
				State: TaskState(values[3*k]), Left: fromMicros(values[3*k+1]), Attempts: int(values[3*k+2]),
			}
		}
	}
	return found, nil
}

// LastError returns the error of the last failed attempt at a task, or "" if none has failed. The task may be a dead
// letter.
func (q *Queue) LastError(ctx context.Context, id string) (string, error) {
	text, err := q.rdb.HGet(ctx, q.shards[q.shardOf(id)].errs, id).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read the last error of a task of %s: %w", q.kind, err)
	}
	return text, nil
}
