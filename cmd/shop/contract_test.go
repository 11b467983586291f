package main

import (
	"path/filepath"
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
