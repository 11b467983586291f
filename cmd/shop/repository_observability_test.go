package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
)

// alert is one rule of a file of alerts.
type alert struct {
	file, name, expr, runbook string
}

var (
	alertStart   = regexp.MustCompile(`(?m)^ *- alert: `)
	alertName    = regexp.MustCompile(`^(\w+)\n`)
	alertExpr    = regexp.MustCompile(`(?m)^ *expr: +([^|>\s].*)$`) // in one line; block scalars do not match
	alertRunbook = regexp.MustCompile(`(?m)^ *runbook: +(\S+)$`)
)

// readAlerts returns all alerts. Each must have a name, an expression and the address of its runbook entry.
func readAlerts(t *testing.T) []alert {
	t.Helper()
	var alerts []alert
	for _, file := range repositoryFiles(t, alertsFiles) {
		rules := alertStart.Split(readRepositoryFile(t, file), -1)[1:]
		if len(rules) == 0 {
			t.Fatalf("found no alerts in %s", file)
		}
		for i, rule := range rules {
			names, exprs, runbooks := submatches(alertName, rule), submatches(alertExpr, rule), submatches(alertRunbook, rule)
			if len(names) != 1 || len(exprs) != 1 || len(runbooks) != 1 {
				t.Fatalf("alert %d of %s has the names %q, the expressions %q and the runbook entries %q, want one of each, on one line",
					i+1, file, names, exprs, runbooks)
			}
			alerts = append(alerts, alert{file: file, name: names[0], expr: exprs[0], runbook: runbooks[0]})
		}
	}
	return alerts
}

// TestEachAlertHasARunbookEntry checks that the section Alerts of the documents has one heading for each alert, in the
// same order, and that each alert links to its own.
func TestEachAlertHasARunbookEntry(t *testing.T) {
	linked := map[string][]string{} // the alerts' names, by document
	for _, alert := range readAlerts(t) {
		doc, fragment, _ := strings.Cut(alert.runbook, "#")
		linked[doc] = append(linked[doc], alert.name)
		if fragment != anchor(alert.name) {
			t.Errorf("alert %s of %s links to %s, want %s#%s", alert.name, alert.file, alert.runbook, doc, anchor(alert.name))
		}
	}
	for _, doc := range documents(t) {
		_, section, _ := strings.Cut(readRepositoryFile(t, doc), "\n## Alerts\n")
		section, _, _ = strings.Cut(section, "\n## ")
		entries := submatches(regexp.MustCompile(`(?m)^### (\w+)$`), section)
		if !slices.Equal(entries, linked[doc]) {
			t.Errorf("the section Alerts of %s has entries for %q, want, in this order, %q", doc, entries, linked[doc])
		}
		delete(linked, doc)
	}
	for doc, names := range linked {
		t.Errorf("the alerts %q link to %s, which is not a document", names, doc)
	}
}

// TestObservedMetricsExist checks that the alerts, the dashboards and the documents name only metrics that the program
// has. An alert on a metric that does not exist would never fire.
func TestObservedMetricsExist(t *testing.T) {
	known := programMetrics(t)
	check := func(where, expr string) {
		names := metricsOf(expr)
		if len(names) == 0 {
			t.Errorf("%s names no metric: %s", where, expr)
		}
		for _, name := range names {
			if !known[name] && name != "up" { // Prometheus itself adds the metric up
				t.Errorf("%s names the metric %q, which does not exist: %s", where, name, expr)
			}
		}
	}
	for _, alert := range readAlerts(t) {
		check("alert "+alert.name, alert.expr)
	}
	for _, panel := range readPanels(t) {
		for _, target := range panel.Targets {
			check("the panel "+panel.Title, target.Expr)
		}
	}

	word := regexp.MustCompile(`\b` + metricPrefix + `\w+`)
	found := 0
	for _, doc := range documents(t) {
		for _, name := range word.FindAllString(readRepositoryFile(t, doc), -1) {
			found++
			if !known[name] {
				t.Errorf("%s names the metric %q, which does not exist", doc, name)
			}
		}
	}
	if found == 0 {
		t.Errorf("no document names a metric with the prefix %s", metricPrefix)
	}
}

// newObservedApp returns an app that has all metrics of the program.
func newObservedApp(t *testing.T) *testApp {
	t.Helper()
	o := fullOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	return openAppWith(t, &o)
}

// programMetrics returns the names of all series of the program.
func programMetrics(t *testing.T) map[string]bool {
	t.Helper()
	a := newObservedApp(t)
	descriptions := make(chan *prometheus.Desc)
	go func() { a.Registry.Describe(descriptions); close(descriptions) }()
	fullName := regexp.MustCompile(`fqName: "(\w+)"`)
	known := make(map[string]bool)
	prefixed := 0
	for d := range descriptions {
		for _, name := range submatches(fullName, d.String()) {
			if strings.HasPrefix(name, metricPrefix) {
				prefixed++
			}
			for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
				known[name+suffix] = true
			}
		}
	}
	if prefixed == 0 {
		t.Fatalf("the program has no metric with the prefix %s", metricPrefix)
	}
	return known
}

var (
	promStrings = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'`)
	// promNoNames matches further parts of a PromQL expression without metric names: label matchers, ranges and lists
	// of labels.
	promNoNames = regexp.MustCompile(`\{[^{}]*\}|\[[^\[\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)`)
	// promWord tries numbers, durations and variables of Grafana first, so that it does not take their letters for a
	// name.
	promWord = regexp.MustCompile(`[0-9$][\w.]*|[A-Za-z_:][\w:]*(\s*\()?`)
)

// promKeywords are the words of PromQL that are neither metrics nor followed by a parenthesis.
var promKeywords = []string{
	"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "by", "without", "on", "ignoring", "group_left", "group_right",
	"sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "topk", "bottomk", "quantile", "count_values",
}

// metricsOf returns the names of the metrics of a PromQL expression: each word that is neither a function, a keyword, a
// label nor a number.
func metricsOf(expr string) []string {
	expr = promStrings.ReplaceAllString(expr, `""`) // first: a string may hold any bracket
	expr = promNoNames.ReplaceAllString(expr, " ")
	var names []string
	for _, m := range promWord.FindAllStringSubmatch(expr, -1) {
		word := m[0]
		isNumber := strings.ContainsAny(word[:1], "0123456789$")
		if isFunction := m[1] != ""; !isNumber && !isFunction && !slices.Contains(promKeywords, strings.ToLower(word)) {
			names = append(names, word)
		}
	}
	return names
}

// TestAlertedSeriesBeginAtZero checks that each series whose increase an alert observes exists when the program starts,
// because increase() does not count the event with which a series begins.
func TestAlertedSeriesBeginAtZero(t *testing.T) {
	families, err := newObservedApp(t).Registry.Gather()
	testenv.Must(t, err)
	exists := map[string]bool{}
	for _, family := range families {
		for _, m := range family.Metric {
			for _, label := range m.Label {
				exists[family.GetName()+"{"+label.GetName()+`="`+label.GetValue()+`"}`] = true
			}
		}
	}
	increase := regexp.MustCompile(`\bincrease\(([^()]*)\)`)
	selector := regexp.MustCompile(`^(\w+?)(?:_count)?(\{\w+="\w+"\})\[\w+\]$`)
	found := 0
	for _, alert := range readAlerts(t) {
		for _, argument := range submatches(increase, alert.expr) {
			found++
			m := selector.FindStringSubmatch(argument)
			if m == nil {
				t.Errorf("alert %s: increase(%s) is not the increase of a metric with one label; this test can check only those", alert.name, argument)
			} else if series := m[1] + m[2]; !exists[series] {
				t.Errorf("alert %s: the series %s does not exist at the start", alert.name, series)
			}
		}
	}
	if found < 4 {
		t.Errorf("alerts observe the increase of %d series, want 4 or more", found)
	}
}

type dashboardPanel struct {
	Title   string
	Targets []struct{ Expr string }
}

// readPanels returns the panels of all dashboards. Each dashboard must have a uid of its own and a panel.
func readPanels(t *testing.T) []dashboardPanel {
	t.Helper()
	var panels []dashboardPanel
	files := map[string]string{} // by uid
	for _, file := range repositoryFiles(t, dashboardFiles) {
		var dashboard struct {
			UID    string
			Panels []dashboardPanel
		}
		testenv.Must(t, json.Unmarshal([]byte(readRepositoryFile(t, file)), &dashboard))
		if dashboard.UID == "" || len(dashboard.Panels) == 0 {
			t.Fatalf("%s has the uid %q and %d panels, want a uid and a panel", file, dashboard.UID, len(dashboard.Panels))
		}
		if other := files[dashboard.UID]; other != "" {
			t.Errorf("%s has the uid %q, which %s has too", file, dashboard.UID, other)
		}
		files[dashboard.UID] = file
		panels = append(panels, dashboard.Panels...)
	}
	return panels
}
