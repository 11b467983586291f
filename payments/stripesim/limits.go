package stripesim

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"time"
)

// limits counts calls, and limits their rate as Stripe does: all calls together, and those of each operation. See
// https://docs.stripe.com/rate-limits.
type limits struct {
	mu      sync.Mutex
	buckets map[string]*bucket // by operation, "" for all calls
	counts  map[Calls]int      // by operation and status; the Count of the keys is 0
}

// bucket has a token for each call that is allowed now. It fills at the rate, up to the calls of one second.
type bucket struct {
	tokens float64
	filled time.Time
}

func newLimits() limits {
	return limits{buckets: map[string]*bucket{}, counts: map[Calls]int{}}
}

// take takes a token for a call, or returns the reason why there is none, as it stands in the header
// Stripe-Rate-Limited-Reason.
func (l *limits) take(operation string, k Knobs, now time.Time) (reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.has("", k.Rate, now):
		return "global-rate"
	case !l.has(operation, k.EndpointRate, now):
		return "endpoint-rate"
	}
	for _, name := range []string{"", operation} {
		if b := l.buckets[name]; b != nil {
			b.tokens--
		}
	}
	return ""
}

// has fills a bucket, and reports whether it has a token. The rate 0 stands for no limit. The caller holds mu.
func (l *limits) has(operation string, rate int, now time.Time) bool {
	if rate == 0 {
		delete(l.buckets, operation)
		return true
	}
	b := l.buckets[operation]
	if b == nil {
		b = &bucket{tokens: float64(rate), filled: now}
		l.buckets[operation] = b
	}
	b.tokens = min(b.tokens+float64(rate)*now.Sub(b.filled).Seconds(), float64(rate))
	b.filled = now
	return b.tokens >= 1
}

func (l *limits) count(operation string, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[Calls{Operation: operation, Status: status}]++
}

// Calls are the calls of one operation that were answered with one status since the simulator was opened.
type Calls struct {
	Operation string `json:"operation"` // the method and the path, for instance "GET /v1/checkout/sessions/{id}"
	Status    int    `json:"status"`    // 0: the client got no answer
	Count     int    `json:"count"`
}

// Calls returns the numbers of calls of the API.
func (s *Simulator) Calls() []Calls {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	all := []Calls{}
	for c, n := range s.limits.counts {
		c.Count = n
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Calls) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Status, b.Status))
	})
	return all
}

// errRateLimit is the answer to a call for which there is no token. Stripe does not store it for the idempotency key.
var errRateLimit = &apiError{status: http.StatusTooManyRequests, Type: "invalid_request_error", Code: "rate_limit",
	Message: "Request rate limit exceeded. Learn more about rate limits here https://docs.stripe.com/rate-limits."}

// errLockTimeout is the answer to a call that needs an object that another call changes. It has no effect.
var errLockTimeout = &apiError{status: http.StatusTooManyRequests, Type: "invalid_request_error", Code: "lock_timeout",
	Message: "This object cannot be accessed right now because another API request or Stripe process is currently " +
		"accessing it."}
