package main

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A subtest's name may be cut short by an ellipsis.
var namedTest = regexp.MustCompile("`((?:Test|Benchmark)[A-Za-z0-9]+)(?:/([^`…]+))?")

// TestReadmeNamesRealTests: a claim whose test was renamed or removed is a claim that nothing shows.
func TestReadmeNamesRealTests(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	must(t, err)
	named := namedTest.FindAllStringSubmatch(string(readme), -1)
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
