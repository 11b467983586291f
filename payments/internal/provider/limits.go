package provider

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits are the most calls a second of a process. A field that is 0 means no limit.
type Limits struct {
	Rate          float64 // of all calls
	OperationRate float64 // of the calls of one operation
}

// maxWait is the longest time for which a call waits for its turn. It is the same for all classes but polls, which do
// not wait, so that none of them keeps the others from getting a turn.
const maxWait = 2 * time.Second

const (
	// burstTime is the time whose calls a limiter can save up. The provider counts the calls of each second.
	burstTime = 500 * time.Millisecond
	// throttlePause is the least time for which polls stop after the provider has answered that it gets too many calls.
	throttlePause = 5 * time.Second
)

// errNoTurn is the error of a call that the limits of this process did not allow in time.
var errNoTurn = errors.New("the limits of calls a second allow no such call now")

// limiter keeps the calls of a process within the limits of the provider.
type limiter struct {
	mu         sync.Mutex // is held while a call is reserved in two limiters
	limits     Limits
	all        *rate.Limiter
	operations map[string]*rate.Limiter
	pollsFrom  time.Time // polls are paused until then
}

func newLimiter(l Limits) *limiter {
	return &limiter{limits: l, all: limit(l.Rate), operations: map[string]*rate.Limiter{}}
}

// limit returns a limiter of some calls a second; 0: of none.
func limit(perSecond float64) *rate.Limiter {
	if perSecond == 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond*burstTime.Seconds())))
}

// reserve reserves a call of both limiters, and returns the time until its turn, and a function that gives it back. It
// reserves nothing, and returns ok = false, if its turn is too far away, or if a poll would take a call that
// a customer may need.
func (m *limiter) reserve(class Class, operation string) (wait time.Duration, cancel func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, one := time.Now(), m.operations[operation]
	if one == nil {
		one = limit(m.limits.OperationRate)
		m.operations[operation] = one
	}
	if class == ClassPoll && (now.Before(m.pollsFrom) || !idle(m.all, now) || !idle(one, now)) {
		return 0, nil, false
	}
	ofAll, ofOne := m.all.ReserveN(now, 1), one.ReserveN(now, 1)
	wait = max(ofAll.DelayFrom(now), ofOne.DelayFrom(now))
	if wait > maxWait || class == ClassPoll && wait > 0 {
		ofAll.CancelAt(now) // a Cancel a moment later would not give back a turn that is due now
		ofOne.CancelAt(now)
		return 0, nil, false
	}
	cancel = func() {
		ofAll.Cancel()
		ofOne.Cancel()
	}
	return wait, cancel, true
}

// idle reports whether a limiter has half of its burst left, which polls leave to the calls that somebody waits for.
func idle(l *rate.Limiter, now time.Time) bool { return l.TokensAt(now) >= float64(l.Burst())/2 }

// await waits until a call may be made. Its error is a [*Error] of class [Busy].
func (m *limiter) await(ctx context.Context, class Class, operation string) error {
	wait, cancel, ok := m.reserve(class, operation)
	if !ok {
		return &Error{Class: Busy, Operation: operation, Err: errNoTurn}
	}
	if wait == 0 {
		return nil
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		cancel()
		return &Error{Class: Busy, Operation: operation, Err: ctx.Err()}
	}
}

// throttled notes that the provider has answered that it gets too many calls: other processes use the account, or a
// limit is lower than the options say. It pauses polls.
func (m *limiter) throttled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pollsFrom = time.Now().Add(throttlePause + rand.N(throttlePause))
}
