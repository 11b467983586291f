package programtest

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// Texts are the texts of files by their paths.
type Texts map[string]string

// Read reads the files that match patterns of [filepath.Glob]. There must be a file for each pattern.
func Read(t testing.TB, patterns ...string) Texts {
	t.Helper()
	texts := Texts{}
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		testenv.Must(t, err)
		if len(names) == 0 {
			t.Fatalf("found no file %s", pattern)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			testenv.Must(t, err)
			texts[name] = string(text)
		}
	}
	return texts
}

// Documents reads the documents of modules, which are README.md and, if there is a folder docs, docs/*.md in the
// folders of the modules.
func Documents(t testing.TB, modules ...string) Texts {
	t.Helper()
	var patterns []string
	for _, module := range modules {
		patterns = append(patterns, filepath.Join(module, "README.md"))
		if exists(filepath.Join(module, "docs")) {
			patterns = append(patterns, filepath.Join(module, "docs/*.md"))
		}
	}
	return Read(t, patterns...)
}

// GoFiles reads the Go files of modules, tests included. It skips hidden folders, and folders that are other modules.
// A module whose folder does not exist has no files.
func GoFiles(t testing.TB, modules ...string) Texts {
	t.Helper()
	texts := Texts{}
	for _, module := range modules {
		testenv.Must(t, filepath.WalkDir(module, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case name == module && errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case entry.IsDir() && name != module && (entry.Name()[0] == '.' || exists(filepath.Join(name, "go.mod"))):
				return fs.SkipDir
			case entry.IsDir() || filepath.Ext(name) != ".go":
				return nil
			}
			text, err := os.ReadFile(name)
			texts[name] = string(text)
			return err
		}))
	}
	return texts
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// Links checks that the relative links of documents lead to files, and their anchors to headings. If a folder's
// README.md is one of the documents, it must have a link to each document in the folders below, one level deep.
func Links(t testing.TB, docs Texts) {
	t.Helper()
	type link struct{ from, to string }
	links := map[link]bool{}
	code := regexp.MustCompile("`[^`\n]*`")
	for from, text := range docs {
		for _, target := range submatches(`\]\(([^()\s]+)\)`, code.ReplaceAllString(withoutFences(text), "code")) {
			if !strings.Contains(target, "://") {
				links[link{from, checkLink(t, from, filepath.Dir(from), target)}] = true
			}
		}
	}
	for doc := range docs {
		readme := filepath.Join(filepath.Dir(doc), "../README.md")
		if _, ok := docs[readme]; ok && !links[link{readme, doc}] {
			t.Errorf("%s has no link to %s", readme, doc)
		}
	}
}

// Runbooks checks that the runbooks of alerts lead to headings of files. Their paths begin at root.
func Runbooks(t testing.TB, root string, alerts Texts) {
	t.Helper()
	for from, text := range alerts {
		for _, target := range submatches(`(?m)^ *runbook: (\S+)$`, text) {
			checkLink(t, from, root, target)
		}
	}
}

// checkLink checks a link that stands in the file from, and returns the file that it leads to. The path of the link
// begins at folder.
func checkLink(t testing.TB, from, folder, target string) (to string) {
	t.Helper()
	file, fragment, _ := strings.Cut(target, "#")
	to = from
	if file != "" {
		to = filepath.Join(folder, file)
	}
	if !exists(to) {
		t.Errorf("%s: the link %s leads nowhere: there is no %s", from, target, to)
		return to
	}
	if fragment != "" {
		text, err := os.ReadFile(to)
		testenv.Must(t, err)
		if !slices.Contains(anchors(string(text)), fragment) {
			t.Errorf("%s: the link %s leads to no heading of %s", from, target, to)
		}
	}
	return to
}

// anchors returns the anchors that GitHub gives to a document's headings.
func anchors(text string) []string {
	headings := submatches(`(?m)^#{1,6} +(.+?) *$`, strings.ToLower(withoutFences(text)))
	for i, heading := range headings {
		headings[i] = regexp.MustCompile(`[^\pL\pN_-]`).ReplaceAllString(strings.ReplaceAll(heading, " ", "-"), "")
	}
	return headings
}

func withoutFences(text string) string {
	return regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
}

// NamedTests checks that all tests that documents name exist in the modules.
func NamedTests(t testing.TB, docs Texts, modules ...string) {
	t.Helper()
	found := map[string]bool{}
	for file, text := range GoFiles(t, modules...) {
		if strings.HasSuffix(file, "_test.go") {
			for _, name := range submatches(`(?m)^func ((?:Test|Benchmark)\w+)\(`, text) {
				found[name] = true
			}
		}
	}
	for _, doc := range slices.Sorted(maps.Keys(docs)) {
		for _, name := range submatches("`((?:Test|Benchmark)[A-Z]\\w+)", docs[doc]) {
			if !found[name] {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	}
}

// NamedFiles checks that the files and folders that documents name in code exist below root. A document may name a
// file without the folders above it.
func NamedFiles(t testing.TB, docs Texts, root string) {
	t.Helper()
	found := map[string]bool{} // each path below root, and each end of it that begins with a file or a folder
	testenv.Must(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == ".git" {
			return fs.SkipDir
		}
		for end := filepath.ToSlash(name); end != ""; _, end, _ = strings.Cut(end, "/") {
			found[end] = true
		}
		return err
	}))
	const (
		file   = `(?:[\w.-]+/)*[\w-]+\.(?:go|ini|js|lua|mod|sql|txt|yaml|yml)\b`
		folder = `(?:bench|cmd|deploy|docs|e2e|examples|internal|migrations|payments|scripts|web)/[\w./-]+`
	)
	for doc, text := range docs {
		for _, name := range submatches("[`\\s](?:\\./)?("+file+"|"+folder+")", text) {
			if name = strings.TrimRight(name, "/."); !found[name] {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	}
}

// submatches returns the first group of each match.
func submatches(expr, text string) (first []string) {
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(text, -1) {
		first = append(first, m[1])
	}
	return first
}
