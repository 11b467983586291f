package main

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

const (
	repositoryRoot = "../.."
	modulePath     = "example.com/shop"
)

// The rules of imports between the packages of the module. Tests are left out: they may import any package.
//
//   - A command is a package below cmd or examples. It imports any packages except commands.
//   - A shared package is kept by every copy. It imports shared packages of lower layers.
//   - A server package starts servers, or stands in for them. It imports server packages of lower layers. Besides tests,
//     only commands import it.
//   - Every other package is a part, which a copy may leave out. It imports shared packages, and the parts that
//     partImports lists for it.
//
// The lists may name packages that do not exist, so that a copy can delete packages.
var (
	// sharedLayers lists the shared packages, the lowest layer first.
	sharedLayers = [][]string{
		{"internal/clip", "internal/keyset", "internal/openapi", "internal/option", "internal/postgres", "migrations"},
		{"internal/batch", "internal/delay", "internal/rest"},
		{"internal/reconcile"},
		{"internal/deadline"},
		{"internal/app"},
		{"internal/cli"},
	}
	// serverLayers lists the server packages, the lowest layer first.
	serverLayers = [][]string{
		{
			"internal/devstack",
			"internal/pgbench",
			"internal/stripesim",
		},
		{"internal/testenv"},
		{"internal/browsertest"},
	}
	// partImports lists the packages that a part imports besides shared ones.
	partImports = map[string][]string{
		"internal/demo":             {"internal/devstack"},
		"internal/order/ordertest":  {"internal/order", "internal/testenv", "internal/testenv/parttest"},
		"internal/payment":          {"internal/order"},
		"internal/testenv/parttest": {"internal/testenv"},
		"internal/whereis":          {"internal/order"},
		"internal/trace":            {"internal/order"},
	}
)

// mayImport reports whether the rules allow a package to import another one. Both are paths below the module's.
func mayImport(pkg, imported string) bool {
	if isCommand(imported) {
		return false
	}
	shared, server := layerOf(sharedLayers, pkg), layerOf(serverLayers, pkg)
	importedShared, importedServer := layerOf(sharedLayers, imported), layerOf(serverLayers, imported)
	switch {
	case isCommand(pkg):
		return true
	case shared >= 0:
		return importedShared >= 0 && importedShared < shared
	case server >= 0:
		return importedServer >= 0 && importedServer < server
	default:
		return importedShared >= 0 || slices.Contains(partImports[pkg], imported)
	}
}

func isCommand(pkg string) bool {
	return strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "examples/")
}

// layerOf returns the index of the layer that lists a package, or -1 if none does.
func layerOf(layers [][]string, pkg string) int {
	return slices.IndexFunc(layers, func(layer []string) bool { return slices.Contains(layer, pkg) })
}

func TestMayImport(t *testing.T) {
	for _, test := range []struct {
		pkg, imported string
		want          bool
	}{
		{"cmd/shop", "internal/order", true},
		{"cmd/shop", "internal/devstack", true},
		{"cmd/shop", "examples/invite", false},
		{"examples/invite", "internal/deadline", true},
		{"internal/order", "cmd/shop", false},
		{"internal/order", "internal/deadline", true},
		{"internal/order", "internal/payment", false},
		{"internal/order", "internal/testenv", false},
		{"internal/payment", "internal/order", true},
		{"internal/other", "internal/order", false},
		{"web", "internal/app", true},
		{"internal/app", "internal/order", false},
		{"internal/app", "internal/devstack", false},
		{"internal/deadline", "internal/reconcile", true},
		{"internal/reconcile", "internal/deadline", false},
		{"internal/app", "internal/live", false},
		{"internal/order", "internal/testenv/parttest", false},
		{"internal/live", "internal/app", true},
		{"internal/keyset", "internal/postgres", false},
		{"internal/testenv", "internal/devstack", true},
		{"internal/devstack", "internal/testenv", false},
		{"internal/devstack", "internal/postgres", false},
	} {
		if got := mayImport(test.pkg, test.imported); got != test.want {
			t.Errorf("%s may import %s: %v, want %v", test.pkg, test.imported, got, test.want)
		}
	}
}

func TestAllowedImports(t *testing.T) {
	checked := 0
	for _, pkg := range modulePackages(t) {
		for _, imported := range pkg.imports {
			checked++
			if !mayImport(pkg.path, imported) {
				t.Errorf("package %s imports %s, which the rules of imports forbid: see mayImport", pkg.path, imported)
			}
		}
		if strings.HasPrefix(pkg.path, "cmd/") || pkg.path == "internal/app" {
			continue // these open the database and serve the routes
		}
		for _, name := range pkg.files {
			file := parseImports(t, filepath.Join(repositoryRoot, pkg.path, name))
			if file.sql && slices.Contains(file.imports, modulePath+"/internal/rest") {
				t.Errorf("%s/%s has SQL and imports internal/rest: return an error of the package, and let the service or "+
					"http.go turn it into an error for clients", pkg.path, name)
			}
		}
	}
	if checked == 0 {
		t.Error("found no package that imports another one of the module")
	}
}

// goFile is what the rules of imports read of a file.
type goFile struct {
	imports []string
	sql     bool // it embeds an SQL file, or imports a client of the database
}

// databaseClients are the prefixes of the packages that talk to the database.
var databaseClients = []string{"database/sql", "gorm.io/", "github.com/jackc/pgx/"}

var embedsSQL = regexp.MustCompile(`(?m)^\s*//go:embed .*\.sql\b`)

func parseImports(t *testing.T, path string) goFile {
	t.Helper()
	text, err := os.ReadFile(path)
	testenv.Must(t, err)
	parsed, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
	testenv.Must(t, err)
	file := goFile{sql: embedsSQL.Match(text)}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		testenv.Must(t, err)
		file.imports = append(file.imports, imported)
		isClient := func(prefix string) bool { return strings.HasPrefix(imported, prefix) }
		file.sql = file.sql || slices.ContainsFunc(databaseClients, isClient)
	}
	return file
}

// TestParseImports checks that files with SQL are found.
func TestParseImports(t *testing.T) {
	for text, want := range map[string]bool{
		"package p\n\nimport \"fmt\"\n":                                                   false,
		"package p\n\nimport \"example.com/shop/internal/postgres\"\n":                    false,
		"package p\n\nimport \"gorm.io/gorm\"\n":                                          true,
		"package p\n\nimport \"database/sql\"\n":                                          true,
		"package p\n\nimport _ \"embed\"\n\n//go:embed pay.sql\nvar s string\n":           true,
		"package p\n\nimport _ \"embed\"\n\nvar (\n\t//go:embed pay.sql\n\ts string\n)\n": true,
		"package p\n\nimport _ \"embed\"\n\n//go:embed api.yaml\nvar s string\n":          false,
	} {
		path := filepath.Join(t.TempDir(), "p.go")
		testenv.Must(t, os.WriteFile(path, []byte(text), 0o600))
		if got := parseImports(t, path); got.sql != want || len(got.imports) != 1 {
			t.Errorf("of the file\n%s\nthe imports are %q, and it has SQL: %v; want one import, and %v", text, got.imports, got.sql, want)
		}
	}
}

// modulePackage is a package of the module.
type modulePackage struct {
	path    string   // below the module's
	imports []string // the packages of the module that it imports, also below the module's path
	files   []string // the names of its Go files, without tests
}

// modulePackages returns the packages of the module.
func modulePackages(t *testing.T) (found []modulePackage) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,GoFiles", "./...")
	cmd.Dir = repositoryRoot
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var listed struct {
			ImportPath       string
			Imports, GoFiles []string
		}
		err := dec.Decode(&listed)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("read the output of go list: %v", err)
		}
		path, ok := strings.CutPrefix(listed.ImportPath, modulePath+"/")
		if !ok {
			t.Errorf("package %s is not below the module path %s", listed.ImportPath, modulePath)
		}
		pkg := modulePackage{path: path, files: listed.GoFiles}
		for _, imported := range listed.Imports {
			if below, ok := strings.CutPrefix(imported, modulePath+"/"); ok {
				pkg.imports = append(pkg.imports, below)
			}
		}
		found = append(found, pkg)
	}
}
