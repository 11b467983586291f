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

// TestInvariantsAreCheckedOneAtATime has checks that take longer than the time between two requests. The requests get
// the result of the last check that succeeded, with its time.
func TestInvariantsAreCheckedOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		checks := 0
		takes, found, failure := 5*time.Second/2, []app.Violation{{Invariant: 1}}, error(nil)
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
				t.Errorf("%s: the violations are %v after %d checks, want %d after %d",
					when, r.violations, checks, wantViolations, wantChecks)
			}
			if at < 0 != (r.at == nil) || r.at != nil && !r.at.Equal(began.Add(at)) {
				t.Errorf("%s: the check began at %v, want %v after %v", when, r.at, at, began)
			}
			<-time.After(time.Second)
			synctest.Wait()
		}
		expect("the first request", 1, 0, -1)
		expect("a second later", 1, 0, -1)
		expect("shortly before the end of the check", 1, 0, -1)
		expect("after the check", 1, 1, 0)
		<-time.After(checkRest * takes)
		synctest.Wait()
		takes, failure = time.Millisecond, errors.New("the database is down")
		expect("when a check fails", 2, 1, 0)
		failure, found = nil, []app.Violation{}
		ran := time.Since(began)
		expect("when a check finds nothing", 3, 1, 0)
		expect("after this check", 4, 0, ran)
	})
}

// TestCheckOutlivesItsRequest ends the context of the request that started a check.
func TestCheckOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &checker{log: slog.New(slog.DiscardHandler),
			check: func(ctx context.Context, _ bool) ([]app.Violation, error) {
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
