package main

import (
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"example.com/shop/internal/testenv"
)

// namedTest matches a test's name in a document. An ellipsis may shorten the name of a subtest.
var namedTest = regexp.MustCompile("`((?:Test|Benchmark)[A-Za-z0-9]+)(?:/([^`…]+))?")

// TestDocsNameRealTests checks that all tests that the documents name exist, and that each row of a table of failures names
// a test.
func TestDocsNameRealTests(t *testing.T) {
	tests := testSources(t)
	for _, doc := range documents(t) {
		named := namedTest.FindAllStringSubmatch(readRepositoryFile(t, doc), -1)
		if len(named) == 0 && (doc == readmeFile || doc == failuresFile) {
			t.Errorf("%s names no tests", doc)
		}
		for _, name := range named {
			if !strings.Contains(tests, "func "+name[1]+"(") {
				t.Errorf("%s names %s, which does not exist", doc, name[1])
			}
			if subtest := strings.ReplaceAll(name[2], "_", " "); subtest != "" && !strings.Contains(tests, `"`+subtest) {
				t.Errorf("%s names the subtest %q of %s, which does not exist", doc, subtest, name[1])
			}
		}
	}
	if rows := failureRows(readRepositoryFile(t, failuresFile)); len(rows) < 20 {
		t.Errorf("%s has %d rows in its tables of failures, want 20 or more", failuresFile, len(rows))
	}
	for _, doc := range documents(t) {
		for _, row := range failureRows(readRepositoryFile(t, doc)) {
			if !namedTest.MatchString(row[len(row)-1]) {
				t.Errorf("the row %q of %s names no test in its last column", row[0], doc)
			}
		}
	}
}

// failureRows returns the rows of a document's tables of failures, whose first column is Fault.
func failureRows(text string) [][]string {
	var rows [][]string
	for _, table := range strings.Split(text, "\n\n") {
		if strings.HasPrefix(table, "| Fault |") {
			rows = append(rows, tableRows(table)...)
		}
	}
	return rows
}

// testSources returns the text of all tests of the module.
func testSources(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	module := os.DirFS(repositoryRoot)
	testenv.Must(t, fs.WalkDir(module, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := fs.ReadFile(module, path)
		text.Write(file)
		return err
	}))
	return text.String()
}

// tableRows returns the rows of all tables of a document, each as its cells. It omits the head rows of the tables.
func tableRows(text string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
		case strings.Trim(line, "|-: ") == "":
			rows = rows[:max(0, len(rows)-1)] // the row above is the head
		default:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

var (
	fenced     = regexp.MustCompile("(?ms)^```.*?^```$")
	codeSpan   = regexp.MustCompile("`[^`\n]*`")
	linkTarget = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
)

// TestLinks checks that the relative links of the documents lead to files, and their anchors to headings, and that the
// README links to every document.
func TestLinks(t *testing.T) {
	root := os.DirFS(repositoryRoot)
	linked := map[string]bool{}
	for _, from := range documents(t) {
		text := codeSpan.ReplaceAllString(fenced.ReplaceAllString(readRepositoryFile(t, from), ""), "code")
		for _, target := range submatches(linkTarget, text) {
			address, err := url.Parse(target)
			if err != nil {
				t.Errorf("%s: the link %s: %v", from, target, err)
				continue
			}
			if address.Scheme != "" {
				continue
			}
			to := from // a link within the document
			if address.Path != "" {
				to = path.Join(path.Dir(from), address.Path)
			}
			if from == readmeFile {
				linked[to] = true
			}
			if _, err := fs.Stat(root, to); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", from, target, err)
			} else if address.Fragment != "" && !slices.Contains(anchorsOf(readRepositoryFile(t, to)), address.Fragment) {
				t.Errorf("%s: the link %s leads to no heading of %s", from, target, to)
			}
		}
	}
	for _, doc := range documents(t) {
		if doc != readmeFile && !linked[doc] {
			t.Errorf("%s has no link to %s", readmeFile, doc)
		}
	}
}

// anchorsOf returns the anchors of a document's headings.
func anchorsOf(text string) []string {
	var anchors []string
	for _, title := range submatches(heading, fenced.ReplaceAllString(text, "")) {
		anchors = append(anchors, anchor(title))
	}
	return anchors
}

// anchor returns the anchor that GitHub gives to a heading that no other heading of the document repeats.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, title)
}

// TestConfigurationTable compares the documents' tables of options with the options. Each option has one row, in the
// document on configuration or in that of its part. For each difference the test reports the line that the document should
// have.
func TestConfigurationTable(t *testing.T) {
	type documented struct {
		doc string
		row []string
	}
	table := map[string]documented{} // by variable
	for _, doc := range documents(t) {
		rows := configurationTable(readRepositoryFile(t, doc))
		if doc == configurationFile && len(rows) == 0 {
			t.Errorf("%s has no table of options", doc)
		}
		for _, row := range rows {
			if other, twice := table[row[0]]; twice {
				t.Errorf("%s has a row for %s, which has one in %s", doc, row[0], other.doc)
			}
			table[row[0]] = documented{doc, row}
		}
	}
	for _, o := range allOptions(testParser(t, io.Discard)) {
		want := o.row()
		got, ok := table[want[0]]
		delete(table, want[0])
		switch {
		case !ok:
			t.Errorf("%s lacks\n| %s | %s |", configurationFile, strings.Join(want, " | "), o.help)
		case !slices.Equal(got.row[:4], want):
			t.Errorf("%s has\n| %s |, want\n| %s |", got.doc, strings.Join(got.row[:4], " | "), strings.Join(want, " | "))
		case got.row[4] == "":
			t.Errorf("%s gives no meaning for %s", got.doc, want[0])
		}
	}
	for variable, extra := range table {
		t.Errorf("%s has a row for %s, which is not an option", extra.doc, variable)
	}
}

// configurationTable returns the rows of a document's table of options: variable, flag, default, commands, meaning.
func configurationTable(text string) [][]string {
	return slices.DeleteFunc(tableRows(text), func(row []string) bool {
		return len(row) != 5 || !strings.HasPrefix(row[0], "`"+optionPrefix)
	})
}
