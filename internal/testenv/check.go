package testenv

import (
	"testing"
	"time"
)

// Must fails the test at once if err is not nil. It is for steps that the test needs, and does not examine.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until reached returns true, and fails the test if that takes longer than 30 s. The limit is long,
// because the machine may be under heavy load. state describes the state that the test waits for.
func Eventually(t testing.TB, state string, reached func() bool) {
	t.Helper()
	EventuallyWithin(t, 30*time.Second, state, reached)
}

// EventuallyWithin is [Eventually] with another limit.
func EventuallyWithin(t testing.TB, limit time.Duration, state string, reached func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := firstPause; !reached(); pause = min(pause+pause/8, longestPause) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for this state, which was not reached: %s", limit, state)
		}
		<-time.After(pause)
	}
}

const (
	// firstPause is the time between the first two calls of an [Eventually]. Each pause is longer than the one before
	// by an eighth, because each call takes processor time from other tests.
	firstPause = 2 * time.Millisecond
	// longestPause is the longest time between two calls, so that a test which waits for seconds is hardly delayed.
	longestPause = 200 * time.Millisecond
)
