package payment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"example.com/shop/internal/app"
)

// LimitOptions are the options about the provider's limits. They are per account: all processes that use the account
// share them.
type LimitOptions struct {
	StripeRate         float64 `name:"stripe-rate" default:"0" help:"The most calls a second that the provider accepts from the account. 0: 100 with a live key, 25 with a test key."`
	StripeEndpointRate float64 `name:"stripe-endpoint-rate" default:"25" help:"The most calls a second of one operation that the provider accepts from the account."`
	StripeProcesses    int     `name:"stripe-processes" default:"1" help:"The number of processes that call the provider. Each of them uses its part of the limits."`
}

// Check returns one error that names all options with wrong values.
func (o LimitOptions) Check() error {
	var errs []error
	if o.StripeRate < 0 || o.StripeRate > 10_000 {
		errs = append(errs, fmt.Errorf("%s is %v, want 0 to 10000", app.OptionName("stripe-rate"), o.StripeRate))
	}
	if o.StripeEndpointRate < 1 || o.StripeEndpointRate > 10_000 {
		errs = append(errs, fmt.Errorf("%s is %v, want 1 to 10000", app.OptionName("stripe-endpoint-rate"), o.StripeEndpointRate))
	}
	if o.StripeProcesses < 1 || o.StripeProcesses > 1000 {
		errs = append(errs, fmt.Errorf("%s is %d, want 1 to 1000", app.OptionName("stripe-processes"), o.StripeProcesses))
	}
	return app.JoinErrors(errs...)
}

// limits returns the limits of this process. live reports whether the key is a live one.
func (o LimitOptions) limits(live bool) Limits {
	rate := cmp.Or(o.StripeRate, 25)
	if live {
		rate = cmp.Or(o.StripeRate, 100)
	}
	n := float64(max(o.StripeProcesses, 1))
	return Limits{Rate: rate / n, OperationRate: o.StripeEndpointRate / n}
}

// Limits are the most calls a second of a process. A field that is 0 means no limit.
type Limits struct {
	Rate          float64 // of all calls
	OperationRate float64 // of the calls of one operation
}

// floors has the part of a bucket's tokens that a class leaves to the classes before it. One token of the bucket is not
// counted. So a class gets no token while the more important ones need them, and no class waits in a queue behind another.
var floors = map[Class]float64{ClassCreate: 0, ClassConfirm: 0.1, ClassExpire: 0.25, ClassRefund: 0.4, ClassPoll: 0.6}

// waits is the longest time for which a call waits for a token. A poll does not wait: its worker has other attempts, and
// its next check is later. With longer waits, fewer checks of several calls would fit into the timeout of their handler; those
// that do not are made again.
var waits = map[Class]time.Duration{ClassCreate: 2 * time.Second, ClassConfirm: 2 * time.Second, ClassExpire: time.Second, ClassRefund: time.Second}

const (
	// burstTime is the time whose tokens a bucket can hold. With a longer time, the provider could count more calls in one
	// second than its limit; with a shorter one, a class would find no token after a call of the class before it.
	burstTime = 500 * time.Millisecond
	// minBurst is the least number of tokens that a bucket can hold. With 1, the classes would all have the same floor; with
	// 2, each of many processes could make two calls at the same time, which together are more than the limit.
	minBurst = 1.1
	// shareOfClass is the part of the rate that each class may use whatever its floor. So polls go on, slowly, while many
	// customers pay. With a larger part, they would take the calls of those customers.
	shareOfClass = 0.05
)

// errNoToken is the error of a call that the limits of this process did not allow in time.
var errNoToken = errors.New("the limits of calls a second allow no such call now")

// limiter keeps the calls of a process within the limits of the provider.
type limiter struct {
	mu         sync.Mutex
	limits     Limits
	all        *bucket
	operations map[string]*bucket
	shares     map[Class]*bucket
	turns      map[turn]chan struct{} // each holds the call whose turn it is
	pollsFrom  time.Time              // polls are paused until then
}

// turn identifies a queue of calls that wait for tokens: those of one operation and class get theirs in the order in which
// they came. Without the order, some would wait too long by chance, although there are tokens enough for all.
type turn struct {
	class     Class
	operation string
}

func newLimiter(l Limits) *limiter {
	m := &limiter{limits: l, all: newBucket(l.Rate), operations: map[string]*bucket{}, shares: map[Class]*bucket{}, turns: map[turn]chan struct{}{}}
	for _, class := range classes {
		m.shares[class] = &bucket{rate: l.Rate * shareOfClass, burst: 1, tokens: 1}
	}
	return m
}

// bucket holds tokens, which come back with time. The number may be negative: then the use of a share is paid back first.
type bucket struct {
	rate, burst, tokens float64 // rate in tokens a second; 0: no limit
	at                  time.Time
}

func newBucket(rate float64) *bucket {
	burst := max(rate*burstTime.Seconds(), minBurst)
	return &bucket{rate: rate, burst: burst, tokens: burst}
}

func (b *bucket) refill(now time.Time) {
	if !b.at.IsZero() {
		b.tokens += now.Sub(b.at).Seconds() * b.rate
	}
	b.tokens = min(b.tokens, b.burst)
	b.at = now
}

// until returns the time until the bucket has a number of tokens; 0: it has them.
func (b *bucket) until(tokens float64) time.Duration {
	if b.rate == 0 {
		return 0
	}
	return max(0, time.Duration((tokens-b.tokens)/b.rate*float64(time.Second)))
}

// above returns the time until the bucket has a token above the floor of a class.
func (b *bucket) above(class Class) time.Duration { return b.until(1 + floors[class]*(b.burst-1)) }

// lent returns the time until a class may use its share although the bucket has no token above its floor. This may leave
// the bucket in debt, but not without end: so it still limits the sum of all calls.
func (b *bucket) lent() time.Duration { return b.until(2 - b.burst) }

// take takes a token for a call. If there is none, it returns the time after which there may be one.
func (m *limiter) take(class Class, operation string, now time.Time) (wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pause := m.pollsFrom.Sub(now); class == ClassPoll && pause > 0 {
		return pause
	}
	one, share := m.operation(operation), m.shares[class]
	for _, b := range []*bucket{m.all, one, share} {
		b.refill(now)
	}
	if wait = max(m.all.above(class), one.above(class)); wait > 0 {
		if early := max(share.until(1), m.all.lent(), one.lent()); early > 0 {
			return min(wait, early)
		}
		share.tokens--
	}
	m.all.tokens--
	one.tokens--
	return 0
}

func (m *limiter) operation(name string) *bucket {
	if m.operations[name] == nil {
		m.operations[name] = newBucket(m.limits.OperationRate)
	}
	return m.operations[name]
}

// queue returns the queue of a class and operation. A call has its turn while its send is in the channel; the sends that
// wait are served in their order.
func (m *limiter) queue(of turn) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turns[of] == nil {
		m.turns[of] = make(chan struct{}, 1)
	}
	return m.turns[of]
}

// await waits until a call may be made. Its error is a [*ProviderError] of class [Busy].
func (m *limiter) await(ctx context.Context, class Class, operation string) error {
	busy := func(err error) error { return &ProviderError{Class: Busy, Operation: operation, Err: err} }
	longest, began := waits[class], time.Now()
	if longest > 0 {
		queue := m.queue(turn{class, operation})
		select {
		case queue <- struct{}{}:
			defer func() { <-queue }()
		case <-time.After(longest):
			return busy(errNoToken)
		case <-ctx.Done():
			return busy(ctx.Err())
		}
	}
	for {
		wait := m.take(class, operation, time.Now())
		if wait == 0 {
			return nil
		}
		if time.Since(began)+wait > longest {
			return busy(errNoToken)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return busy(ctx.Err())
		}
	}
}

// throttled notes that the provider has answered that it gets too many calls: other processes use the account, or a limit
// is lower than the options say. It empties the bucket of the operation, and pauses polls.
func (m *limiter) throttled(operation string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.operation(operation)
	one.refill(now)
	one.tokens = min(one.tokens, 0)
	m.pollsFrom = now.Add(throttlePause + rand.N(throttlePause))
}
