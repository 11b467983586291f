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

// allowedImports lists, for each package of the module, the packages of the module that it imports. Tests are left
// out: they may import any package.
var allowedImports = map[string][]string{
	"cmd/shop": {
		"internal/app", "internal/cli", "internal/delay", "internal/demo", "internal/live", "internal/ops", "internal/option",
		"internal/order", "internal/payment", "internal/rest", "internal/stripesim", "web",
	},
	"examples/invite": {
		"internal/app", "internal/cli", "internal/delay", "internal/devstack", "internal/postgres", "internal/reconcile", "internal/rest",
	},
	"internal/app":              {"internal/delay", "internal/option", "internal/postgres", "internal/reconcile", "internal/rest", "migrations"},
	"internal/batch":            {"internal/postgres"}, // for the classes of its errors
	"internal/cli":              {"internal/app", "internal/option", "internal/postgres", "internal/reconcile", "migrations"},
	"internal/delay":            {"internal/postgres"}, // for the classes of its errors
	"internal/demo":             {"internal/app", "internal/devstack", "internal/rest"},
	"internal/devstack":         {},
	"internal/live":             {"internal/app", "internal/rest"},
	"internal/ops":              {"internal/app", "internal/delay", "internal/option", "internal/reconcile", "internal/rest"},
	"internal/option":           {},
	"internal/order":            {"internal/app", "internal/batch", "internal/delay", "internal/option", "internal/postgres", "internal/rest"},
	"internal/payment":          {"internal/app", "internal/delay", "internal/option", "internal/order", "internal/postgres", "internal/rest"},
	"internal/pgbench":          {}, // only benchmarks import pgbench
	"internal/postgres":         {},
	"internal/reconcile":        {"internal/delay"},
	"internal/rest":             {"internal/postgres"}, // for the classes of its errors
	"internal/stripesim":        {},
	"internal/testenv":          {"internal/devstack"}, // only tests import testenv
	"internal/testenv/parttest": {"internal/app", "internal/delay", "internal/postgres", "internal/rest", "internal/testenv"},
	"migrations":                {},
	"web":                       {"internal/app", "internal/rest"},
}

func TestAllowedImports(t *testing.T) {
	actual := moduleImports(t)
	for _, pkg := range slices.Sorted(maps.Keys(actual)) {
		allowed, listed := allowedImports[pkg]
		if !listed && len(actual[pkg]) > 0 {
			t.Errorf("package %s imports %q but is not listed: add it to allowedImports", pkg, actual[pkg])
		}
		if listed && !slices.Equal(actual[pkg], allowed) {
			t.Errorf("package %s imports %q, want %q as allowedImports lists", pkg, actual[pkg], allowed)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(allowedImports)) {
		if _, ok := actual[pkg]; !ok {
			t.Errorf("allowedImports lists %s, which is not a package of the module", pkg)
		}
	}
}

// moduleImports returns the module's packages, each with the packages of the module that it imports, sorted.
func moduleImports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = repositoryRoot
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
			break
		}
		if err != nil {
			t.Fatalf("read the output of go list: %v", err)
		}
		name, ok := strings.CutPrefix(pkg.ImportPath, modulePath+"/")
		if !ok {
			t.Errorf("package %s is not below the module path %s", pkg.ImportPath, modulePath)
		}
		imports := []string{}
		for _, path := range pkg.Imports {
			if imported, ok := strings.CutPrefix(path, modulePath+"/"); ok {
				imports = append(imports, imported)
			}
		}
		slices.Sort(imports)
		found[name] = imports
	}
	if len(found) == 0 {
		t.Fatal("go list found no packages")
	}
	return found
}
