package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestContractWithoutAPart leaves out the pieces of each folder of this module's contract alone, and then all of them at
// once. What is left must be valid, because a team can delete the folder of a part. The pieces of the packages app and
// order are always there: the first is about every process, the second has the document's title.
func TestContractWithoutAPart(t *testing.T) {
	var core []string
	others := map[string][]string{} // by folder
	files, err := parttest.FindPieces(repositoryRoot)
	testenv.Must(t, err)
	for _, file := range files {
		switch folder := filepath.Base(filepath.Dir(file)); folder {
		case "app", "order":
			core = append(core, file)
		default:
			others[folder] = append(others[folder], file)
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
