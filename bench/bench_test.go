package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
// that may be lost in a fault, and the shop's own way must lose none.
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
			if reason := r.results.cannot[c.Name][m.workload]; reason == "" && !slices.Equal(values, []float64{0}) {
				t.Errorf("%s, %s: %v orders were not cancelled, want 0", c.Name, m.workload, values)
			}
		}
		for workload, reason := range r.results.cannot[c.Name] {
			if strings.HasPrefix(reason, "failed") {
				t.Errorf("%s, %s: %s", c.Name, workload, reason)
			}
		}
	}
	for _, workload := range []string{crash, contender.StoreLost} {
		if lost := r.results.of(ours.Name, metric{workload, "pending"}); !slices.Equal(lost, []float64{0}) {
			t.Errorf("%s: the shop's own way lost %v orders, want 0", workload, lost)
		}
	}
	checkReport(t, r)
	t.Run("RabbitMQ", func(t *testing.T) {
		for _, c := range r.contenders {
			if r.results.cannot[c.Name][burst] == rabbit.ErrMissing.Error() {
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
	r := newReport(o, all())
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

// checkReport checks that the report has a row for each contender in each table, and that its plots are XML.
func checkReport(t *testing.T, r *report) {
	t.Helper()
	text := written(t, r)
	_, tables, _ := strings.Cut(text, "\n## ")
	for section := range strings.SplitSeq(tables, "\n## ") {
		title, rows, _ := strings.Cut(section, "\n")
		if strings.HasPrefix(title, "Where others") {
			continue // a list of some contenders
		}
		for _, c := range r.contenders {
			if !strings.Contains(rows, "\n| "+c.Name+" |") {
				t.Errorf("the table %s has no row %s", title, c.Name)
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

// TestNamesAreUnique checks that each contender has a name of its own and is described.
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
}

// TestCell checks how a cell shows no value, one value, several values, NaN and a ratio.
func TestCell(t *testing.T) {
	r := newReport(options{}, nil)
	m := metric{burst, "rate"}
	for _, v := range []float64{100, 300, 200} {
		r.results.add("a", m, v)
	}
	r.results.add("b", m, 50)
	r.results.add("b", m, math.NaN())
	r.results.add("NaN", m, math.NaN())
	for _, c := range []struct {
		row    string
		column column
		want   string
	}{
		{"a", column{metric: m, format: "%.0f"}, "200 (100–300)"},
		{"b", column{metric: m, format: "%.0f"}, "50"},
		{"b", column{metric: m, format: "%.1f", scale: 0.1}, "5.0"},
		{"b", column{metric: m, format: "%.2f", ratio: "a"}, "0.25"},
		{"b", column{metric: m, format: "%.2f", ratio: "none"}, "–"},
		{"none", column{metric: m, format: "%.0f"}, "–"},
		{"NaN", column{metric: m, format: "%.0f"}, "–"},
		{"NaN", column{metric: m, format: "%.2f", ratio: "a"}, "–"},
		{"b", column{metric: m, format: "%.2f", ratio: "NaN"}, "–"},
	} {
		if got := r.cell(c.row, c.column); got != c.want {
			t.Errorf("cell %s: got %q, want %q", c.row, got, c.want)
		}
	}
}

// newTestReport returns a report of contenders with these names. It has the sizes of a full run.
func newTestReport(t *testing.T, names ...string) *report {
	var contenders []contender.Info
	for _, name := range names {
		contenders = append(contenders, contender.Info{Name: name})
	}
	return newReport(options{sizes: full, file: filepath.Join(t.TempDir(), "report.md")}, contenders)
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

// TestBetterThanOurs checks the list of the contenders that are better than ours by at least 5 %.
func TestBetterThanOurs(t *testing.T) {
	for _, c := range []struct {
		name   string
		better better
		values map[string]float64
		want   []string
	}{
		{"higher is better", higher, map[string]float64{"a": 0, "b": 104, "c": 200, "d": 106, ours.Name: 100}, []string{"c 200", "d 106"}},
		{"lower is better", lower, map[string]float64{"a": 0, "b": 96, "c": 200, "d": 94, ours.Name: 100}, []string{"a 0", "d 94"}},
		{"ours is 0, and higher is better", higher, map[string]float64{"a": 0, "b": 1, ours.Name: 0}, []string{"b 1"}},
		{"ours is 0, and lower is better", lower, map[string]float64{"a": 0, "b": 1, ours.Name: 0}, nil},
		{"ours is below 0", lower, map[string]float64{"a": -1, "b": -2, ours.Name: -1}, []string{"b -2"}},
		{"ours has no value, and higher is better", higher, map[string]float64{"a": 0, "b": 1}, nil},
		{"ours has no value, and lower is better", lower, map[string]float64{"a": 0, "b": 1}, nil},
		{"others have no value", higher, map[string]float64{ours.Name: 1}, nil},
		{"neither is better", 0, map[string]float64{"a": 0, "b": 2, ours.Name: 1}, nil},
	} {
		r := newTestReport(t, "a", "b", "c", "d", ours.Name)
		m := metric{burst, "rate"}
		for name, value := range c.values {
			r.results.add(name, m, value)
		}
		if got := r.betterThanOurs(column{metric: m, format: "%.0f", better: c.better}); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestBetterIsComplete checks that each column has a better direction, except ratios and the lag.
func TestBetterIsComplete(t *testing.T) {
	for _, table := range newTestReport(t).tables() {
		for _, c := range table.columns {
			if compared, want := c.better != 0, c.ratio == "" && !strings.HasSuffix(c.title, ": lag"); compared != want {
				t.Errorf("%s, %s: compared with ours: %v, want %v", table.title, c.title, compared, want)
			}
		}
	}
}

// TestBetterThanOursAfterFault checks that the lateness after a fault is compared only if all orders were cancelled.
func TestBetterThanOursAfterFault(t *testing.T) {
	r := newTestReport(t, ours.Name, "complete", "incomplete")
	for name, latest := range map[string]float64{ours.Name: 10, "complete": 2, "incomplete": 1} {
		r.results.add(name, metric{crash, "max"}, latest)
	}
	r.results.add("complete", metric{crash, "pending"}, 0)
	r.results.add("incomplete", metric{crash, "pending"}, 500)
	const want = "- Crash, latest, s, ours 10.00: complete 2.00\n"
	if text := written(t, r); !strings.Contains(text, want) {
		t.Errorf("the report has no line %q:\n%s", want, text)
	}
}

// TestBetterListIsShort checks that a line of the list has at most five names.
func TestBetterListIsShort(t *testing.T) {
	r := newTestReport(t, ours.Name, "a", "b", "c", "d", "e", "f", "g")
	for i, c := range r.contenders {
		r.results.add(c.Name, metric{burst, "rate"}, float64(10*(i+1)))
	}
	const want = "- Burst, orders/s, ours 10: g 80; f 70; e 60; d 50; c 40; and 2 more\n"
	if text := written(t, r); !strings.Contains(text, want) {
		t.Errorf("the report has no line %q:\n%s", want, text)
	}
}

// TestReportTables checks which tables and rows a report has, and the number of rounds without ours.
func TestReportTables(t *testing.T) {
	r := newTestReport(t, "a", "b", "c")
	for range 3 {
		r.results.add("a", metric{burst, "rate"}, 100)
		r.results.endRound()
	}
	r.results.noteMissing("a", burst, "failed: once")
	r.results.noteMissing("b", burst, "failed: each time")
	r.results.noteMissing("c", crash, "no time")
	text := written(t, r)
	for _, want := range []string{
		"\n- Rounds: 3;", "\n| a | 100 | – |", "\n| b | failed: each time |", "\n| c | – |", "\n## Crash\n", "(report-burst.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
	for _, wrong := range []string{"failed: once", "## Steady", "## Memory", "steady.svg", "Where others", "Quick run"} {
		if strings.Contains(text, wrong) {
			t.Errorf("the report has %q:\n%s", wrong, text)
		}
	}
}

// TestReportOfQuickRun checks that the report of a quick run begins with a warning.
func TestReportOfQuickRun(t *testing.T) {
	r := newTestReport(t, ours.Name)
	r.isQuick, r.sizes = true, quick
	const want = "# Side by side\n\nQuick run: it checks that each contender works. Its figures mean nothing, because several " +
		"contenders ran at the same time.\n"
	if text := written(t, r); !strings.HasPrefix(text, want) {
		t.Errorf("the report does not begin with %q:\n%s", want, text)
	}
}

// TestP999TableColumns checks that the 99.9th percentile is shown only for enough orders.
func TestP999TableColumns(t *testing.T) {
	r := newTestReport(t)
	r.Steady, r.SteadyFor = []int{1000, 2499, 2500}, 2*time.Second
	var titles []string
	for _, table := range r.tables() {
		for _, c := range table.columns {
			if strings.HasSuffix(c.title, "p99.9") {
				titles = append(titles, table.title+", "+c.title)
			}
		}
	}
	if !slices.Equal(titles, []string{"Steady, 2500/s: p99.9"}) {
		t.Errorf("the columns of p99.9 are %q, want one for 2500/s", titles)
	}
}

// TestPlotsWithoutValues checks that plots have no coordinates that are NaN or infinite if values are absent or 0.
func TestPlotsWithoutValues(t *testing.T) {
	r := newTestReport(t, "none", "zero", "NaN")
	prefix := fmt.Sprint(r.Steady[0], "/")
	for _, m := range []metric{
		{burst, "rate"}, {steady, prefix + "p99"}, {growth, fmt.Sprint(r.Pending[0], "/burst")},
	} {
		r.results.add("zero", m, 0) // but no p50
		r.results.add("NaN", m, math.NaN())
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
