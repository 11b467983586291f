package web

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	htmlFile   = regexp.MustCompile(`(?:href|src)="/(assets/[^"]+)"`)
	importFile = regexp.MustCompile(`from '\./([^']+)'`)
	sheetFile  = regexp.MustCompile(`addStylesheet\('/(assets/[^']+)'\)`)
)

// TestPagesFindTheirFiles reads the names of files in the pages, the scripts and the style sheets. Each named file must
// exist, and each file must be named. So a team that leaves a part of a page out deletes both its line and its files.
func TestPagesFindTheirFiles(t *testing.T) {
	named := map[string]bool{}
	check := func(by string, found [][]string, dir string) {
		t.Helper()
		for _, match := range found {
			file := path.Join(dir, match[1])
			named[file] = true
			if _, err := fs.Stat(assets, file); err != nil {
				t.Errorf("%s names a file that does not exist: %v", by, err)
			}
		}
	}
	for _, name := range glob(t, pages, "*.html") {
		check(name, htmlFile.FindAllStringSubmatch(read(t, pages, name), -1), "")
	}
	files := glob(t, assets, "assets/*")
	for _, name := range files {
		text := read(t, assets, name)
		check(name, importFile.FindAllStringSubmatch(text, -1), "assets")
		check(name, sheetFile.FindAllStringSubmatch(text, -1), "")
	}
	for _, name := range files {
		if !named[name] {
			t.Errorf("no page and no script names the file %s: delete it, or add it to a page", name)
		}
	}
}

// TestScriptsOfParts checks that no other script imports a part of a page, because a team may delete the part.
func TestScriptsOfParts(t *testing.T) {
	var parts []string
	for _, name := range glob(t, pages, "*.html") {
		for line := range strings.Lines(read(t, pages, name)) {
			if strings.Contains(line, "data-part") {
				parts = append(parts, path.Base(htmlFile.FindStringSubmatch(line)[1]))
			}
		}
	}
	for _, name := range glob(t, assets, "assets/*.js") {
		for _, match := range importFile.FindAllStringSubmatch(read(t, assets, name), -1) {
			if slices.Contains(parts, match[1]) {
				t.Errorf("%s imports the part %s, want only its page to name it", name, match[1])
			}
		}
	}
}

func glob(t *testing.T, files fs.FS, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(files, pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("the files %s: found %d, %v, want at least one", pattern, len(names), err)
	}
	return names
}

func read(t *testing.T, files fs.FS, name string) string {
	t.Helper()
	text, err := fs.ReadFile(files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
