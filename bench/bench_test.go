package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
	"example.com/shop/bench/rabbit"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// TestMain runs the tests, or a contender: the benchmark starts its own executable again for each contender.
func TestMain(m *testing.M) {
	if options, ok := isContender(); ok {
		os.Exit(contenderMain(options))
	}
	testenv.Main(m)
}

// TestQuick runs `bench -quick`. Each contender must cancel all orders of each workload that it can do, except those
// that may be lost in a fault, and the shop's own way must keep its promise in each fault.
func TestQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("-short skips the run of all contenders, which takes some minutes")
	}
	r := measureQuick(t)
	for _, c := range r.contenders {
		for _, m := range []metric{
			{burst, "pending"}, {steady, "100/pending"}, {mixed, "pending"}, {contender.Reschedule, "pending"},
		} {
			values := r.results.of(c.Name, m)
			if reason := r.results.whyMissing(c.Name, m.workload); reason == "" && !slices.Equal(values, []float64{0}) {
				t.Errorf("%s, %s: %v orders were not cancelled, want 0", c.Name, m.workload, values)
			}
		}
		for _, cell := range r.results.cells(c.Name) {
			if cell.Failed != "" {
				t.Errorf("%s, %s failed: %s", c.Name, cell.Workload, cell.Failed)
			}
		}
	}
	for _, f := range faultCases {
		all := r.outcomes(ours.Name, f)
		if len(all) != 1 || !all[0].kept() {
			t.Errorf("%s: the outcomes of the shop's own way are %+v, want one in which the promise is kept", f.name, all)
		}
	}
	checkReport(t, r)
	t.Run("RabbitMQ", func(t *testing.T) {
		for _, c := range r.contenders {
			if r.results.whyMissing(c.Name, burst) == rabbit.ErrMissing.Error() {
				testenv.Skip(t, "rabbitmq", rabbit.ErrMissing.Error())
			}
		}
	})
}

// measureQuick measures all contenders as -quick does.
func measureQuick(t *testing.T) *report {
	t.Helper()
	o, err := parse([]string{"-quick", "-report", filepath.Join(t.TempDir(), "report.md")}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	r := &report{options: o, contenders: all(), results: newTestResults(t, "")}
	err = measure(t.Context(), r, newProgress(os.Stderr))
	switch {
	case errors.Is(err, devstack.ErrNoPostgres):
		testenv.Skip(t, "postgres", err.Error())
	case errors.Is(err, devstack.ErrNoRedis):
		testenv.Skip(t, "redis", err.Error())
	case err != nil:
		t.Fatal(err)
	}
	return r
}

// checkReport checks that the report has a row for each contender in the tables that must have one, and that its plots
// are XML.
func checkReport(t *testing.T, r *report) {
	t.Helper()
	text := written(t, r)
	sections := strings.Split(text, "\n## ")
	for _, title := range []string{"", "Faults", "Contenders"} {
		i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, title) })
		if i < 0 {
			t.Fatalf("the report has no section %q", title)
		}
		for _, c := range r.contenders {
			if !strings.Contains(sections[i], "\n| "+c.Name+" |") && !strings.Contains(sections[i], "\n| ["+c.Name+"](") {
				t.Errorf("the table of the section %q has no row %s", title, c.Name)
			}
		}
	}
	plots, err := filepath.Glob(filepath.Join(filepath.Dir(r.file), "*.svg"))
	if err != nil || len(plots) == 0 {
		t.Fatalf("found no plots: %v", err)
	}
	for _, plot := range plots {
		svg, err := os.ReadFile(plot)
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(svg, new(struct{})); err != nil {
			t.Errorf("%s is not XML: %v", filepath.Base(plot), err)
		}
		if !strings.Contains(text, "("+filepath.Base(plot)+")") {
			t.Errorf("the report does not show %s", filepath.Base(plot))
		}
	}
}

// TestNamesAreUnique checks that each contender has a name of its own and is described, and that each name in another
// list is that of a contender.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range all() {
		if seen[c.Name] || c.Name == "" || strings.HasPrefix(c.Name, "limit") {
			t.Errorf("the name %q is empty, is that of a limit, or is repeated", c.Name)
		}
		seen[c.Name] = true
		if c.Way == "" || c.Source == "" || c.Settings == "" || c.New == nil {
			t.Errorf("%s: Way, Source, Settings or New is missing", c.Name)
		}
		if picks[c.Name] == "" {
			t.Errorf("%s: the table at the beginning of the report does not say when to pick it", c.Name)
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(picks)), pressed) {
		if !seen[name] {
			t.Errorf("picks or pressed has %q, which is no contender", name)
		}
	}
}

// TestUnknownContender checks the error for a name that no contender has.
func TestUnknownContender(t *testing.T) {
	if _, err := find("quartz"); err == nil || !strings.Contains(err.Error(), `"quartz"`) || !strings.Contains(err.Error(), ours.Name) {
		t.Errorf("got the error %v, want one with the name and with those of the contenders", err)
	}
}

// TestCommandLine checks the errors for wrong command lines.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-rounds=-1", "want at least 0"},
		{"-only=[", "-only"},
		{"-parts=speed,luck", `there is no part "luck"; they are: pressure, growth, speed, faults`},
		{"fast", `unexpected argument "fast"`},
		{"-fast", "not defined: -fast"},
	} {
		var errs strings.Builder
		if _, err := parse([]string{c.args}, &errs); err == nil || !strings.Contains(errs.String(), c.want) {
			t.Errorf("bench %s: error %v, printed %q; want %q", c.args, err, errs.String(), c.want)
		}
	}
	o, err := parse([]string{"-quick", "-redis-url=redis://127.0.0.1:6379/0"}, io.Discard)
	if err != nil || o.Lanes != 1 {
		t.Errorf("with a given Redis there are %d lanes, error %v; want 1, because lanes cannot share servers", o.Lanes, err)
	}
	o, err = parse([]string{"-rounds=0"}, io.Discard)
	if err != nil || o.Rounds != full.Rounds {
		t.Errorf("-rounds=0: got %d rounds, error %v; want the default of %d", o.Rounds, err, full.Rounds)
	}
	o, err = parse([]string{"-rounds=7", "-only=^ours$"}, io.Discard)
	if err != nil || o.Rounds != 7 || len(matching(o.only)) != 1 {
		t.Errorf("got %d rounds, %d contenders, error %v; want 7, 1, none", o.Rounds, len(matching(o.only)), err)
	}
}

// TestQuantile checks quantiles of few values.
func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v of %v is %v, want %v", q, values, got, want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("the median of no values is a number, want NaN")
	}
	if got := median([]float64{4, 1, 2, 8}); got != 3 {
		t.Errorf("the median of four values is %v, want 3, the mean of the two in the middle", got)
	}
}

// TestCell checks how a cell shows no value, one value, several values, NaN, and a value that is better than ours.
func TestCell(t *testing.T) {
	r := newTestReport(t, ours.Name, "a", "b", "NaN", "none")
	m := metric{burst, "rate"}
	for name, values := range map[string][]float64{
		ours.Name: {100}, "a": {100, 300, 200}, "b": {50}, "NaN": {math.NaN()}, oneStatement: {500},
	} {
		addValues(t, r, name, m, values...)
	}
	for _, c := range []struct {
		row    string
		column column
		want   string
	}{
		{"a", column{metric: m, format: "%.0f"}, "200"},
		{"a", column{metric: m, format: "%.0f", better: higher}, "**200**"},
		{"a", column{metric: m, format: "%.0f", better: lower}, "200"},
		{"b", column{metric: m, format: "%.1f", scale: 0.1, better: lower}, "**5.0**"},
		{ours.Name, column{metric: m, format: "%.0f", better: higher}, "100"},
		{oneStatement, column{metric: m, format: "%.0f", better: higher}, "500"},
		{"none", column{metric: m, format: "%.0f", better: lower}, ""},
		{"NaN", column{metric: m, format: "%.0f", better: lower}, ""},
	} {
		if got := r.cell(c.row, c.column); got != c.want {
			t.Errorf("cell %s: got %q, want %q", c.row, got, c.want)
		}
	}
}

// addValues adds a cell with values of a metric.
func addValues(t *testing.T, r *report, name string, m metric, values ...float64) {
	t.Helper()
	c := cell{Workload: m.workload, Contender: name, Run: len(r.results.cells(name)) + 1}
	for _, v := range values {
		c.report(m.workload, map[string]float64{m.name: v})
	}
	testenv.Must(t, r.results.add(c))
}

// newTestResults opens the file of results at a path, or results without a file.
func newTestResults(t *testing.T, path string) *results {
	t.Helper()
	r, err := openResults(path)
	testenv.Must(t, err)
	return r
}

// newTestReport returns a report of contenders with these names. It has the sizes of a full run.
func newTestReport(t *testing.T, names ...string) *report {
	var contenders []contender.Info
	for _, name := range names {
		contenders = append(contenders, contender.Info{Name: name})
	}
	return &report{
		options:    options{sizes: full, file: filepath.Join(t.TempDir(), "report.md")},
		contenders: contenders, results: newTestResults(t, ""),
	}
}

// written returns the text of a report.
func written(t *testing.T, r *report) string {
	t.Helper()
	var out strings.Builder
	if err := r.write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestBetter checks which values are clearly better than ours.
func TestBetter(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		better      better
		value, ours float64
		want        bool
	}{
		{higher, 126, 100, true}, {higher, 124, 100, false}, {higher, 74, 100, false}, {higher, 1, 0, true},
		{lower, 74, 100, true}, {lower, 76, 100, false}, {lower, 126, 100, false}, {lower, 1, 0, false}, {lower, 0, 1, true},
		{higher, nan, 1, false}, {higher, 1, nan, false}, {lower, 1, nan, false}, {0, 2, 1, false},
	} {
		if got := (column{better: c.better}).isBetter(c.value, c.ours); got != c.want {
			t.Errorf("better %d, %v beside our %v: got %v, want %v", c.better, c.value, c.ours, got, c.want)
		}
	}
}

// TestFaultCell checks how the report shows the outcomes of a fault in two runs.
func TestFaultCell(t *testing.T) {
	inStore := faultCases[slices.IndexFunc(faultCases, func(f faultCase) bool { return f.inStore })]
	for _, c := range []struct {
		fault    faultCase
		servers  []contender.Server
		outcomes []outcome
		want     string
	}{
		{faultCases[0], nil, []outcome{{latest: 1.25}, {latest: 0.5}}, "1.2"},
		{faultCases[0], nil, []outcome{{lost: 3, latest: 1}, {lost: 5}}, "**3–5**"},
		{faultCases[0], nil, []outcome{{latest: 1}, {lost: 5, early: 1}}, "**0–5, 0–1 early**"},
		{faultCases[0], nil, []outcome{{wrong: 2}, {wrong: 2}}, "**2 wrong**"},
		{faultCases[0], nil, nil, ""},
		{inStore, nil, nil, "n/a"},
		{inStore, []contender.Server{contender.Redis}, nil, ""},
	} {
		r := newTestReport(t, "a")
		if got := r.faultCell(contender.Info{Name: "a", Servers: c.servers}, c.fault, c.outcomes); got != c.want {
			t.Errorf("%s, %+v: got %q, want %q", c.fault.name, c.outcomes, got, c.want)
		}
	}
}

// TestWavering checks which cells of a fault get more tries.
func TestWavering(t *testing.T) {
	keeps := func(run, tries int) cell {
		return cell{Workload: "f", Run: run, Values: map[string]map[string][]float64{"f": {
			"lost": make([]float64, tries), "early": make([]float64, tries), "wrong": make([]float64, tries),
			"latest": make([]float64, tries),
		}}}
	}
	breaks := keeps(9, 2)
	breaks.Values["f"]["lost"][1] = 3
	if o := breaks.outcome(); o.kept() {
		t.Errorf("the outcome is %+v, want that of the worst try", o)
	}
	for _, c := range []struct {
		cells []cell
		want  []int // the runs
	}{
		{nil, nil},
		{[]cell{keeps(1, 3), keeps(2, 3)}, nil},
		{[]cell{breaks, breaks}, nil},
		{[]cell{keeps(1, 3), breaks, keeps(2, 12), keeps(3, 11)}, []int{1, 3}},
	} {
		var got []int
		for _, c := range wavering(slices.Clone(c.cells), 12) {
			got = append(got, c.Run)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("the runs with more tries are %v, want %v", got, c.want)
		}
	}
	poll, often := contender.Info{Period: 1}, faultCase{once: true}
	for _, c := range []struct {
		info        contender.Info
		fault       faultCase
		tries, most int
	}{{poll, faultCase{}, 1, 1}, {contender.Info{}, often, 1, 1}, {contender.Info{}, faultCase{}, 3, 12}} {
		if tries, most := full.Faults.triesOf(c.info, c.fault); tries != c.tries || most != c.most {
			t.Errorf("%+v, %+v: %d tries, or %d; want %d, or %d", c.info, c.fault, tries, most, c.tries, c.most)
		}
	}
}

// TestClonedCell checks that values that are added to a copy of a cell are not added to the cell.
func TestClonedCell(t *testing.T) {
	c := cell{Workload: burst}
	c.report(burst, map[string]float64{"rate": 1})
	copied := c.clone()
	copied.report(burst, map[string]float64{"rate": 2})
	if got, all := c.Values[burst]["rate"], copied.Values[burst]["rate"]; len(got) != 1 || !slices.Equal(all, []float64{1, 2}) {
		t.Errorf("the cell has %v and its copy %v, want 1, and 1 and 2", got, all)
	}
}

// TestPartOf checks that each workload belongs to a part.
func TestPartOf(t *testing.T) {
	want := map[string]string{growth: "growth", pressure: "pressure"}
	for _, f := range faultCases {
		want[f.name] = faults
	}
	for _, w := range workloads {
		want[w.name] = "speed"
	}
	for workload, part := range want {
		if got := partOf(workload); got != part {
			t.Errorf("the part of %s is %s, want %s", workload, got, part)
		}
	}
}

// addOutcome adds the cell of a fault.
func addOutcome(t *testing.T, r *report, name string, f faultCase, o outcome) {
	t.Helper()
	c := cell{Workload: f.name, Contender: name, Run: len(r.outcomes(name, f)) + 1}
	c.report(f.name, map[string]float64{"lost": o.lost, "early": o.early, "wrong": o.wrong, "latest": o.latest})
	testenv.Must(t, r.results.add(c))
}

// TestFaultVerdicts checks what the report says on the promise of each contender, and on runs that differ.
func TestFaultVerdicts(t *testing.T) {
	r := newTestReport(t, "breaks", "keeps", "wavers", "incomplete")
	for _, run := range []float64{1, 0} {
		for _, f := range faultCases {
			addOutcome(t, r, "keeps", f, outcome{latest: 2 + run})
		}
		addOutcome(t, r, "incomplete", faultCases[0], outcome{latest: 1})
		addOutcome(t, r, "breaks", faultCases[1], outcome{lost: 1, latest: 9})
		addOutcome(t, r, "breaks", faultCases[3], outcome{early: 2})
		addOutcome(t, r, "wavers", faultCases[2], outcome{lost: run})
	}
	text := written(t, r)
	for _, want := range []string{
		"\n| keeps | kept | 3.0 |", "\n| breaks | broken: b d | 9.0 |", "\n| wavers | broken: c | 0.0 |",
		"\n| incomplete |  |  |",
		"The 2 runs differ in whether the promise is kept in: wavers in c.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
	if strings.Index(text, "\n| keeps |") > strings.Index(text, "\n| breaks |") {
		t.Errorf("a way that keeps its promise does not come first:\n%s", text)
	}
}

// TestResultsAreKept checks that results are read again, that a later cell replaces one that failed, and the error for
// a line that is not complete.
func TestResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	r := newTestResults(t, path)
	lines := []string{"Go: 1", "Redis: 2"}
	for range 2 {
		if name, err := r.describe(lines); name != "1" || err != nil {
			t.Errorf("the setup is called %q, error %v; want 1", name, err)
		}
	}
	c := cell{Workload: burst, Contender: "a", Run: 1, Setup: "1", Failed: "once"}
	testenv.Must(t, r.add(c))
	if r.has(burst, "a", 1) || r.whyMissing("a", burst) != "failed: once" {
		t.Error("a cell that failed is not missing")
	}
	c.Failed = ""
	c.report(burst, map[string]float64{"rate": 7, "NaN": math.NaN()})
	testenv.Must(t, r.add(c))

	again := newTestResults(t, path)
	if !again.has(burst, "a", 1) || again.has(burst, "a", 2) || again.whyMissing("a", burst) != "" {
		t.Error("the cells that were read are not those that were added")
	}
	if values := again.of("a", metric{burst, "rate"}); !slices.Equal(values, []float64{7}) {
		t.Errorf("the values are %v, want 7", values)
	}
	if name, err := again.describe(lines); name != "1" || err != nil {
		t.Errorf("the setup that was read is called %q, error %v; want 1", name, err)
	}

	text, err := os.ReadFile(path)
	testenv.Must(t, err)
	testenv.Must(t, os.WriteFile(path, text[:len(text)-5], 0o644))
	if _, err := openResults(path); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("got the error %v, want one with the number of the line", err)
	}
}

// TestReportOfQuickRun checks that the report of a quick run begins with a warning.
func TestReportOfQuickRun(t *testing.T) {
	r := newTestReport(t, ours.Name)
	r.isQuick, r.sizes = true, quick
	if text := written(t, r); !strings.HasPrefix(text, "# Side by side\n\nQuick run: ") {
		t.Errorf("the report does not begin with a warning:\n%s", text)
	}
}

// TestFewerPending checks the remark on contenders that did not schedule all pending orders.
func TestFewerPending(t *testing.T) {
	r := newTestReport(t, "all", "some", "loads")
	most := slices.Max(r.Pending)
	m := metric{growth, fmt.Sprint(most, "/pending")}
	addValues(t, r, "all", m, float64(most))
	if got := r.fewerPending(most); got != "" {
		t.Errorf("got %q without such a contender, want nothing", got)
	}
	addValues(t, r, "some", m, 7000)
	if got, want := r.fewerPending(most), ", or those that are scheduled in 3m0s (some: 7 k)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPlotsWithoutValues checks that plots have no coordinates that are NaN or infinite if values are absent or 0.
func TestPlotsWithoutValues(t *testing.T) {
	r := newTestReport(t, "none", "zero", "NaN")
	prefix := fmt.Sprint(r.Steady[0], "/")
	for _, m := range []metric{
		{burst, "rate"}, {steady, prefix + "p99"}, {growth, fmt.Sprint(r.Pending[0], "/burst")},
	} {
		addValues(t, r, "zero", m, 0) // but no p50
		addValues(t, r, "NaN", m, math.NaN())
	}
	for _, svg := range []string{r.barPlot("", metric{burst, "rate"}), r.rangePlot("", prefix), r.linePlot("")} {
		if wrong := regexp.MustCompile(`="[^"]*(NaN|Inf)[^"]*"`).FindString(svg); wrong != "" {
			t.Errorf("a plot has the attribute %s", wrong)
		}
	}
}

// TestAxis checks that an axis begins and ends with powers of ten, and ignores values without a logarithm.
func TestAxis(t *testing.T) {
	a := newAxis([]float64{0, 3, math.NaN(), 250}, 100, 400)
	for value, want := range map[float64]float64{1: 100, 10: 200, 1000: 400, 0: 100, math.NaN(): 100} {
		if got := a.at(value); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v is at %v, want %v", value, got, want)
		}
	}
	if ticks := a.ticks(); !slices.Equal(ticks, []float64{1, 10, 100, 1000}) {
		t.Errorf("the ticks are %v, want 1, 10, 100, 1000", ticks)
	}
}

// TestDatabaseMustKeepCommitTimes checks the error for a PostgreSQL without the times of commits.
func TestDatabaseMustKeepCommitTimes(t *testing.T) {
	_, err := startServers(t.Context(), given{database: testenv.Postgres(t)}, nil)
	if err == nil || !regexp.MustCompile(`track_commit_timestamp is off, want on`).MatchString(err.Error()) {
		t.Errorf("got the error %v, want one about track_commit_timestamp", err)
	}
}

// TestRedisMustBeEmpty checks that the benchmark does not delete the keys of a Redis that others use.
func TestRedisMustBeEmpty(t *testing.T) {
	s := &servers{dir: t.TempDir()}
	url := testenv.Redis(t)
	if err := s.startRedis(t.Context(), given{redis: url}); err != nil {
		t.Fatal(err)
	}
	defer s.redis.Close()
	if err := s.redis.Set(t.Context(), "theirs", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	err := (&servers{dir: t.TempDir()}).startRedis(t.Context(), given{redis: url})
	if err == nil || !strings.Contains(err.Error(), "1 keys, want an empty one") {
		t.Errorf("got the error %v, want one about the keys", err)
	}
}
