package programtest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
)

// ObservedMetrics checks that alerts, dashboards and documents name only metrics that a registry has, because an alert
// on a metric that does not exist would never fire. A series whose increase an alert or a dashboard observes must exist
// from the start, because increase() does not count the event with which a series begins.
func ObservedMetrics(t testing.TB, registry *prometheus.Registry, observers, docs Texts) {
	t.Helper()
	known := map[string]bool{"up": true} // Prometheus itself adds it
	descriptions := make(chan *prometheus.Desc)
	go func() { registry.Describe(descriptions); close(descriptions) }()
	for d := range descriptions {
		name := submatches(`fqName: "(\w+)"`, d.String())[0]
		known[name], known[name+"_bucket"], known[name+"_count"], known[name+"_sum"] = true, true, true, true
	}
	families, err := registry.Gather()
	testenv.Must(t, err)
	for _, family := range families {
		for _, m := range family.Metric {
			for _, label := range m.Label {
				known[family.GetName()+"{"+label.GetName()+`="`+label.GetValue()+`"}`] = true
			}
		}
	}
	check := func(file string, names []string) {
		t.Helper()
		for _, name := range names {
			if !known[name] && !known[strings.Replace(name, "_count{", "{", 1)] {
				t.Errorf("%s names %s, which does not exist, or not from the start", file, name)
			}
		}
	}
	// The parts of an expression that are no metrics: labels, ranges, lists of labels, functions.
	other := regexp.MustCompile(`\{[^{}]*\}|\[[^\[\]]*\]|\b(?:by|without|on|ignoring|group_\w+) *\([^()]*\)|\w+ *\(`)
	for file, text := range observers {
		for _, expr := range submatches(`\bexpr"?: ("(?:[^"\\]|\\.)*"|.+)`, text) {
			names := submatches(`\b([a-zA-Z]\w*_\w+|up)\b`, other.ReplaceAllString(expr, " "))
			if len(names) == 0 {
				t.Errorf("%s has an expression without a metric: %s", file, expr)
			}
			check(file, append(names, submatches(`\bincrease\(([^()\[]*)`, expr)...))
		}
	}
	for doc, text := range docs {
		check(doc, submatches(`\b(shop_\w+)`, text))
	}
}
