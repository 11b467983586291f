package programtest

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

const (
	root       = "../../.."
	modulePath = "example.com/shop"
)

// layers gives the layer of each shared package, 1 for the lowest. They import shared packages of lower layers.
var layers = map[string]int{
	"internal/background": 1, "internal/clip": 1, "internal/keyset": 1, "internal/postgres": 1,
	"internal/batch": 2, "internal/delay": 2, "internal/rest": 2, "migrations": 2,
	"internal/reconcile": 3, "internal/timeout": 3,
	"internal/app": 4,
}

// alsoImport lists what the other packages import besides shared packages.
var alsoImport = map[string][]string{
	"internal/demo": {"internal/devstack"},
}

// neighbours are the modules beside the core. They import packages of the core and their own, and the core imports
// nothing of them.
var neighbours = []string{"bench", "payments"}

// neighbourOf returns the module beside the core that a package belongs to, "" for a package of the core.
func neighbourOf(pkg string) string {
	if module, _, _ := strings.Cut(pkg, "/"); slices.Contains(neighbours, module) {
		return module
	}
	return ""
}

// Commands, the composition root, and packages that start servers or help tests import any packages of the core except
// commands. A command may have migrations of its own.
var (
	composition = "internal/shop"
	isCommand   = regexp.MustCompile(`^(payments/)?(cmd|examples)/`)
	isForTests  = regexp.MustCompile(`^(e2e|internal/(devstack|faulttest|\w+/\w+test|testenv))(/|$)`)
)

func mayImport(pkg, imported string) bool {
	from, to := neighbourOf(pkg), neighbourOf(imported)
	switch {
	case from != "" && to == "":
		return !isCommand.MatchString(imported)
	case from != "" || to != "":
		return from == to
	case pkg == composition || isCommand.MatchString(pkg) || isForTests.MatchString(pkg):
		return !isCommand.MatchString(imported) || imported == pkg+"/migrations"
	case layers[pkg] > 0:
		return layers[imported] > 0 && layers[imported] < layers[pkg]
	default:
		return layers[imported] > 0 || slices.Contains(alsoImport[pkg], imported)
	}
}

// TestAllowedImports checks the rules of imports in all modules, which are not about tests. It also checks that each
// route of GET is one of HEAD, too.
func TestAllowedImports(t *testing.T) {
	modules := []string{root}
	for _, module := range neighbours {
		modules = append(modules, path.Join(root, module))
	}
	importLine := regexp.MustCompile(`(?m)^(?:import)?\s+(?:\w+ )?"` + modulePath + `/(\S+)"$`)
	for name, text := range GoFiles(t, modules...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		name, err := filepath.Rel(root, name)
		testenv.Must(t, err)
		for _, line := range importLine.FindAllStringSubmatch(text, -1) {
			if !mayImport(path.Dir(name), line[1]) {
				t.Errorf("%s imports %s, which mayImport forbids", name, line[1])
			}
		}
		if strings.Contains(text, ".GET(") && !strings.HasPrefix(name, "bench/") {
			t.Errorf("%s has a route of GET alone: call Match with rest.ReadMethods", name)
		}
	}
}
