package main

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "example.com/shop/"

// arrows is who imports whom: every package of the module with those of the others that it is built
// from. Rooms that are made to be copied have none.
var arrows = map[string][]string{
	"cmd/shop":           {"internal/delay", "internal/devstack", "internal/order", "internal/reconcile", "migrations", "web"},
	"internal/delay":     {},
	"internal/devstack":  {},
	"internal/order":     {"internal/delay"},
	"internal/reconcile": {},
	"internal/testenv":   {"internal/devstack", "migrations"}, // itself imported by tests alone
	"migrations":         {},
	"web":                {},
}

func TestArrows(t *testing.T) {
	built := imports(t)
	for _, pkg := range slices.Sorted(maps.Keys(built)) {
		want, known := arrows[pkg]
		if !known && len(built[pkg]) > 0 {
			t.Errorf("%s is a new package and imports %q: give it its arrows here", pkg, built[pkg])
		}
		if known && !slices.Equal(built[pkg], want) {
			t.Errorf("%s imports %q, its arrows go to %q", pkg, built[pkg], want)
		}
	}
	for pkg := range arrows {
		if _, ok := built[pkg]; !ok {
			t.Errorf("%s has arrows here and is no package", pkg)
		}
	}
}

// imports lists the module's packages with what each imports of the others, tests left out.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	found := make(map[string][]string)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		err := dec.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		ours := []string{}
		for _, path := range pkg.Imports {
			if name, ok := strings.CutPrefix(path, module); ok {
				ours = append(ours, name)
			}
		}
		slices.Sort(ours)
		found[strings.TrimPrefix(pkg.ImportPath, module)] = ours
	}
}
