package ops

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"example.com/shop/internal/app"
)

// TestInvariantsAreCheckedOneAtATime has checks that take longer than a request waits for them. The requests get the result of
// the last check that succeeded, with its time, and never none.
func TestInvariantsAreCheckedOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		checks := 0
		takes, found, failure := checkWait*5/2, []app.Violation{{Invariant: 1}}, error(nil)
		c := &checker{log: slog.New(slog.DiscardHandler), check: func(context.Context, bool) ([]app.Violation, error) {
			checks++
			<-time.After(takes)
			return found, failure
		}}
		expect := func(when string, wantChecks, wantViolations int, at time.Duration) {
			t.Helper()
			r := c.result(t.Context())
			synctest.Wait() // the check that is under way, if any, has read the variables
			if r.violations == nil || len(r.violations) != wantViolations || checks != wantChecks {
				t.Errorf("%s: the violations are %v after %d checks, want %d after %d", when, r.violations, checks, wantViolations, wantChecks)
			}
			if at < 0 != (r.at == nil) || r.at != nil && !r.at.Equal(began.Add(at)) {
				t.Errorf("%s: the check began at %v, want %v after %v", when, r.at, at, began)
			}
		}
		expect("the first request, which waits in vain", 1, 0, -1)
		expect("the second one, too", 1, 0, -1)
		expect("the third one, until the end of the check", 1, 1, 0)
		expect("while the service rests", 1, 1, 0)
		<-time.After((checkRest + 1) * takes)
		takes, failure = time.Millisecond, errors.New("the database is down")
		expect("after a check that failed", 2, 1, 0)
		<-time.After(time.Second)
		failure, found = nil, []app.Violation{}
		expect("after a check that found nothing", 3, 0, time.Since(began))
	})
}

// TestCheckOutlivesItsRequest ends the context of the request that started a check.
func TestCheckOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &checker{log: slog.New(slog.DiscardHandler), check: func(ctx context.Context, _ bool) ([]app.Violation, error) {
			<-time.After(2 * time.Second)
			return []app.Violation{}, ctx.Err()
		}}
		ended, end := context.WithCancel(t.Context())
		end()
		c.result(ended)
		<-time.After(3 * time.Second)
		if r := c.result(t.Context()); r.at == nil {
			t.Error("the check has no result")
		}
	})
}
