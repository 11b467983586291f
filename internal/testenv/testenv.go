// Package testenv gives a test a clean PostgreSQL database and a clean Redis, real ones.
//
// The servers are, in this order: those that SHOP_TEST_DATABASE_URL and SHOP_TEST_REDIS_URL name; containers
// of POSTGRES_IMAGE and REDIS_IMAGE, where a container engine answers and has or can pull them; the
// machine's own binaries, at once where SHOP_TEST_SERVERS is local. A test binary starts them when a test first asks,
// and stops them at its end.
//
// A test that needs something the machine lacks is skipped, and [Main] lists what was skipped and why. Of Redis
// there is a stand-in for the tests that do not break it. SHOP_TEST_REQUIRE lists, separated by commas, what must
// not be missing: postgres, redis, containers, browser, faketime (servers whose clocks are apart).
package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"example.com/shop/internal/devstack"
)

// Main runs a package's tests, stops what they started, and fails if a goroutine is left.
func Main(m *testing.M) {
	code := m.Run()
	fmt.Fprint(os.Stderr, skipped.summary()) // go test shows it with -v, or if a test of the package failed
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Skip skips a test for what the machine lacks, or fails it if SHOP_TEST_REQUIRE lists the feature.
func Skip(t testing.TB, feature, reason string) {
	t.Helper()
	if required(feature) {
		t.Fatalf("%s, and SHOP_TEST_REQUIRE demands %s", reason, feature)
	}
	t.Cleanup(func() {
		if t.Skipped() {
			skipped.add(t.Name(), reason)
		}
	})
	t.Skip(reason)
}

// skipped is what the tests of this binary were skipped for.
var skipped skips

// skips are the names of skipped tests, by reason.
type skips struct {
	mu    sync.Mutex
	tests map[string][]string
}

func (s *skips) add(test, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tests == nil {
		s.tests = map[string][]string{}
	}
	s.tests[reason] = append(s.tests[reason], test)
}

// summary has one line for each reason, the most frequent first; it is empty if no test was skipped.
func (s *skips) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	reasons := slices.SortedFunc(maps.Keys(s.tests), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(s.tests[b]), len(s.tests[a])), cmp.Compare(a, b))
	})
	var lines strings.Builder
	for _, reason := range reasons {
		tests := s.tests[reason]
		fmt.Fprintf(&lines, "testenv: %d skipped: %s: %s\n", len(tests), reason, strings.Join(tests, ", "))
	}
	return lines.String()
}

func required(feature string) bool {
	for name := range strings.SplitSeq(os.Getenv("SHOP_TEST_REQUIRE"), ",") {
		if strings.TrimSpace(name) == feature {
			return true
		}
	}
	return false
}

// shared is what the tests of one binary share: servers, started by the first who asks.
var shared servers

type servers struct {
	mu    sync.Mutex
	stops []func() error // the last started first

	postgres lazy[*postgres]
	redis    lazy[string]
	cluster  lazy[[]string]
	dir      lazy[string]
}

// AfterAll has f called once all tests of this binary have run. What was registered last is called first.
func AfterAll(f func() error) { shared.onStop(f) }

// onStop has something done once all tests have run.
func (s *servers) onStop(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = append(s.stops, f)
}

func (s *servers) stop() error {
	var errs []error
	for _, f := range slices.Backward(s.stops) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// lazy is a value made once. An error stays too: what does not start now will not start for the next test.
type lazy[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (l *lazy[T]) get(make func() (T, error)) (T, error) {
	l.once.Do(func() { l.value, l.err = make() })
	return l.value, l.err
}

// TempDir is a directory that the tests of this binary share, and that is gone when they are done. Its
// servers keep their files in it.
func TempDir() (string, error) {
	return shared.dir.get(func() (string, error) {
		dir, err := devstack.TempDir()
		if err == nil {
			shared.onStop(func() error { return os.RemoveAll(dir) })
		}
		return dir, err
	})
}

// background outlives the test that starts a server: the next ones use it too.
func background() context.Context { return context.Background() }
