package web

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"testing"
)

// named matches the names of files in the scripts: what they import, and the style sheets that they add.
var named = regexp.MustCompile(`from '\./([^']+)'|addStylesheet\('/assets/([^']+)'\)`)

// TestPagesFindTheirFiles reads the names of files in the scripts. Each named file must exist, here or in the package of
// the pages, and each file here must be named by a script or by an extension.
func TestPagesFindTheirFiles(t *testing.T) {
	extended := os.DirFS("../../web")
	used := map[string]bool{}
	check := func(by, name string) {
		t.Helper()
		file := path.Join("assets", name)
		used[file] = true
		_, err := fs.Stat(assets, file)
		if errors.Is(err, fs.ErrNotExist) {
			_, err = fs.Stat(extended, file)
		}
		if err != nil {
			t.Errorf("%s names a file that does not exist: %v", by, err)
		}
	}
	for _, e := range Pages {
		for _, name := range slices.Concat(e.Shop, e.Ops) {
			check("Pages", name)
		}
	}
	files, err := fs.Glob(assets, "assets/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("the assets are %q, %v, want at least one", files, err)
	}
	for _, file := range files {
		text, err := fs.ReadFile(assets, file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(text), -1) {
			check(file, match[1]+match[2])
		}
	}
	for _, file := range files {
		if !used[file] {
			t.Errorf("nothing names the file %s: delete it, or add it to a page", file)
		}
	}
}
