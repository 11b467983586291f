package main

import (
	"encoding/json"
	"flag"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A subtest's name may be cut short by an ellipsis.
var namedTest = regexp.MustCompile("`((?:Test|Benchmark)[A-Za-z0-9]+)(?:/([^`…]+))?")

// TestReadmeNamesRealTests: a claim whose test was renamed or removed is a claim that nothing shows.
func TestReadmeNamesRealTests(t *testing.T) {
	named := namedTest.FindAllStringSubmatch(readFile(t, "../../README.md"), -1)
	if len(named) < 20 {
		t.Errorf("the README names %d tests, want one in each row of its tables", len(named))
	}
	tests := testFiles(t)
	for _, name := range named {
		if !strings.Contains(tests, "func "+name[1]+"(") {
			t.Errorf("the README names %s, which does not exist", name[1])
		}
		if subtest := strings.ReplaceAll(name[2], "_", " "); subtest != "" && !strings.Contains(tests, `"`+subtest) {
			t.Errorf("the README names the subtest %q of %s, which does not exist", subtest, name[1])
		}
	}
}

var (
	alertName   = regexp.MustCompile(`(?m)^ *- alert: (\w+)$`)
	runbookOf   = regexp.MustCompile(`(?m)^ *runbook: README\.md#runbook (\w+)$`)
	runbookName = regexp.MustCompile("(?m)^\\| `(\\w+)` \\|")
)

// TestEachAlertHasARunbookEntry: who is woken by an alert finds its name in the README, and nothing there is of no alert.
func TestEachAlertHasARunbookEntry(t *testing.T) {
	alerts := readFile(t, "../../observability/alerts.yml")
	_, runbook, _ := strings.Cut(readFile(t, "../../README.md"), "\n## Runbook\n")
	runbook, _, _ = strings.Cut(runbook, "\n## ")
	names := submatches(alertName, alerts)
	if len(names) == 0 {
		t.Fatal("no alerts at all")
	}
	if annotated := submatches(runbookOf, alerts); !slices.Equal(annotated, names) {
		t.Errorf("the alerts %q are annotated with the runbook entries %q", names, annotated)
	}
	if entries := submatches(runbookName, runbook); !slices.Equal(entries, names) {
		t.Errorf("the runbook has entries of %q, want, in this order, of %q", entries, names)
	}
}

var (
	metricName = regexp.MustCompile(`\bshop_\w+`)
	describes  = regexp.MustCompile(`fqName: "(\w+)"`)
)

// TestObservedMetricsExist: an alert on a metric that was renamed is silent for ever.
func TestObservedMetricsExist(t *testing.T) {
	a := newTestApp(t, "redis://127.0.0.1:1/0", 1)
	if _, err := a.handler(&serveOptions{}, nil); err != nil { // the requests' metrics are its own
		t.Fatal(err)
	}
	descriptions := make(chan *prometheus.Desc)
	go func() { a.registry.Describe(descriptions); close(descriptions) }()
	known := map[string]bool{}
	for d := range descriptions {
		for _, name := range submatches(describes, d.String()) {
			for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
				known[name+suffix] = true
			}
		}
	}
	_, runbook, _ := strings.Cut(readFile(t, "../../README.md"), "\n## Runbook\n")
	for where, text := range map[string]string{
		"an alert":      readFile(t, "../../observability/alerts.yml"),
		"the dashboard": readFile(t, "../../observability/grafana/dashboards/shop.json"),
		"the runbook":   runbook,
	} {
		for _, name := range metricName.FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("%s looks at %s, which does not exist", where, name)
			}
		}
	}
}

// TestAlertedSeriesBeginAtZero: increase() of a series that begins with its first event misses that one.
func TestAlertedSeriesBeginAtZero(t *testing.T) {
	families, err := newTestApp(t, "redis://127.0.0.1:1/0", 1).registry.Gather()
	must(t, err)
	there := map[string]bool{}
	for _, family := range families {
		for _, m := range family.Metric {
			for _, label := range m.Label {
				there[family.GetName()+"{"+label.GetName()+`="`+label.GetValue()+`"}`] = true
			}
		}
	}
	increased := regexp.MustCompile(`increase\((\w+)(\{\w+="\w+"\})`)
	series := increased.FindAllStringSubmatch(readFile(t, "../../observability/alerts.yml"), -1)
	for _, s := range series {
		if name := strings.TrimSuffix(s[1], "_count") + s[2]; !there[name] {
			t.Errorf("at the start there is no %s", name)
		}
	}
	if len(series) < 4 {
		t.Errorf("alerts look at %d series, want 4 or more", len(series))
	}
}

// TestMethodsAreFew: callers make up methods, and each would be a series.
func TestMethodsAreFew(t *testing.T) {
	a := newTestApp(t, "redis://127.0.0.1:1/0", 1)
	handler, err := a.handler(&serveOptions{}, nil)
	must(t, err)
	for i := range 10 {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "BREW"+strconv.Itoa(i), "/healthz/", nil))
		if recorder.Code < 400 || recorder.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("answered %d of the type %s", recorder.Code, recorder.Header().Get("Content-Type"))
		}
	}
	if n, err := testutil.GatherAndCount(a.registry, "shop_http_request_seconds"); err != nil || n != 1 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestDashboardIsJSON(t *testing.T) {
	var dashboard struct {
		UID    string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal([]byte(readFile(t, "../../observability/grafana/dashboards/shop.json")), &dashboard))
	if dashboard.UID == "" || len(dashboard.Panels) == 0 {
		t.Errorf("a dashboard %q of %d panels", dashboard.UID, len(dashboard.Panels))
	}
	for _, panel := range dashboard.Panels {
		if len(panel.Targets) == 0 || panel.Targets[0].Expr == "" {
			t.Errorf("the panel %q asks for nothing", panel.Title)
		}
	}
}

var imageDefault = regexp.MustCompile(`\$\{(\w+_IMAGE):-([^}]+)\}`)

// TestImagesAreTheSameEverywhere: the tests run on the versions that are deployed, pinned ones.
func TestImagesAreTheSameEverywhere(t *testing.T) {
	defaults := imageDefault.FindAllStringSubmatch(readFile(t, "../../docker-compose.yml"), -1)
	others := readFile(t, "../../Dockerfile") + readFile(t, "../../internal/devstack/container.go")
	for _, d := range defaults {
		name, image := d[1], d[2]
		if !regexp.MustCompile(`:v?\d+\.\d+`).MatchString(image) {
			t.Errorf("%s: %s has no version", name, image)
		}
		if strings.Contains(others, name) && !strings.Contains(others, image) {
			t.Errorf("%s is %s in docker-compose.yml, and another one in the Dockerfile or in devstack", name, image)
		}
	}
	if len(defaults) != 6 {
		t.Errorf("docker-compose.yml has defaults for %d images, want 6", len(defaults))
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	return string(text)
}

// submatches is the first group of each match.
func submatches(re *regexp.Regexp, text string) (first []string) {
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		first = append(first, m[1])
	}
	return first
}

// testFiles is the text of all of the module's tests.
func testFiles(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	module := os.DirFS("../..")
	must(t, fs.WalkDir(module, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := fs.ReadFile(module, path)
		text.Write(file)
		return err
	}))
	return text.String()
}

var bareEvents = flag.String("bare.events", "", "what `go test -json ./...` printed on a machine with Go and PostgreSQL alone: a file")

var (
	installs = regexp.MustCompile(`apt-get install ([a-z][a-z0-9.-]+)`)
	skipsRow = regexp.MustCompile("(?m)^\\| `([a-z][a-z0-9.-]+)` \\|.*\\| (\\d+) \\|$")
)

// TestReadmeCountsSkips compares the README's table of skipped tests with what a bare machine skipped. The reason of
// each skip names the package that the machine lacks.
func TestReadmeCountsSkips(t *testing.T) {
	if *bareEvents == "" {
		t.Skip("the events of a bare machine are not given: .ci/bare/newcomer records them and runs this test with -bare.events")
	}
	skipped := map[string]int{}
	output := map[string]string{} // of each test
	for dec := json.NewDecoder(strings.NewReader(readFile(t, *bareEvents))); dec.More(); {
		var event struct{ Action, Package, Test, Output string }
		must(t, dec.Decode(&event))
		test := event.Package + " " + event.Test
		output[test] += event.Output
		if m := installs.FindStringSubmatch(output[test]); event.Action == "skip" && event.Test != "" && m != nil {
			skipped[m[1]]++
		}
	}
	if len(skipped) == 0 {
		t.Fatal("nothing was skipped: these are not a bare machine's events")
	}
	start, _, _ := strings.Cut(readFile(t, "../../README.md"), "\n## ")
	documented := map[string]int{}
	for _, row := range skipsRow.FindAllStringSubmatch(start, -1) {
		n, err := strconv.Atoi(row[2])
		must(t, err)
		documented[row[1]] = n
	}
	if !maps.Equal(documented, skipped) {
		t.Errorf("the README says that these packages' absence skips so many tests: %v; it was %v", documented, skipped)
	}
}
