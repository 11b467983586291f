// Package testenv provides a test with a database of a real PostgreSQL and an empty database of a real Redis.
//
// Each of the two servers is a container of POSTGRES_IMAGE or REDIS_IMAGE, if a container engine answers and has the
// image or can pull it. Otherwise, or if TEST_SERVERS is local, it is a child process that runs the machine's own
// binaries.
//
// On Linux the files of the tests are in memory, if the machine allows it, unless TMPDIR names a directory.
//
// A test binary starts a server when the first of its tests needs it, and stops it after the last test.
//
// A test is skipped if the machine lacks a feature that the test needs. On a machine without Redis, tests that call
// [Redis] use a stand-in. TEST_REQUIRE lists, separated by commas, the features that the machine must have: postgres,
// redis, containers, browser, faketime (servers whose clocks differ), pgbouncer, rabbitmq (only for the module bench).
// If the machine lacks a required feature, the tests that need it fail.
//
// A test that calls [Slow] is skipped, too, unless TEST_ALL is 1. If TEST_REQUIRE lists slow, such a test fails
// instead of being skipped. Without TEST_ALL, tests repeat what they try by chance less often: see [Rounds] and [Main].
package testenv

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"example.com/shop/internal/devstack"
)

// Migration applies a schema to a database, and returns the names of the files that it applied.
type Migration func(ctx context.Context, db *sql.DB) ([]string, error)

// Main runs a package's tests, stops their servers, and exits. Each database that [Postgres] returns has the schema
// that the migrations make in their order. Without migrations the databases have no tables. The exit status is not 0 if
// a test fails, a server does not stop, or a goroutine is still running.
//
// Unless TEST_ALL is 1, rapid checks a property with 20 random values instead of 100. The flag -rapid.checks overrides
// both.
func Main(m *testing.M, schema ...Migration) {
	templateSchema = schema
	_ = flag.Set("rapid.checks", strconv.Itoa(Rounds(20, 100))) // an error: the package does not use rapid
	useMemory()
	code := m.Run()
	var errs []error
	for _, f := range slices.Backward(afterAll.funcs) {
		errs = append(errs, f())
	}
	err := errors.Join(errs...)
	if code == 0 && err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv: after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Skip skips a test because the machine lacks a feature. If TEST_REQUIRE lists the feature, Skip fails the test
// instead. The reason says what is missing and how to install it.
func Skip(t testing.TB, feature, reason string) {
	t.Helper()
	if required(feature) {
		t.Fatalf("%s, but TEST_REQUIRE lists %s", reason, feature)
	}
	t.Skip(reason)
}

// Slow skips a test that is too slow for a plain go test ./..., unless TEST_ALL is 1. The reason says what takes long.
func Slow(t testing.TB, reason string) {
	t.Helper()
	if !all() {
		Skip(t, "slow", "slow ("+reason+"): TEST_ALL=1 runs it")
	}
}

// Rounds returns how often a test repeats what it tries by chance, such as a race: few times or, if TEST_ALL is 1, many
// times.
func Rounds(few, many int) int {
	if all() {
		return many
	}
	return few
}

func all() bool { return os.Getenv("TEST_ALL") == "1" }

// required reports whether TEST_REQUIRE lists the feature.
func required(feature string) bool {
	return slices.Contains(strings.Split(os.Getenv("TEST_REQUIRE"), ","), feature)
}

// templateSchema is what [Main] got. The servers that start when the first test needs them read it.
var templateSchema []Migration

var afterAll struct {
	mu    sync.Mutex
	funcs []func() error
}

// AfterAll registers a function that [Main] calls after all tests of this binary. The function that was registered last
// is called first.
func AfterAll(f func() error) {
	afterAll.mu.Lock()
	defer afterAll.mu.Unlock()
	afterAll.funcs = append(afterAll.funcs, f)
}

// TempDir returns a directory that the tests of this binary and their servers share. [Main] removes it after the tests.
func TempDir() (string, error) { return tempDir() }

var tempDir = sync.OnceValues(func() (string, error) {
	dir, err := devstack.TempDir()
	if err == nil {
		AfterAll(func() error { return os.RemoveAll(dir) })
	}
	return dir, err
})
