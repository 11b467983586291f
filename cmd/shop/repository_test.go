package main

import (
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
)

// The tests of this file check that the documents, the alerts, the dashboards and the imports agree with the program.
const (
	repositoryRoot = "../.."
	modulePath     = "example.com/shop"
	documents      = `(?:bench/)?(?:README\.md|docs/[^/]*\.md)`
	alerts         = `(?:payments/)?deploy/observability/alerts[^/]*\.yml`
	dashboards     = `(?:payments/)?deploy/observability/(?:grafana/)?dashboards/[^/]*\.json`
)

// repositoryFiles returns the texts of the files whose names, below the root of the repository, match an expression.
func repositoryFiles(t *testing.T, expr string) map[string]string {
	t.Helper()
	match := regexp.MustCompile("^(?:" + expr + ")$")
	texts := map[string]string{}
	testenv.Must(t, fs.WalkDir(os.DirFS(repositoryRoot), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && len(name) > 1 && name[0] == '.' {
			return fs.SkipDir // such as .git
		}
		if err != nil || !match.MatchString(name) {
			return err
		}
		text, err := os.ReadFile(path.Join(repositoryRoot, name))
		texts[name] = string(text)
		return err
	}))
	if len(texts) == 0 {
		t.Fatalf("found no files %s", expr)
	}
	return texts
}

// submatches returns the first group of each match.
func submatches(expr, text string) (first []string) {
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(text, -1) {
		first = append(first, m[1])
	}
	return first
}

// TestLinks checks that the relative links of the documents and of the alerts lead to files, and their anchors to
// headings, and that every document has a link from the README of its module.
func TestLinks(t *testing.T) {
	docs := repositoryFiles(t, documents)
	fenced, code := regexp.MustCompile("(?ms)^```.*?^```$"), regexp.MustCompile("`[^`\n]*`")
	for doc, text := range docs {
		docs[doc] = fenced.ReplaceAllString(text, "")
	}
	type link struct{ from, to string }
	links := map[link]bool{}
	check := func(from, folder, target string) {
		file, fragment, _ := strings.Cut(target, "#")
		to := from
		if file != "" {
			to = path.Join(folder, file)
		}
		links[link{from, to}] = true
		if _, err := os.Stat(path.Join(repositoryRoot, to)); err != nil {
			t.Errorf("%s: the link %s leads nowhere: %v", from, target, err)
		} else if fragment != "" && !slices.Contains(anchors(docs[to]), fragment) {
			t.Errorf("%s: the link %s leads to no heading of %s", from, target, to)
		}
	}
	for from, text := range docs {
		for _, target := range submatches(`\]\(([^()\s]+)\)`, code.ReplaceAllString(text, "code")) {
			if !strings.Contains(target, "://") {
				check(from, path.Dir(from), target)
			}
		}
	}
	for from, text := range repositoryFiles(t, alerts) {
		for _, target := range submatches(`(?m)^ *runbook: (\S+)$`, text) {
			check(from, ".", target)
		}
	}
	for doc := range docs {
		readme := "README.md"
		if strings.HasPrefix(doc, "bench/docs/") {
			readme = "bench/README.md"
		}
		if doc != readme && !links[link{readme, doc}] {
			t.Errorf("%s has no link to %s", readme, doc)
		}
	}
}

// anchors returns the anchors that GitHub gives to a document's headings.
func anchors(text string) []string {
	headings := submatches(`(?m)^#{1,6} +(.+?) *$`, strings.ToLower(text))
	for i, heading := range headings {
		headings[i] = regexp.MustCompile(`[^\pL\pN_-]`).ReplaceAllString(strings.ReplaceAll(heading, " ", "-"), "")
	}
	return headings
}

// TestDocsNameRealTests checks that all tests that the documents name exist.
func TestDocsNameRealTests(t *testing.T) {
	exists := map[string]bool{}
	for _, text := range repositoryFiles(t, `.*_test\.go`) {
		for _, name := range submatches(`(?m)^func ((?:Test|Benchmark)\w+)\(`, text) {
			exists[name] = true
		}
	}
	for doc, text := range repositoryFiles(t, documents) {
		for _, name := range submatches("`((?:Test|Benchmark)[A-Z]\\w+)", text) {
			if !exists[name] {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	}
}

// TestConfigurationTable compares the documents' tables of options with the options. Each option has one row.
func TestConfigurationTable(t *testing.T) {
	rows := map[string]string{} // by variable
	for doc, text := range repositoryFiles(t, documents) {
		for _, row := range submatches("(?m)^(\\| `SHOP_\\w+` \\|.*)$", text) {
			variable := strings.Fields(row)[1]
			if rows[variable] != "" {
				t.Errorf("%s has a second row for %s", doc, variable)
			}
			rows[variable] = row
		}
	}
	for _, o := range allOptions(testParser(t, io.Discard)) {
		cells := o.row()
		want := "| " + strings.Join(cells, " | ") + " | "
		if meaning, ok := strings.CutPrefix(rows[cells[0]], want); !ok || meaning == "|" {
			t.Errorf("the documents have the row\n%s\nwant\n%s%s |", rows[cells[0]], want, o.help)
		}
		delete(rows, cells[0])
	}
	for variable := range rows {
		t.Errorf("the documents have a row for %s, which is not an option", variable)
	}
}

// TestObservedMetricsExist checks that the alerts, the dashboards and the documents name only metrics that the program
// has, because an alert on a metric that does not exist would never fire. A series whose increase an alert observes
// must exist from the start, because increase() does not count the event with which a series begins.
func TestObservedMetricsExist(t *testing.T) {
	o := fullOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	registry := openAppWith(t, &o).Registry
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
		for _, name := range names {
			if !known[name] && !known[strings.Replace(name, "_count{", "{", 1)] {
				t.Errorf("%s names %s, which does not exist, or not from the start", file, name)
			}
		}
	}
	// What is no metric: labels, ranges, lists of labels, functions.
	other := regexp.MustCompile(`\{[^{}]*\}|\[[^\[\]]*\]|\b(?:by|without|on|ignoring|group_\w+) *\([^()]*\)|\w+ *\(`)
	for file, text := range repositoryFiles(t, alerts+"|"+dashboards) {
		for _, expr := range submatches(`\bexpr"?: ("(?:[^"\\]|\\.)*"|.+)`, text) {
			names := submatches(`\b([a-zA-Z]\w*_\w+|up)\b`, other.ReplaceAllString(expr, " "))
			if len(names) == 0 {
				t.Errorf("%s has an expression without a metric: %s", file, expr)
			}
			check(file, append(names, submatches(`\bincrease\(([^()\[]*)`, expr)...))
		}
	}
	for doc, text := range repositoryFiles(t, documents) {
		check(doc, submatches(`\b(shop_\w+)`, text))
	}
}

// layers gives the layer of each shared package, 1 for the lowest. They import shared packages of lower layers.
var layers = map[string]int{
	"internal/clip": 1, "internal/keyset": 1, "internal/postgres": 1, "migrations": 1,
	"internal/batch": 2, "internal/delay": 2, "internal/rest": 2,
	"internal/reconcile": 3,
	"internal/deadline":  4,
	"internal/app":       5,
}

// alsoImport lists what the other packages import besides shared packages.
var alsoImport = map[string][]string{
	"internal/demo":    {"internal/devstack"},
	"internal/payment": {"internal/order"},
	"internal/whereis": {"internal/order"},
}

// Commands, and packages that start servers or help tests, import any packages except commands. The composition root also
// imports nothing of payments.
var (
	root       = "internal/shop"
	isPayments = regexp.MustCompile(`^internal/(payment|stripesim)(/|$)`)
	isCommand  = regexp.MustCompile(`^(cmd|examples)/`)
	isForTests = regexp.MustCompile(`^internal/(devstack|faulttest|\w+/\w+test|pgbench|stripesim|testenv(/.+)?)$`)
)

func mayImport(pkg, imported string) bool {
	switch from, to := layers[pkg], layers[imported]; {
	case isCommand.MatchString(pkg) || isForTests.MatchString(pkg):
		return !isCommand.MatchString(imported)
	case pkg == root:
		return !isCommand.MatchString(imported) && !isPayments.MatchString(imported)
	case from > 0:
		return to > 0 && to < from
	default:
		return to > 0 || slices.Contains(alsoImport[pkg], imported)
	}
}

// TestAllowedImports checks the rules of imports, which are not about tests. A file with SQL does not answer clients:
// except in commands, in the composition root and in internal/app it imports no internal/rest.
func TestAllowedImports(t *testing.T) {
	sql := regexp.MustCompile(`(?m)^\s*//go:embed .*\.sql\b|^\s*(\w+ )?"(database/sql|gorm\.io/|github\.com/jackc/pgx/)`)
	for name, text := range repositoryFiles(t, `(cmd|examples|internal|migrations|web)/.*\.go`) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		pkg := path.Dir(name)
		imports := submatches(`(?m)^(?:import)?\s+(?:\w+ )?"`+modulePath+`/(\S+)"$`, text)
		for _, imported := range imports {
			if !mayImport(pkg, imported) {
				t.Errorf("%s imports %s, which mayImport forbids", name, imported)
			}
		}
		answers := slices.Contains(imports, "internal/rest") && pkg != "internal/app" && pkg != root && !isCommand.MatchString(pkg)
		if answers && sql.MatchString(text) {
			t.Errorf("%s has SQL and imports internal/rest: let the service or http.go answer clients", name)
		}
	}
}
