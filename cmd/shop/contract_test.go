package main

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/testenv/programtest"
)

// TestContractWithoutAPart leaves out the pieces of each folder of this module's contract alone, and then all of them
// at once. What is left must be valid, because a team can delete the folder of a part. The pieces of packages app and
// rest, which are about every process, and those beside the piece with the document's title are always there.
func TestContractWithoutAPart(t *testing.T) {
	var core []string
	others := map[string][]string{} // by folder
	files, err := parttest.FindPieces(repositoryRoot)
	testenv.Must(t, err)
	titled := ""
	for file, text := range programtest.Read(t, files...) {
		if strings.Contains("\n"+text, "\ninfo:") {
			titled = filepath.Dir(file)
		}
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		if folder := filepath.Base(dir); dir == titled || folder == "app" || folder == "rest" {
			core = append(core, file)
		} else {
			others[filepath.Base(dir)] = append(others[filepath.Base(dir)], file)
		}
	}
	for leftOut := range others {
		rest := slices.Clone(core)
		for folder, files := range others {
			if folder != leftOut {
				rest = append(rest, files...)
			}
		}
		if _, err := parttest.LoadPieces(rest...); err != nil {
			t.Errorf("without the pieces in the folder %s the contract is not valid: %v", leftOut, err)
		}
	}
	if _, err := parttest.LoadPieces(core...); err != nil {
		t.Errorf("the contract of %s alone is not valid: %v", strings.Join(core, ", "), err)
	}
}

// TestClassesAreInContract reads the classes of error from the sources that declare them. The contract's pieces in the
// folder of the package must describe each code. Those of package rest, which has no routes, are in the piece of
// package app. No two classes may have the same code.
func TestClassesAreInContract(t *testing.T) {
	declaration := regexp.MustCompile(`Class\{(?:Code: )?"([a-z-]+)"(, (?:Status: )?http\.Status\w+, (?:Title: )?"[A-Z].+"\})?`)
	seen := map[string]bool{}
	for name, source := range programtest.Read(t, repositoryRoot+"/internal/*/*.go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		folder := filepath.Base(filepath.Dir(name))
		if folder == "rest" {
			folder = "app"
		}
		for _, m := range declaration.FindAllStringSubmatch(source, -1) {
			code := m[1]
			if m[2] == "" {
				t.Errorf("the class %s has no status or no title", code)
			}
			if seen[code] {
				t.Errorf("two classes have the code %s", code)
			}
			seen[code] = true
			pieces := programtest.Read(t, filepath.Join(repositoryRoot, "internal", folder, "*openapi.yaml"))
			describes := func(piece string) bool { return strings.Contains(piece, "`/problems/"+code+"`") }
			if !slices.ContainsFunc(slices.Collect(maps.Values(pieces)), describes) {
				t.Errorf("no piece of the contract in internal/%s describes `/problems/%s`, which %s declares", folder,
					code, name)
			}
		}
	}
	if len(seen) < 10 {
		t.Fatalf("the sources declare only the codes %v, want at least 10", seen)
	}
}
