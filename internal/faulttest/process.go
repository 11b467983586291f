package faulttest

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// mostTests is the largest number of tests at once. The sites of more tests, with some 40 connections each, could need
// more connections than the shared PostgreSQL has.
const mostTests = 16

// Main runs the tests of a package, and exits. It runs more tests at once than there are processors, unless the
// command line sets the number: most of the time a test waits for a deadline, or for a fault to end. With four for
// each processor, the tests on two slow processors missed deadlines.
func Main(m *testing.M, s *Service) {
	if err := flag.Set("test.parallel", strconv.Itoa(min(3*runtime.GOMAXPROCS(0), mostTests))); err != nil {
		panic(err)
	}
	testenv.Main(m, s.schema)
}

// schema makes the schema of a database with the program's own command. All databases of [Service.NewSite] are copies
// of it.
func (s *Service) schema(ctx context.Context, db *sql.DB) ([]string, error) {
	path, err := s.Binary()
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = conn.Raw(func(driver any) error {
		cmd := exec.CommandContext(ctx, path, s.Migrate...)
		cmd.Env = environment(EnvDatabaseURL + "=" + driver.(*stdlib.Conn).Conn().Config().ConnString())
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %v: %w: %s", s.Program, s.Migrate, err, out)
		}
		return nil
	})
	return nil, errors.Join(err, s.removeConstraints(ctx, conn))
}

// Binary returns the path of the program, which it builds once.
func (s *Service) Binary() (string, error) {
	s.program.once.Do(func() { s.program.path, s.program.err = s.build() })
	return s.program.path, s.program.err
}

func (s *Service) build() (string, error) {
	if isBroken() {
		return filepath.Join(os.Getenv(envBroken), s.Program), nil
	}
	dir, err := testenv.TempDir()
	if err != nil {
		return "", err
	}
	// The go command reuses a test's result until a file or a directory changes that the test has opened. Opening the
	// module's directories is enough: the listing of a directory shows a changed file by its time and size.
	err = filepath.WalkDir(s.Module, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, s.Program)
	return path, s.goBuild(path)
}

// goBuild builds the program with additional arguments of go build.
func (s *Service) goBuild(path string, args ...string) error {
	cmd := exec.Command("go",
		slices.Concat([]string{"build", "-ldflags=-w", "-o", path}, args, []string{"./" + s.Source})...)
	cmd.Dir = s.Module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", s.Program, err, out)
	}
	return nil
}

// The environment variables that the tests set.
const (
	EnvDatabaseURL   = EnvPrefix + "DATABASE_URL"
	envDatabaseConns = EnvPrefix + "DATABASE_CONNS"
	EnvRedisURL      = EnvPrefix + "REDIS_URL"
	EnvHTTPAddr      = EnvPrefix + "HTTP_ADDR"
	EnvTokenKey      = EnvPrefix + "TOKEN_KEY"
	EnvOpsToken      = EnvPrefix + "OPS_TOKEN"
	EnvSchedule      = EnvPrefix + "RECONCILE_SCHEDULE"
	EnvLookahead     = EnvPrefix + "RECONCILE_LOOKAHEAD"
	EnvDrain         = EnvPrefix + "DRAIN"
)

// The secrets of the processes.
const (
	TokenKey = "0123456789abcdef0123456789abcdef-e2e"
	OpsToken = "operators-of-e2e-0123"
)

// Process is a process of the program.
type Process struct {
	service  *Service
	t        testing.TB // the test that uses the process now
	Cmd      *exec.Cmd  // nil for the site at E2E_BASE_URL
	URL      string
	OpsToken string
	database string        // the URL of the site's database
	ended    chan struct{} // closed when the process has ended and its output was read

	mu     sync.Mutex
	output []string // its last lines
}

// Deployed reports whether the tests use a site that already runs, at E2E_BASE_URL. E2E_OPS_TOKEN is the token for its
// operators' API. Its rows must time out within seconds, and it must have no other customers, because the tests count
// how many more rows it can create.
func Deployed() bool { return os.Getenv("E2E_BASE_URL") != "" }

// AnySite returns the site for a test that needs only the REST API. It is the deployed site, where the tests run one
// after the other. Without a deployed site it is a process of the test's own, and the test runs in parallel with
// others.
func (s *Service) AnySite(t *testing.T) *Process {
	t.Helper()
	if Deployed() {
		t.Cleanup(http.DefaultClient.CloseIdleConnections) // a process of our own closes them when it ends
		return &Process{service: s, t: t, URL: os.Getenv("E2E_BASE_URL"), OpsToken: os.Getenv("E2E_OPS_TOKEN")}
	}
	t.Parallel()
	return s.NewSite(t, testenv.Redis(t), s.TimeoutVariable()+"=12s").Serve(t)
}

// FreeAddress returns an address on which no process listens, for a process that is started there more than once. No
// server of other tests takes it before: their ports are from 20000 on ([devstack.FreePort]).
func FreeAddress(t testing.TB) string {
	t.Helper()
	port, err := devstack.FreePortIn(10_000, 20_000)
	testenv.Must(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// NeedsProcesses skips a test on a deployed site, because the test needs processes of its own.
func NeedsProcesses(t testing.TB) {
	t.Helper()
	if Deployed() {
		t.Skip("E2E_BASE_URL is set, and the test configures, stops or kills processes of its own")
	}
}

// environment returns the environment of the tests with other variables of the program: those in env, and none of the
// developer's own.
func environment(env ...string) []string {
	ours := func(variable string) bool { return strings.HasPrefix(variable, EnvPrefix) }
	return append(slices.DeleteFunc(os.Environ(), ours), env...)
}

// Command returns a command that runs the program. The command is not started yet. Of the program's environment
// variables it has only those in env.
func (s *Service) Command(t testing.TB, env []string, args ...string) *exec.Cmd {
	t.Helper()
	NeedsProcesses(t)
	path, err := s.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = environment(env...)
	return cmd
}

// Start starts a command and waits until it serves. The process ends with the process of the tests, even if that one
// runs into the limit of go test, which calls no cleanup.
func (s *Service) Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{service: s, t: t, Cmd: cmd, OpsToken: OpsToken, ended: make(chan struct{})}
	out, stdout := io.Pipe()
	logs, stderr := io.Pipe()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	ended, err := devstack.StartChild(cmd)
	testenv.Must(t, err)
	serving := make(chan string, 2)
	var readers sync.WaitGroup
	readers.Go(func() { p.read(t, out, serving) })
	readers.Go(func() { p.read(t, logs, serving) })
	go func() {
		<-ended
		_ = stdout.Close() // it always succeeds
		_ = stderr.Close()
		readers.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		if p.t.Failed() { // the test that uses the process now
			t.Logf("output of %v:\n%s", cmd.Args[1:], p.Text())
		}
	})
	select {
	case p.URL = <-serving:
	case <-p.ended:
		t.Fatalf("%v ended before it served:\n%s", cmd.Args[1:], p.Text())
	case <-time.After(Patience):
		t.Fatalf("%v does not serve after %v", cmd.Args[1:], Patience)
	}
	return p
}

// demoOps is the line of the demo with the operators' token.
var demoOps = regexp.MustCompile(`^  ops token +(\S+)`)

// keptLines is the number of lines of a process's output that a failed test shows.
const keptLines = 500

// read keeps the output, and sends the URL at which the process serves. The demo prints the URL and, right after it,
// the operators' token. The other commands that serve log their address.
func (p *Process) read(t testing.TB, from io.ReadCloser, serving chan<- string) {
	defer from.Close()
	lines := bufio.NewScanner(from)
	demoURL := regexp.MustCompile(`^  ` + p.service.Program + ` +(http://\S+)`)
	url, found := "", false
	for lines.Scan() {
		line := lines.Text()
		p.mu.Lock()
		p.output = append(p.output[max(0, len(p.output)-keptLines):], line)
		p.mu.Unlock()
		if strings.Contains(line, `"status":500`) {
			t.Logf("internal error: %s", line) // p.output may drop the line before the test ends
		}
		if found {
			continue
		}
		var entry struct{ Addr string }
		if m := demoURL.FindStringSubmatch(line); m != nil {
			url = m[1]
		} else if m := demoOps.FindStringSubmatch(line); m != nil {
			p.OpsToken, found = m[1], true
			serving <- url
		} else if json.Unmarshal([]byte(line), &entry) == nil && entry.Addr != "" {
			found = true
			serving <- "http://" + entry.Addr
		}
	}
}

// Text returns the last lines of the output.
func (p *Process) Text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.output, "\n")
}

// Kill ends the process with SIGKILL, if it still runs.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.ended
}

// Interrupt ends the process as Ctrl-C does, and returns how long that took.
func (p *Process) Interrupt() time.Duration {
	p.t.Helper()
	began := time.Now()
	testenv.Must(p.t, p.Cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-p.ended:
	case <-time.After(Patience):
		p.t.Fatalf("the process still runs %v after SIGINT", Patience)
	}
	return time.Since(began)
}

// Site holds what processes share: a migrated database, a Redis, and the configuration.
type Site struct {
	Service         *Service
	Database, Redis string // URLs
	Env             []string
}

// NewSite returns a site with a migrated database of its own.
func (s *Service) NewSite(t testing.TB, redis string, env ...string) *Site {
	t.Helper()
	return s.NewSiteAt(testenv.Postgres(t), redis, env...)
}

// sweepInterval is the interval of the sweeps. The bounds of the faults add their grace, which is 2 s, too.
const sweepInterval = 2 * time.Second

// NewSiteAt is [Service.NewSite] with a given database, which it does not migrate.
func (s *Service) NewSiteAt(database, redis string, env ...string) *Site {
	return s.PlainSiteAt(database, redis, append([]string{
		s.TimeoutVariable() + "=3s", EnvDrain + "=0s",
		EnvSchedule + "=@every " + sweepInterval.String(), EnvLookahead + "=10s",
	}, env...)...)
}

// PlainSiteAt is [Service.NewSiteAt] with what the program needs to start and nothing else, so that it works as in
// production.
func (s *Service) PlainSiteAt(database, redis string, env ...string) *Site {
	return &Site{Service: s, Database: database, Redis: redis, Env: append([]string{
		EnvDatabaseURL + "=" + database, EnvRedisURL + "=" + redis, EnvHTTPAddr + "=127.0.0.1:0",
		EnvTokenKey + "=" + TokenKey, EnvOpsToken + "=" + OpsToken,
	}, env...)}
}

// Command returns a command that runs the program with the site's configuration. The command is not started yet.
func (s *Site) Command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return s.Service.Command(t, s.Env, args...)
}

// Serve starts a process that serves the site.
func (s *Site) Serve(t testing.TB, args ...string) *Process {
	t.Helper()
	p := s.Service.Start(t, s.Command(t, append([]string{"serve"}, args...)...))
	p.database = s.Database
	return p
}

// Run runs a command, which must succeed, and returns its output.
func (s *Site) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.Command(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", s.Service.Program, args, err, out)
	}
	return string(out)
}

// CheckHealth runs the doctor, which also checks the invariants, until the doctor finds no fault. It repeats the
// check, because a reconciler may still be repairing the queue. A broken invariant fails the test at once.
func (s *Site) CheckHealth(t testing.TB) {
	t.Helper()
	Eventually(t, "the doctor finds no fault", func() bool {
		out, err := s.Command(t, "doctor", "--full").CombinedOutput()
		if err != nil && strings.Contains(string(out), "FAIL  invariants") {
			fatalBreach(t, "an invariant does not hold: %s", out)
		}
		return err == nil
	})
}

// Patience is how long a test waits for what takes seconds on an idle machine, because the machine may be under heavy
// load.
const Patience = 3 * time.Minute

// Eventually is [testenv.EventuallyWithin] with the limit for processes.
func Eventually(t testing.TB, state string, reached func() bool) {
	t.Helper()
	testenv.EventuallyWithin(t, Patience, state, reached)
}

// Contains checks that a text contains all the parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not contain %q", text, part)
		}
	}
}
