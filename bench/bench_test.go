package main

import (
	"encoding/xml"
	"errors"
	"io"
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
		if lost := r.results.of(ours.Name, metric{workload, "lost"}); !slices.Equal(lost, []float64{0}) {
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
	var out strings.Builder
	if err := r.write(&out); err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(out.String(), "\n## ")
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
		text, err := os.ReadFile(plot)
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(text, new(struct{})); err != nil {
			t.Errorf("%s is not XML: %v", filepath.Base(plot), err)
		}
		if !strings.Contains(out.String(), "("+filepath.Base(plot)+")") {
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
		{"-rounds=-1", "want at least 1"},
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

// TestCell checks how a cell shows no value, one value, several values and a ratio.
func TestCell(t *testing.T) {
	r := newReport(options{}, nil)
	m := metric{burst, "rate"}
	for _, v := range []float64{100, 300, 200} {
		r.results.add("a", m, v)
	}
	r.results.add("b", m, 50)
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
	} {
		if got := r.cell(c.row, c.column); got != c.want {
			t.Errorf("cell %s: got %q, want %q", c.row, got, c.want)
		}
	}
}

// TestBetterThanOurs checks the list of the contenders that are better than ours by at least 5 %.
func TestBetterThanOurs(t *testing.T) {
	r := newReport(options{}, []contender.Info{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: ours.Name}})
	m := metric{burst, "rate"}
	for name, value := range map[string]float64{"a": 0, "b": 104, "c": 200, ours.Name: 100} {
		r.results.add(name, m, value)
	}
	c := column{metric: m, format: "%.0f", better: higher}
	if got := r.betterThanOurs(c); !slices.Equal(got, []string{"c 200"}) {
		t.Errorf("higher is better: got %q, want c only", got)
	}
	r.results.add("b", m, 50) // the median of two values is the greater one
	r.results.add("b", m, 50)
	c.better = lower
	if got := r.betterThanOurs(c); !slices.Equal(got, []string{"b 50"}) {
		t.Errorf("lower is better: got %q, want b only", got)
	}
}

// TestAxis checks that an axis begins and ends with powers of ten, and ignores values without a logarithm.
func TestAxis(t *testing.T) {
	a := newAxis([]float64{0, 3, math.NaN(), 250}, 100, 400)
	for value, want := range map[float64]float64{1: 100, 10: 200, 1000: 400, 0: 100} {
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
