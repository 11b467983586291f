package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
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

	"example.com/shop/internal/testenv"
)

// TestMain has more tests run at once than there are processors, unless the command line says how many: most of
// the time they wait for a deadline or for a fault to end.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testenv.Main(m)
}

// binary builds shop once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := testenv.TempDir()
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs it too
		return "", err
	}
	// The go command keeps a test's result until a file changes that the test has looked at.
	err = filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "shop")
	out, err := exec.Command("go", "build", "-ldflags=-w", "-o", path, "../cmd/shop").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build shop: %w: %s", err, out)
	}
	return path, nil
})

const (
	tokenKey = "0123456789abcdef0123456789abcdef-e2e"
	opsToken = "operators-of-e2e-0123"
)

// process is a running shop.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	url    string
	ops    string
	ended  chan struct{}
	mu     sync.Mutex
	output []string
}

// deployed tells whether the tests go to a site that runs already, at E2E_BASE_URL. E2E_OPS_TOKEN opens its operators'
// API, its orders time out within seconds, and it has no other customers: the tests count its stock.
func deployed() bool { return os.Getenv("E2E_BASE_URL") != "" }

// anywhere is where a test runs that needs the REST API only: the deployed site, one test after the other, or else
// a process of its own, in parallel with other tests.
func anywhere(t *testing.T) *process {
	t.Helper()
	if deployed() {
		t.Cleanup(http.DefaultClient.CloseIdleConnections) // to a process of our own they end with it
		return &process{t: t, url: os.Getenv("E2E_BASE_URL"), ops: os.Getenv("E2E_OPS_TOKEN")}
	}
	t.Parallel()
	return newSite(t, testenv.Redis(t)).serve(t)
}

// needsProcesses skips a test that a deployed site is not enough for.
func needsProcesses(t testing.TB) {
	t.Helper()
	if deployed() {
		t.Skip("configures, stops or kills processes of its own: not on the site at E2E_BASE_URL")
	}
}

// command is a shop with arguments and environment, not started. Of our variables it has those of env alone:
// whoever runs the tests may have set some.
func command(t testing.TB, env []string, args ...string) *exec.Cmd {
	t.Helper()
	needsProcesses(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	ours := func(variable string) bool { return strings.HasPrefix(variable, "SHOP_") }
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), env...)
	return cmd
}

// start starts a command and waits until it says that it serves.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, ops: opsToken, ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	must(t, err)
	logs, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	serving := make(chan string, 2)
	var readers sync.WaitGroup
	readers.Go(func() { p.read(out, serving) })
	readers.Go(func() { p.read(logs, serving) })
	go func() {
		readers.Wait()
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("output of %v:\n%s", cmd.Args[1:], p.text())
		}
	})
	select {
	case p.url = <-serving:
	case <-p.ended:
		t.Fatalf("%v ended at once:\n%s", cmd.Args[1:], p.text())
	case <-time.After(time.Minute):
		t.Fatalf("%v does not serve", cmd.Args[1:])
	}
	return p
}

var (
	demoURL = regexp.MustCompile(`^  shop +(http://\S+)`)
	demoOps = regexp.MustCompile(`^  ops token +(\S+)`)
)

// keptLines is how much of its output is shown for a process that fails a test.
const keptLines = 500

// read keeps the output and finds in it where the process serves: the demo prints it, its token right
// after, and serve logs it.
func (p *process) read(from io.Reader, serving chan<- string) {
	lines := bufio.NewScanner(from)
	url, found := "", false
	for lines.Scan() {
		line := lines.Text()
		p.mu.Lock()
		p.output = append(p.output[max(0, len(p.output)-keptLines):], line)
		p.mu.Unlock()
		if strings.Contains(line, `"status":500`) {
			p.t.Logf("an internal error: %s", line) // kept however long the test goes on
		}
		if found {
			continue
		}
		var entry struct{ Msg, Addr string }
		if m := demoURL.FindStringSubmatch(line); m != nil {
			url = m[1]
		} else if m := demoOps.FindStringSubmatch(line); m != nil {
			p.ops, found = m[1], true
			serving <- url
		} else if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "serving" {
			found = true
			serving <- "http://" + entry.Addr
		}
	}
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.output, "\n")
}

// kill ends the process with SIGKILL, if it still runs.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// interrupt ends it as Ctrl-C does, and returns how long it took.
func (p *process) interrupt() time.Duration {
	p.t.Helper()
	began := time.Now()
	must(p.t, p.cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatal("does not stop")
	}
	return time.Since(began)
}

// site is a migrated database with products, and a Redis: what processes share.
type site struct {
	database, redis string
	env             []string
	binary          string // of another version; "": this one
}

func newSite(t testing.TB, redis string, env ...string) *site {
	t.Helper()
	return newSiteAt(t, testenv.Postgres(t), redis, env...)
}

// newSiteAt is newSite on a given database, which may have no schema yet.
func newSiteAt(t testing.TB, database, redis string, env ...string) *site {
	t.Helper()
	s := &site{database: database, redis: redis}
	s.env = append([]string{
		"SHOP_DATABASE_URL=" + s.database, "SHOP_REDIS_URL=" + redis, "SHOP_HTTP_ADDR=127.0.0.1:0",
		"SHOP_TOKEN_KEY=" + tokenKey, "SHOP_OPS_TOKEN=" + opsToken,
		"SHOP_ORDER_TIMEOUT=3s", "SHOP_RECONCILE_SCHEDULE=@every 2s", "SHOP_RECONCILE_LOOKAHEAD=10s", "SHOP_DRAIN=0s",
	}, env...)
	s.run(t, "migrate", "--seed")
	return s
}

// command is a shop at the site, not started.
func (s *site) command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := command(t, s.env, args...)
	cmd.Path = cmp.Or(s.binary, cmd.Path)
	return cmd
}

// serve starts a process of the site.
func (s *site) serve(t testing.TB, args ...string) *process {
	t.Helper()
	return start(t, s.command(t, append([]string{"serve"}, args...)...))
}

// run runs a command to its end, which must be a good one, and returns what it printed.
func (s *site) run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.command(t, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("shop %v: %v: %s", args, err, out)
	}
	return string(out)
}

// healthy has the doctor check everything, the invariants among it. A reconciler may be between two looks.
func (s *site) healthy(t testing.TB) {
	t.Helper()
	eventually(t, "a healthy site", func() bool {
		out, err := s.command(t, "doctor").CombinedOutput()
		if err != nil && strings.Contains(string(out), "FAIL  invariants") {
			t.Fatalf("invariants are broken: %s", out)
		}
		return err == nil
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a state; its deadline is for a machine under heavy load. It looks less and less often, because
// each look takes time from the other tests.
func eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for wait := 10 * time.Millisecond; !reached(); wait = min(2*wait, 200*time.Millisecond) {
		if !pause(ctx, wait) {
			t.Fatalf("never reached: %s", what)
		}
	}
}
